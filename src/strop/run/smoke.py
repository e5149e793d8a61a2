"""`strop smoke`: short checks of training and generation on this machine. Each check passes, or fails with a reason.

Each group of checks runs in separate processes, so a crash or a hang in one group does not affect the others.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from strop.base.machine import GIB, memory
from strop.base.metrics import values
from strop.base.sample import Sample
from strop.base.text import markdown_table
from strop.base.types import Completion, InputError, IntArray, StropError, first_line
from strop.config.schema import RunConfig
from strop.engines.build import build_engine
from strop.engines.protocol import Engine, Request, Sampling, Streaming
from strop.engines.settings import PYTHON_VARIABLE, EngineSettings, Vllm
from strop.model.device import pick_device
from strop.model.files import cast_parameters
from strop.model.policy import PackedInputs, Policy, load_policy
from strop.recipes.resolve import resolve
from strop.run.finding import Finding
from strop.run.learners import Modules, join, make_learner
from strop.training.learner import Learner
from strop.training.packing import pack
from strop.training.step import score_samples
from strop_verify.child_process import ChildProcess, die_with_parent, import_path


def resident(peak: bool = False) -> int:
    """Resident memory of this process in bytes, now or at its peak.

    getrusage is not used, because a process inherits its peak from the parent.
    """
    field = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


# Large initial weights make the distributions far from uniform, so that wrong weights show in the log-probs.
SHAPE = (
    "{hidden_size=256, layers=4, heads=4, kv_heads=2, head_dim=64, intermediate_size=768, max_positions=1024, "
    "initializer_range=0.1}"
)
SEQUENCES, LENGTH, PROMPT = 8, 256, 32  # of the update: whole sequences and the prompts in them, in tokens
PROMPTS, SAMPLES, NEW_TOKENS = 4, 4, 64
LONGEST = 4096  # new tokens of the sequences that are in flight while the weights change; they are cancelled later
GAP = 0.05  # nats, between log-probs of the same tokens by two ways of computing in bfloat16, on average
RANKS_GAP = 0.03  # relative, between the gradient norms of one rank and of two, in bfloat16
EXCHANGE_SECONDS = 60.0


@dataclass(frozen=True)
class SmokePlan:
    """The work of one process: the group of checks, the device, and the folder that receives its outcomes."""

    group: str
    device: str
    model: str | None
    vllm: str | None
    folder: str
    parent: int
    rank: int = 0

    @property
    def outcomes(self) -> Path:
        """The file of outcomes, one JSON object per line: check, passed, found, seconds."""
        return Path(self.folder) / f"{self.group}-{self.rank}.jsonl"

    @property
    def config(self) -> RunConfig:
        """The configuration of a run with this model in bfloat16."""
        model = f"model.fresh={SHAPE}" if self.model is None else f"model.path={json.dumps(self.model)}"
        return resolve("grpo", [model, "model.dtype=bfloat16", f"device={self.device}", "optim.lr=1e-3"])


class Checks:
    """Runs checks one after another and appends each outcome to the file of the plan."""

    def __init__(self, plan: SmokePlan) -> None:
        self.plan = plan
        plan.outcomes.touch()

    def __call__(self, name: str, check: Callable[[], str]) -> bool:
        """Run a check and return whether it passed."""
        begin = time.perf_counter()
        try:
            passed, found = True, check()
        except Exception as error:  # whatever it is, it is the finding
            passed, found = False, first_line(error)
            if not isinstance(error, StropError):
                found = f"{type(error).__name__}: {found}"
        outcome = {"check": name, "passed": passed, "found": found, "seconds": time.perf_counter() - begin}
        with self.plan.outcomes.open("a") as file:
            file.write(json.dumps(outcome) + "\n")
        return passed


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


def train_once(learner: Learner) -> dict[str, float]:
    """Take one optimizer step and return its metrics."""
    config = learner.settings
    chosen = samples(learner.policy.vocabulary)
    ranks, budget = learner.trainer.ranks, 2 * LENGTH
    logprobs, _ = score_samples(learner.policy, chosen, config.temperature, budget, ranks)
    for sample, own in zip(chosen, logprobs, strict=True):
        sample.logprobs[:] = own
    update = pack(chosen, config.algorithm.aggregation, budget, ranks.teams)
    found = values(learner.trainer.update(update))
    return {name: float(found[name] or 0.0) for name in ("loss", "grad_norm", "entropy")}


# ---------------------------------------------------------------------- groups


def update_group(plan: SmokePlan, check: Checks) -> None:
    """Check a bfloat16 forward pass and update on one device, and measure the peak memory."""
    device = pick_device(plan.config.device)
    before = _peak(device)
    policy = load_policy(plan.config.model)[0].to(device)
    learner = make_learner(plan.config, Modules(policy))

    def same_as_float32() -> str:
        gap = float(np.abs(_logprobs(policy) - _logprobs(_in_float32(policy))).mean())
        if not gap < GAP:
            raise StropError(f"log-probs differ from float32's by {gap:.3g} nats on average")
        return f"log-probs within {gap:.1g} nats of float32's on average"

    def updated() -> str:
        first = next(policy.parameters())
        kept = first.detach().clone()
        begin = time.perf_counter()
        found = train_once(learner)
        if torch.equal(first, kept):
            raise StropError("the update changed no parameter")
        (Path(plan.folder) / "update.json").write_text(json.dumps(found))
        rate = SEQUENCES * LENGTH / (time.perf_counter() - begin)
        return f"gradient norm {found['grad_norm']:.4g}, {rate:.0f} tokens a second, the first one's start-up included"

    check("bf16 forward", same_as_float32)
    check("bf16 update", updated)
    check("peak memory", lambda: f"{(_peak(device) - before) / GIB:.2f} of {_room(device) / GIB:.0f} GiB")


def engine_group(plan: SmokePlan, check: Checks) -> None:
    """Check the embedded engine: sampling, a weight swap during sampling, and the probe."""
    policy, tokenizer = load_policy(plan.config.model)
    policy.to(pick_device(plan.config.device)).requires_grad_(False)
    settings = EngineSettings(slots=16, share_parameters=False)
    engine = build_engine(settings, plan.config.model, tokenizer, policy)
    _generating(engine, policy, "engine", check)


def vllm_group(plan: SmokePlan, check: Checks) -> None:
    """Start vLLM's server and check it like the embedded engine."""
    policy, tokenizer = load_policy(plan.config.model)
    policy.to(pick_device(plan.config.device)).requires_grad_(False)
    engines: list[Engine] = []

    def start() -> str:
        settings = Vllm(python=plan.vllm, slots=16, memory_fraction=0.3, kv_cache_gib=0.5, eager=True)
        engines.append(build_engine(settings, plan.config.model, tokenizer, policy))
        return f"ready, weights of version {engines[0].weight_version}"

    if check("vLLM server start", start):
        try:
            _generating(engines[0], policy, "vLLM", check)
        finally:
            engines[0].close()


