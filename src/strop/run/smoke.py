"""`strop smoke`: short checks of training and generation on this machine. Each check passes, or fails with a reason.

Each group of checks runs in separate processes, so a crash or a hang in one group does not affect the others.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from strop.base.machine import GIB, memory
from strop.base.metrics import values
from strop.base.sample import Sample
from strop.base.types import Completion, InputError, IntArray, StropError, first_line
from strop.config.schema import RunConfig
from strop.engines.build import build_engine
from strop.engines.protocol import Engine, Request, Sampling, Streaming
from strop.engines.settings import PYTHON_VARIABLE, EngineSettings, Vllm
from strop.model.device import pick_device
from strop.model.files import cast_parameters
from strop.model.policy import PackedInputs, Policy, load_policy
from strop.recipes.resolve import resolve
from strop.run.finding import Finding, Level
from strop.run.learners import Modules, join, make_learner
from strop.training.learner import Learner
from strop.training.packing import pack
from strop.training.step import score_samples
from strop_verify.child_process import ChildProcess, die_with_parent, import_path

# Large initial weights make the distributions far from uniform, so that wrong weights show in the log-probs.
SHAPE = (
    "{hidden_size=256, layers=4, heads=4, kv_heads=2, head_dim=64, intermediate_size=768, max_positions=1024, "
    "initializer_range=0.1}"
)
SEQUENCES, LENGTH, PROMPT = 8, 256, 32  # of the update: whole sequences and the prompts in them, in tokens
PROMPTS, SAMPLES, NEW_TOKENS = 4, 4, 64
LONG = 256  # new tokens of the sequences that are in flight while the weights change
GAP = 0.05  # nats, between log-probs of the same tokens by two ways of computing in bfloat16, on average
RANKS_GAP = 0.03  # relative, between the gradient norms of one rank and of two, in bfloat16
EXCHANGE_SECONDS = 60.0


@dataclass(frozen=True)
class SmokePlan:
    """The work of one process: the group of checks, the device, and the folder that receives its findings."""

    group: str
    device: str
    model: str | None
    vllm: str | None
    folder: str
    parent: int
    rank: int = 0

    @property
    def config(self) -> RunConfig:
        """The configuration of a run with this model in bfloat16."""
        model = f"model.fresh={SHAPE}" if self.model is None else f"model.path={json.dumps(self.model)}"
        return resolve("grpo", [model, "model.dtype=bfloat16", f"device={self.device}", "optim.lr=1e-3"])

    @property
    def file(self) -> Path:
        """The file of the findings of rank 0, one JSON object per line."""
        return Path(self.folder) / f"{self.group}.jsonl"

    def check(self, name: str, run: Callable[[], str]) -> bool:
        """Run a check, which returns what it measured, write its finding, and return whether it passed."""
        try:
            finding = outcome(name, "ok", run())
        except Exception as error:  # whatever it is, it is the finding
            kind = "" if isinstance(error, StropError) else f"{type(error).__name__}: "
            finding = outcome(name, "error", f"{kind}{first_line(error)}")
        if self.rank == 0:
            with self.file.open("a") as file:
                file.write(json.dumps(asdict(finding)) + "\n")
        return finding.level == "ok"


def outcome(name: str, level: Level, found: str) -> Finding:
    """The finding of a check: `ok` if it passed, `error` if it failed, `note` if it was not run."""
    return Finding(name.lower().replace(" ", "-"), level, name, found)


# ---------------------------------------------------------------------- groups


def update_group(plan: SmokePlan) -> None:
    """Check a bfloat16 forward pass and update on one device, and measure the peak memory."""
    device = pick_device(plan.config.device)
    before = _peak(device)
    policy = load_policy(plan.config.model)[0].to(device)
    learner = make_learner(plan.config, Modules(policy))

    def same_as_float32() -> str:
        ids = samples(policy.vocabulary)[0].token_ids
        exact = policy.frozen_copy()
        cast_parameters(exact, torch.float32)
        gap = _gap(_logprobs(policy, ids), _logprobs(exact, ids), "float32")
        return f"log-probs within {gap:.1g} nats of float32's on average"

    def updated() -> str:
        first = next(policy.parameters())
        kept = first.detach().clone()
        begin = time.perf_counter()
        norm = train_once(learner)
        if torch.equal(first, kept):
            raise StropError("the update changed no parameter")
        (Path(plan.folder) / "norm.json").write_text(json.dumps(norm))
        rate = SEQUENCES * LENGTH / (time.perf_counter() - begin)
        return f"gradient norm {norm:.4g}, {rate:.0f} tokens a second, the first one's start-up included"

    plan.check("bf16 forward", same_as_float32)
    plan.check("bf16 update", updated)
    plan.check("peak memory", lambda: f"{(_peak(device) - before) / GIB:.2f} of {_room(device) / GIB:.0f} GiB")


def engine_group(plan: SmokePlan) -> None:
    """Check the embedded engine: sampling, a weight swap during sampling, and the probe."""
    policy, tokenizer = load_policy(plan.config.model)
    policy.to(pick_device(plan.config.device)).requires_grad_(False)
    settings = EngineSettings(slots=16, share_parameters=False)
    _generating(build_engine(settings, plan.config.model, tokenizer, policy), policy, "engine", plan)


def vllm_group(plan: SmokePlan) -> None:
    """Start vLLM's server and check it like the embedded engine."""
    policy, tokenizer = load_policy(plan.config.model)
    policy.to(pick_device(plan.config.device)).requires_grad_(False)
    engines: list[Engine] = []

    def start() -> str:
        settings = Vllm(python=plan.vllm, slots=16, memory_fraction=0.3, kv_cache_gib=0.5, eager=True)
        engines.append(build_engine(settings, plan.config.model, tokenizer, policy))
        return f"ready, weights of version {engines[0].weight_version}"

    if plan.check("vLLM server start", start):
        try:
            _generating(engines[0], policy, "vLLM", plan)
        finally:
            engines[0].close()