def ranks_group(plan: SmokePlan, check: Checks) -> None:
    """Repeat the update of `update_group` as one of two ranks that shard the model (FSDP2)."""
    learners: list[Learner] = []

    def meet() -> str:
        learners.append(join(plan.config, plan.rank, 2, f"file://{plan.folder}/meet", EXCHANGE_SECONDS))
        return "NCCL" if learners[0].trainer.device.type == "cuda" else "gloo, on the CPU"

    def same_as_one() -> str:
        found = train_once(learners[0])
        single = Path(plan.folder) / "update.json"
        if not single.is_file():
            return f"gradient norm {found['grad_norm']:.4g}; none of one rank to compare it with"
        norm = json.loads(single.read_text())["grad_norm"]
        if not abs(found["grad_norm"] - norm) <= RANKS_GAP * norm:
            raise StropError(f"the gradient norm is {found['grad_norm']:.4g}, one rank's {norm:.4g}")
        return f"gradient norm {found['grad_norm']:.4g}, one rank's {norm:.4g}"

    if check("two ranks meet", meet):
        check("two ranks update", same_as_one)


# The function of each group and the names of its checks, in order.
GROUPS: dict[str, tuple[Callable[[SmokePlan, Checks], None], tuple[str, ...]]] = {
    "update": (update_group, ("bf16 forward", "bf16 update", "peak memory")),
    "engine": (engine_group, ("engine sample", "engine weight swap", "engine probe")),
    "ranks": (ranks_group, ("two ranks meet", "two ranks update")),
    "vllm": (vllm_group, ("vLLM server start", "vLLM sample", "vLLM weight swap", "vLLM probe")),
}


# ---------------------------------------------------------------------- checks that two groups share