def ranks_group(plan: SmokePlan) -> None:
    """Repeat the update of `update_group` as one of two ranks that shard the model (FSDP2)."""
    learners: list[Learner] = []

    def meet() -> str:
        learners.append(join(plan.config, plan.rank, 2, f"file://{plan.folder}/meet", EXCHANGE_SECONDS))
        return "NCCL" if learners[0].trainer.device.type == "cuda" else "gloo, on the CPU"

    def same_as_one() -> str:
        norm = train_once(learners[0])
        single = Path(plan.folder) / "norm.json"
        if not single.is_file():
            return f"gradient norm {norm:.4g}; none of one rank to compare it with"
        expected = json.loads(single.read_text())
        if not abs(norm - expected) <= RANKS_GAP * expected:
            raise StropError(f"the gradient norm is {norm:.4g}, one rank's {expected:.4g}")
        return f"gradient norm {norm:.4g}, one rank's {expected:.4g}"

    if plan.check("two ranks meet", meet):
        plan.check("two ranks update", same_as_one)


# The function of each group and the names of its checks, in order.
GROUPS: dict[str, tuple[Callable[[SmokePlan], None], tuple[str, ...]]] = {
    "update": (update_group, ("bf16 forward", "bf16 update", "peak memory")),
    "engine": (engine_group, ("engine sample", "engine weight swap", "engine probe")),
    "ranks": (ranks_group, ("two ranks meet", "two ranks update")),
    "vllm": (vllm_group, ("vLLM server start", "vLLM sample", "vLLM weight swap", "vLLM probe")),
}


# ---------------------------------------------------------------------- what the groups share


def _generating(engine: Engine, policy: Policy, name: str, plan: SmokePlan) -> None:
    """Check sampling, a weight swap and the probe of an engine whose version 0 is the weights of `policy`."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, min(policy.vocabulary, 250), PROMPT).astype(np.int32) for _ in range(PROMPTS)]

    def sample() -> str:
        begin = time.perf_counter()
        _submit(engine, prompts, "first", NEW_TOKENS)
        found = _finished(engine)
        seconds = time.perf_counter() - begin
        own = [_logprobs(policy, np.concatenate((c.prompt_ids, c.token_ids)))[len(c.prompt_ids) - 1 :] for c in found]
        gap = _gap(np.concatenate(own), np.concatenate([c.logprobs for c in found]), "the trainer")
        tokens = sum(len(completion.token_ids) for completion in found)
        return f"{tokens / seconds:.0f} tokens a second, log-probs within {gap:.1g} nats of the trainer's on average"

    def swap() -> str:
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(0.9)
        _submit(engine, prompts, "second", min(engine.capabilities.max_tokens - PROMPT, LONG))
        found = _begun(engine, "second")
        begin = time.perf_counter()
        engine.update_weights(policy.weights(), 1)
        seconds = time.perf_counter() - begin
        found += _finished(engine)
        both = sum([span.version for span in completion.versions] == [0, 1] for completion in found)
        if not both:
            raise StropError("no completion in flight went on with the new weights")
        return f"{seconds:.2f} s, {both} of {len(found)} completions in flight went on with it"

    def probe() -> str:
        gap = _gap(engine.verify_weights(prompts[0]), _logprobs(policy, prompts[0]), "the trainer")
        return f"log-probs within {gap:.1g} nats of the trainer's"

    plan.check(f"{name} sample", sample)
    plan.check(f"{name} weight swap", swap)
    plan.check(f"{name} probe", probe)


def _submit(engine: Engine, prompts: list[IntArray], name: str, tokens: int) -> None:
    sampling = Sampling(max_new_tokens=tokens)
    for number, prompt in enumerate(prompts):
        engine.submit(Request(f"{name}-{number}", prompt, sampling, seed=number, n=SAMPLES, watched=True))


def _begun(engine: Engine, name: str) -> list[Completion]:
    """Step until every sequence in flight has a token. Returns the completions that finished meanwhile."""
    assert isinstance(engine, Streaming)
    nothing = {(f"{name}-{number}", index): 0 for number in range(PROMPTS) for index in range(SAMPLES)}
    found: list[Completion] = []
    while len(engine.drawn(nothing)) < engine.unfinished:
        found += engine.step()
    return found


def _finished(engine: Engine) -> list[Completion]:
    """Step until nothing is unfinished and return the completions."""
    found: list[Completion] = []
    while engine.unfinished:
        found += engine.step()
    return found


def samples(vocabulary: int) -> list[Sample]:
    """Sequences of random tokens; every second one has a positive advantage, the others a negative one."""
    rng = np.random.default_rng(0)
    trained = np.arange(LENGTH) >= PROMPT
    return [
        Sample(
            token_ids=rng.integers(0, min(vocabulary, 250), LENGTH).astype(np.int32),
            trained=trained,
            logprobs=np.zeros(LENGTH, np.float32),
            advantages=np.where(trained, 1.0 if number % 2 else -1.0, 0.0).astype(np.float32),
            versions=np.where(trained, 0, -1).astype(np.int32),
            group=number // 2,
            id=number,
        )
        for number in range(SEQUENCES)
    ]


def train_once(learner: Learner) -> float:
    """Take one optimizer step and return the norm of its gradient."""
    config = learner.settings
    chosen = samples(learner.policy.vocabulary)
    ranks, budget = learner.trainer.ranks, 2 * LENGTH
    logprobs, _ = score_samples(learner.policy, chosen, config.temperature, budget, ranks)
    for sample, own in zip(chosen, logprobs, strict=True):
        sample.logprobs[:] = own
    update = pack(chosen, config.algorithm.aggregation, budget, ranks.teams)
    return float(values(learner.trainer.update(update))["grad_norm"] or 0.0)


@torch.no_grad()
def _logprobs(policy: Policy, token_ids: IntArray) -> np.ndarray:
    """Log-probs of each token after the first, given those before it, at temperature 1."""
    packed = PackedInputs.whole([token_ids.tolist()]).to(policy.device)
    found: np.ndarray = policy(packed, 1.0)[0].float().cpu().numpy()
    return found


def _gap(found: np.ndarray, expected: np.ndarray, whose: str) -> float:
    """The mean difference of log-probs; a large one raises."""
    gap = float(np.abs(found - expected).mean())
    if not gap < GAP:
        raise StropError(f"log-probs differ from {whose}'s own by {gap:.3g} nats on average")
    return gap


def resident(peak: bool = False) -> int:
    """Resident memory of this process in bytes, now or at its peak.

    getrusage is not used, because a process inherits its peak from the parent.
    """
    field = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else resident(peak=True)


def _room(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else memory()[0]


# ---------------------------------------------------------------------- the processes


def main() -> None:
    """Run the plan that the only argument holds as JSON."""
    plan = SmokePlan(**json.loads(sys.argv[1]))
    die_with_parent(plan.parent)
    GROUPS[plan.group][0](plan)


def smoke(
    device: str, model: str | None, vllm: str | None, limit: float, only: Collection[str], tell: Callable[[str], None]
) -> Iterator[Finding]:
    """Run the groups one after another and yield the finding of each check.

    Args:
        device: `cuda` or `cpu`.
        model: a folder or a name on the hub; None: a new small model.
        vllm: the interpreter of an environment with vLLM; None: what STROP_VLLM_PYTHON names, if it is set.
        limit: seconds for all groups; a check that is not done by then fails.
        only: the groups to run; empty runs all of them.
        tell: is called with the name of each group before it begins.

    Raises:
        InputError: `only` names an unknown group.
    """
    for unknown in sorted(set(only) - GROUPS.keys()):
        raise InputError(f"--only {unknown}: the groups are {', '.join(GROUPS)}")
    end = time.monotonic() + limit
    vllm = vllm or os.environ.get(PYTHON_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="strop-smoke-") as folder:
        for group, (_, names) in GROUPS.items():
            if only and group not in only:
                continue
            if group == "vllm" and not vllm:
                yield outcome(names[0], "note", f"not run: name a vLLM by --vllm or {PYTHON_VARIABLE}")
                continue
            tell(group)
            # NCCL needs a separate GPU for each rank.
            place = "cpu" if group == "ranks" and torch.cuda.device_count() < 2 else device
            yield from _run(SmokePlan(group, place, model, vllm, folder, os.getpid()), names, end)


def _run(plan: SmokePlan, names: tuple[str, ...], end: float) -> Iterator[Finding]:
    """Run the processes of a group at the same time and yield the finding of each check."""
    environment = {**os.environ, "PYTHONPATH": import_path(), "TOKENIZERS_PARALLELISM": "false"}
    children, reason = [], "ended"
    for rank in range(2 if plan.group == "ranks" else 1):
        command = [sys.executable, "-m", "strop.run.smoke", json.dumps(asdict(replace(plan, rank=rank)))]
        log = (Path(plan.folder) / f"{plan.group}-{rank}.log").open("w+b")
        children.append(ChildProcess(command, environment, log))
    for child in reversed(children):  # the reason that stays is that of rank 0
        status = child.end(max(end - time.monotonic(), 0.0))
        late = status < 0 and time.monotonic() >= end
        reason = "was not done when the time was up; give it more by --limit" if late else child.exit_reason()
        child.close()
    lines = plan.file.read_text().splitlines() if plan.file.is_file() else []
    written = {one.subject: one for one in (Finding(**json.loads(line)) for line in lines)}
    broken = next((one.subject for one in written.values() if one.level == "error"), None)
    for name in names:
        if name not in written and broken is None:
            broken = name
            yield outcome(name, "error", f"its process {reason}")
        else:
            yield written.get(name, outcome(name, "note", f"not run, because {broken} failed"))


if __name__ == "__main__":
    main()