def _generating(engine: Engine, policy: Policy, name: str, check: Checks) -> None:
    """Check sampling, a weight swap and the probe of an engine whose version 0 is the weights of `policy`."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, min(policy.vocabulary, 250), PROMPT).astype(np.int32) for _ in range(PROMPTS)]
    before = engine.verify_weights(prompts[0])

    def sample() -> str:
        begin = time.perf_counter()
        _submit(engine, prompts, "first")
        found = _finished(engine)
        seconds = time.perf_counter() - begin
        gaps = [np.abs(_logprobs(policy, c.prompt_ids, c.token_ids) - c.logprobs) for c in found]
        gap = float(np.concatenate(gaps).mean())
        if not gap < GAP:
            raise StropError(f"log-probs differ from the trainer's by {gap:.3g} nats on average")
        tokens = sum(len(completion.token_ids) for completion in found)
        return f"{tokens / seconds:.0f} tokens a second, log-probs within {gap:.1g} nats of the trainer's on average"

    def swap() -> str:
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(0.9)
        _submit(engine, prompts, "second", min(engine.capabilities.max_tokens - PROMPT, LONGEST), watched=True)
        ended = _each_goes_on(engine, "second")
        begin = time.perf_counter()
        engine.update_weights(policy.weights(), 1)
        seconds = time.perf_counter() - begin
        ended += _each_goes_on(engine, "second")
        engine.pause("abort")
        ended += engine.step()
        engine.resume()
        both = sum(len(completion.versions) > 1 for completion in ended)
        if not both:
            raise StropError("no completion in flight went on with the new weights")
        _submit(engine, prompts, "third")
        versions = {span.version for completion in _finished(engine) for span in completion.versions}
        if versions != {1}:
            raise StropError(f"completions are of versions {sorted(versions)}, not of 1")
        return f"{seconds:.2f} s, {both} of {len(ended)} completions in flight went on with it"

    def probe() -> str:
        now, trainer = engine.verify_weights(prompts[0]), _logprobs(policy, prompts[0][:1], prompts[0][1:])
        gap, moved = float(np.abs(now - trainer).mean()), float(np.abs(now - before).mean())
        if not gap < GAP:
            raise StropError(f"log-probs differ from the trainer's by {gap:.3g} nats: old weights were left behind")
        if not moved > gap:
            raise StropError(f"log-probs moved by {moved:.2g} nats with new weights")
        return f"log-probs within {gap:.1g} nats of the trainer's, {moved:.2g} from those of the old weights"

    check(f"{name} sample", sample)
    check(f"{name} weight swap", swap)
    check(f"{name} probe", probe)


def _submit(
    engine: Engine, prompts: list[IntArray], name: str, tokens: int = NEW_TOKENS, watched: bool = False
) -> None:
    sampling = Sampling(max_new_tokens=tokens)
    for number, prompt in enumerate(prompts):
        engine.submit(Request(f"{name}-{number}", prompt, sampling, seed=number, n=SAMPLES, watched=watched))


def _each_goes_on(engine: Engine, name: str) -> list[Completion]:
    """Step until every sequence in flight has one more token. Returns the completions that finished meanwhile."""
    assert isinstance(engine, Streaming)
    since = {(f"{name}-{number}", index): 0 for number in range(PROMPTS) for index in range(SAMPLES)}
    since |= {(one.request_id, one.index): len(one.token_ids) for one in engine.drawn(since)}
    found: list[Completion] = []
    while len(engine.drawn(since)) < engine.unfinished:
        found += engine.step()
    return found


def _finished(engine: Engine) -> list[Completion]:
    """Step until nothing is unfinished and return the completions."""
    found: list[Completion] = []
    while engine.unfinished:
        found += engine.step()
    return found


@torch.no_grad()
def _logprobs(policy: Policy, prompt: IntArray | None = None, completion: IntArray | None = None) -> np.ndarray:
    """Log-probs of a completion under the policy at temperature 1. The default is the first sample of the update."""
    if prompt is None or completion is None:
        ids = samples(policy.vocabulary)[0].token_ids
        prompt, completion = ids[:PROMPT], ids[PROMPT:]
    packed = PackedInputs.whole([np.concatenate((prompt, completion)).tolist()]).to(policy.device)
    found: np.ndarray = policy(packed, 1.0)[0][len(prompt) - 1 :].float().cpu().numpy()
    return found


def _in_float32(policy: Policy) -> Policy:
    copied = policy.frozen_copy()
    cast_parameters(copied, torch.float32)
    return copied


def _peak(device: torch.device) -> int:
    """Peak memory of this process in bytes, on the GPU or in main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resident(peak=True)


def _room(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else memory()[0]


def main() -> None:
    """Run the plan that the only argument holds as JSON."""
    plan = SmokePlan(**json.loads(sys.argv[1]))
    die_with_parent(plan.parent)
    GROUPS[plan.group][0](plan, Checks(plan))


Result = Literal["pass", "FAIL", "not run"]
WORSE: tuple[Result, ...] = ("pass", "not run", "FAIL")


@dataclass(frozen=True)
class CheckOutcome:
    """The result of a check. `found` holds what it measured, or the reason why it failed or was not run."""

    check: str
    result: Result
    found: str
    seconds: float = 0.0


def smoke(
    device: str, model: str | None, vllm: str | None, limit: float, only: Collection[str], tell: Callable[[str], None]
) -> Iterator[CheckOutcome]:
    """Run the groups one after another.

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
                yield CheckOutcome(
                    names[0], "not run", f"no vLLM is named: --vllm /path/to/bin/python or {PYTHON_VARIABLE}"
                )
                continue
            tell(group)
            place = device_of_ranks(device) if group == "ranks" else device
            count = 2 if group == "ranks" else 1
            plans = [SmokePlan(group, place, model, vllm, folder, os.getpid(), rank) for rank in range(count)]
            yield from _run(plans, names, end)


def device_of_ranks(device: str) -> str:
    """`cuda` with two or more GPUs, else `cpu`: NCCL needs a separate GPU for each rank."""
    return device if device == "cuda" and torch.cuda.device_count() > 1 else "cpu"


def _run(plans: Sequence[SmokePlan], names: Sequence[str], end: float) -> Iterator[CheckOutcome]:
    """Run the processes of a group at the same time and yield the worst outcome of each check."""
    folder = Path(plans[0].folder)
    environment = {**os.environ, "PYTHONPATH": import_path(), "TOKENIZERS_PARALLELISM": "false"}
    children = []
    for plan in plans:
        command = [sys.executable, "-m", "strop.run.smoke", json.dumps(asdict(plan))]
        log = (folder / f"{plan.group}-{plan.rank}.log").open("w+b")
        children.append(ChildProcess(command, environment, log))
    found = []
    for plan, child in zip(plans, children, strict=True):
        status = child.end(max(end - time.monotonic(), 0.0))
        late = status < 0 and time.monotonic() >= end
        reason = None if status == 0 else child.exit_reason()
        child.close()
        late_reason = "was not done when the time was up; give it more by --limit"
        found.append(_outcomes(names, _written(plan.outcomes), late_reason if late else reason))
    for each in zip(*found, strict=True):
        yield max(each, key=lambda outcome: WORSE.index(outcome.result))


def _written(file: Path) -> dict[str, CheckOutcome]:
    """Read the outcomes that a process wrote, by check."""
    found: dict[str, CheckOutcome] = {}
    for line in file.read_text().splitlines() if file.is_file() else ():
        given = json.loads(line)
        result: Result = "pass" if given["passed"] else "FAIL"
        found[given["check"]] = CheckOutcome(given["check"], result, given["found"], given["seconds"])
    return found


def _outcomes(names: Sequence[str], written: dict[str, CheckOutcome], reason: str | None) -> list[CheckOutcome]:
    """Return one outcome for each check of a process; `reason` says how the process failed, if it did."""
    found: list[CheckOutcome] = []
    for name in names:
        broken = next((one.check for one in found if one.check not in written or one.result == "FAIL"), None)
        if name in written:
            found.append(written[name])
        elif reason is not None and all(one.check in written for one in found):
            found.append(CheckOutcome(name, "FAIL", f"its process {reason}"))
        else:
            found.append(CheckOutcome(name, "not run", f"{broken} failed before"))
    return found


def as_markdown(findings: Sequence[Finding], outcomes: Sequence[CheckOutcome]) -> str:
    """Return a Markdown table to paste into an issue: the machine first, then the checks."""
    marks = {"ok": "", "note": "note", "warning": "WARNING", "error": "ERROR"}
    rows = [(one.subject, marks[one.level], one.found, "") for one in findings]
    rows += [(one.check, one.result, one.found, f"{one.seconds:.1f}" if one.seconds else "") for one in outcomes]
    return markdown_table(("check", "result", "found", "s"), rows, numbers=("s",))


if __name__ == "__main__":
    main()
