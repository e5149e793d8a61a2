"""The inputs of a simulation: lengths of completions, costs in seconds, and the shape of the run. G samples a group."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from strop.base.pieces import Settings
from strop.base.types import InputError
from strop.config.edits import explain
from strop.config.parse import edit, parse
from strop.config.schema import RunConfig
from strop.engines.settings import Vllm
from strop.orchestration.settings import WindowMode
from strop.run.folder import RunFolder

if TYPE_CHECKING:
    from strop.run.memory import MemoryPlan, Room

IntLengths = NDArray[np.int64]


class Lengths(Protocol):
    """Draws the lengths of a group's completions."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, samples: int) -> IntLengths:
        """Tokens of each completion of one group, int [G], each at least 1."""
        ...


@dataclass(frozen=True)
class ConstantLength:
    """Every completion has `tokens` tokens."""

    tokens: int

    def draw(self, rng: np.random.Generator, samples: int) -> IntLengths:
        """int [G], all the same."""
        return np.full(samples, self.tokens, np.int64)


@dataclass(frozen=True)
class LogNormal:
    """Log-normal around `median`, exp(N(ln median, sigma²)), cut at `limit` tokens.

    `within` is the share of the variance of ln length that samples of one prompt do not have in common: 1 draws every
    completion for itself, 0 gives a group one length.
    """

    median: float
    sigma: float
    limit: int
    within: float = 1.0

    def __post_init__(self) -> None:
        if self.median < 1 or self.sigma < 0 or self.limit < 1 or not 0 <= self.within <= 1:
            raise InputError(f"lengths {self}: median and limit are at least 1, sigma at least 0, within from 0 to 1")

    def draw(self, rng: np.random.Generator, samples: int) -> IntLengths:
        """int [G]."""
        own, common = rng.normal(size=samples), rng.normal()
        z = np.sqrt(self.within) * own + np.sqrt(1 - self.within) * common
        return np.clip(np.rint(self.median * np.exp(self.sigma * z)), 1, self.limit).astype(np.int64)


@dataclass(frozen=True)
class Straggling:
    """Lengths of `of`, a share of which (completions, not groups) is `factor` times as long: a long tail."""

    of: Lengths
    share: float
    factor: float

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and self.factor >= 1):
            raise InputError(f"stragglers: a share from 0 to 1 and a factor of at least 1, not {self}")

    def draw(self, rng: np.random.Generator, samples: int) -> IntLengths:
        """int [G]."""
        lengths = self.of.draw(rng, samples)
        slow = rng.random(samples) < self.share
        return np.where(slow, np.rint(lengths * self.factor), lengths).astype(np.int64)


def parse_lengths(text: str, limit: int) -> Lengths:
    """Lengths from `--lengths`: `constant:8000`, `lognormal:MEDIAN,SIGMA[,WITHIN]`; `+SHARExFACTOR` adds stragglers.

    Raises:
        InputError: it is none of these.
    """
    body, plus, tail = text.partition("+")
    name, _, numbers = body.partition(":")
    try:
        found = _named(name, [float(number) for number in numbers.split(",")], limit)
        if plus:
            share, _, factor = tail.partition("x")
            found = Straggling(found, float(share), float(factor))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"--lengths {text}: write constant:TOKENS or lognormal:MEDIAN,SIGMA, and +0.05x30 behind it for 5 % of "
            "completions 30 times as long"
        ) from error
    return found


def _named(name: str, numbers: Sequence[float], limit: int) -> Lengths:
    if name == "constant" and len(numbers) == 1 and numbers[0] >= 1:
        return ConstantLength(min(int(numbers[0]), limit))
    if name == "lognormal" and 2 <= len(numbers) <= 3:
        return LogNormal(numbers[0], numbers[1], limit, *numbers[2:])
    raise ValueError(name)


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Costs(Settings):
    """Costs in seconds; by default each is 0.

    A decode step of a generator with n running sequences, whose prompts and completions so far have X tokens together,
    takes `decode_step + decode_sequence·n + decode_context·X`; each sequence gains a token. An update of R
    trainer ranks on T tokens takes `train_update + train_token·T / R`.

    Attributes:
        decode_step: fixed cost of a decode step: reading weights, launching kernels.
        decode_sequence: added for each running sequence.
        decode_context: added for each token of their contexts (attention over the KV cache).
        start_sequence: to start a sequence; its share of the prompt's prefill.
        verdict: from a completion's last token to its verdict, while generation goes on.
        train_step: fixed cost of an update phase (old and reference scores, offloading).
        train_update: each optimizer update.
        train_token: each token, prompts included, on one rank.
        publish: a publication of weights, as the controller waits for it.
        swap: pause of each generator while it loads new weights.
        record_step: what the controller does between two steps: metrics, rollouts, checkpoints.
        record_token: added for each generated token.
    """

    decode_step: Seconds = 0.0
    decode_sequence: Seconds = 0.0
    decode_context: Seconds = 0.0
    start_sequence: Seconds = 0.0
    verdict: Seconds = 0.0
    train_step: Seconds = 0.0
    train_update: Seconds = 0.0
    train_token: Seconds = 0.0
    publish: Seconds = 0.0
    swap: Seconds = 0.0
    record_step: Seconds = 0.0
    record_token: Seconds = 0.0

    def decoding(self, steps: float, running: int, context: float) -> float:
        """Seconds of `steps` decode steps in a row of `running` sequences, `context` tokens together at the first."""
        # The context grows by one token a sequence and step: X·m + n·m(m − 1)/2 over m steps.
        grown = steps * context + running * steps * (steps - 1) / 2
        return steps * (self.decode_step + self.decode_sequence * running) + self.decode_context * grown

    def updating(self, tokens: float, updates: int, ranks: int) -> float:
        """Seconds of `updates` optimizer updates on `tokens` tokens in all."""
        return self.train_step + updates * self.train_update + self.train_token * tokens / ranks

    def recording(self, tokens: float) -> float:
        """Seconds the controller takes to write down a step of `tokens` generated tokens."""
        return self.record_step + self.record_token * tokens

    def edited(self, pairs: Sequence[str]) -> Costs:
        """These costs with `name=seconds` changes.

        Raises:
            InputError: an unknown name, or no number of seconds.
        """
        changes: dict[str, str] = {}
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if not equals:
                raise InputError(f"--cost {pair}: write it as NAME=SECONDS, e.g. decode_step=0.01")
            changes[name.strip()] = value.strip()
        return costs_from(self.model_dump() | changes, "--cost")


def costs_from(data: Mapping[str, object], origin: str) -> Costs:
    """Costs from plain values.

    Raises:
        InputError: naming `origin`, the cost and what would be valid.
    """
    try:
        return Costs.model_validate(dict(data))
    except ValidationError as error:
        known = ", ".join(Costs.model_fields)
        raise InputError(f"{origin}: {explain(error)}; costs are {known}, in seconds") from error


@dataclass(frozen=True)
class Setup:
    """The shape of a run.

    Attributes:
        prompts_per_step, samples_per_prompt, max_lag, updates_per_step, passes_per_batch: as in a recipe.
        refill: whether a dropped group is replaced at once.
        drop: share of groups that selection drops, whatever their lengths.
        generators: engines that generate.
        trainers: ranks that train together.
        slots: sequences that run at once in each generator.
        colocated: generators and trainer take turns on the same devices, as in one process.
        window: `adaptive` lets generators run ahead as far as keeps the trainer from waiting; `full`, as far as the lag
            allows. Where generators and trainer take turns it is always full.
        assign: `group` gives a prompt's samples to generators in ticket order, as the loop does; `sample` spreads them.
        prompt_tokens: mean length of a prompt; it is context when decoding, and trained through.
        masked_from: completions of so many tokens or more were truncated and are not trained on; None trains on all.
    """

    prompts_per_step: int
    samples_per_prompt: int
    max_lag: int = 0
    updates_per_step: int = 1
    passes_per_batch: int = 1
    refill: bool = False
    drop: float = 0.0
    generators: int = 1
    trainers: int = 1
    slots: int = 1 << 20
    colocated: bool = False
    window: WindowMode = "adaptive"
    assign: Literal["group", "sample"] = "group"
    prompt_tokens: float = 0.0
    masked_from: int | None = None

    def __post_init__(self) -> None:
        least = {
            "prompts_per_step": self.prompts_per_step, "samples_per_prompt": self.samples_per_prompt,
            "updates_per_step": self.updates_per_step, "passes_per_batch": self.passes_per_batch,
            "generators": self.generators, "trainers": self.trainers, "slots": self.slots,
        }  # fmt: skip
        for name, value in least.items():
            if value < 1:
                raise InputError(f"{name}={value}: at least 1")
        if self.max_lag < 0 or not 0 <= self.drop < 1:
            raise InputError(f"max_lag={self.max_lag}, drop={self.drop}: not below 0, and drop below 1")

    @property
    def at_once(self) -> int:
        """The most sequences that a generator can share a decode step among."""
        open_sequences = (self.max_lag + 1) * self.prompts_per_step * self.samples_per_prompt
        return min(self.slots, -(-open_sequences // self.generators))

    def trained(self, tokens: int) -> float:
        """Tokens, its prompt's included, that a completion of `tokens` tokens gives the trainer to compute."""
        masked = self.masked_from is not None and tokens >= self.masked_from
        return 0.0 if masked else tokens + self.prompt_tokens

    @property
    def name(self) -> str:
        """Its name in papers."""
        if self.max_lag:
            return f"PipelineRL-{self.max_lag}"
        return "synchronous" if self.updates_per_step == 1 else f"PPO-off-policy-{self.updates_per_step}"

    def pipeline(self, k: int) -> Setup:
        """The same work as PipelineRL-k: generators up to k steps ahead."""
        return replace(self, max_lag=k)

    def alternating(self, k: int) -> Setup:
        """The same work as PPO-off-policy-k: phases of k updates on a batch k times as large."""
        prompts = self.prompts_per_step * k
        return replace(self, max_lag=0, prompts_per_step=prompts, updates_per_step=self.updates_per_step * k)

    def schedules(self, lags: Sequence[int]) -> list[Setup]:
        """For each k PipelineRL-k (k = 0: synchronous), and for k ≥ 2 also PPO-off-policy-k."""
        return [each for k in lags for each in (self.pipeline(k), *((self.alternating(k),) if k >= 2 else ()))]


def setup_of(config: RunConfig) -> Setup:
    """The batch, lag, generators, trainers and slots of a configuration."""
    batch = config.batch
    return Setup(
        prompts_per_step=batch.prompts_per_step,
        samples_per_prompt=batch.samples_per_prompt,
        max_lag=config.orchestration.max_lag,
        window=config.orchestration.window,
        updates_per_step=batch.updates_per_step,
        passes_per_batch=batch.passes_per_batch,
        refill=config.algorithm.selection.refill,
        generators=config.orchestration.generators,
        trainers=config.orchestration.trainers,
        slots=config.engine.slots,
        colocated=config.orchestration.in_process,
        masked_from=config.sampling.max_new_tokens if config.algorithm.truncation_mask.startswith("drop") else None,
    )


NODE = 8  # GPUs of a host
WIDTHS = (1, 2, 4, 8)


def splits(config: RunConfig, gpus: int, room: Room) -> Iterator[MemoryPlan]:
    """The plans of memory with 1, 2, 4, … trainers, all other GPUs generating, by servers that are as narrow as may be.

    Args:
        config: a run with an engine.
        gpus: how many there are, on hosts of `NODE` each.
        room: of each GPU and of each host.

    Raises:
        InputError: no such model, or one that cannot be trained.
    """
    from strop.run.devices import placement_of  # here: these load torch, which a simulation does not need
    from strop.run.memory import planned
    from strop.run.update_memory import outline

    policy = outline(config.model)
    hosts = (NODE,) * (gpus // NODE) + ((gpus % NODE,) if gpus % NODE else ())
    trainers = 1
    while trainers < gpus:
        for width in WIDTHS if isinstance(config.engine, Vllm) else WIDTHS[:1]:
            sets = [f"orchestration.trainers={trainers}", f"orchestration.generators={(gpus - trainers) // width}"]
            if width > 1:
                sets.append(f"engine.tensor_parallel={width}")
            if len(hosts) > 1:
                sets += ["orchestration.executor=ray", f"orchestration.ray.train_in_cluster={trainers > NODE}".lower()]
            try:
                split = edit(config, sets)
                found = planned(split, policy, room=room, placement=placement_of(split, hosts))
            except InputError:  # there is no generator, or a server does not fit on a host
                continue
            if found.finding.level == "ok":
                yield found
                break
        trainers *= 2


class Cost(NamedTuple):
    """A cost in seconds, and where it comes from."""

    seconds: float
    source: str


SKYWORK_LENGTHS = LogNormal(median=7000, sigma=0.6, limit=16_384)  # taken for Table 9, see docs/measured/planning.md
SKYWORK_MEAN = 7887  # tokens of them, of the 1,024 responses of a step
_GENERATION = "Skywork-OR1, Table 9: a 7B model, an H800 an engine; calibrated on two of its four times"
_TRAINING = "Skywork-OR1, Table 8: a 7B model, 24 s for the tokens of a step on 32 H800s, 4.8 s an update"

# The defaults of `strop plan`; all other costs are 0. A run that is planned on replaces them (`measured`).
CONSTANTS = {
    "decode_step": Cost(0.0102, _GENERATION),
    "decode_sequence": Cost(6.92e-4, _GENERATION),
    "train_update": Cost(4.8, _TRAINING),
    "train_token": Cost(24.0 * 32 / (1024 * SKYWORK_MEAN), _TRAINING),
    "record_token": Cost(2.8e-3 / 8192, "bench/controller.py: 2.8 ms for a completion of 8,192 tokens, one core"),
}


def default_lengths(limit: int) -> LogNormal:
    """Lengths of completions of at most `limit` tokens: Skywork's, or around half of a smaller budget."""
    return LogNormal(median=min(SKYWORK_LENGTHS.median, max(limit // 2, 1)), sigma=SKYWORK_LENGTHS.sigma, limit=limit)


def costs_of(constants: Mapping[str, Cost] = CONSTANTS) -> Costs:
    """The costs of a table."""
    return Costs(**{name: constant.seconds for name, constant in constants.items()})


_NEEDED = ("seconds/step", "tokens/generated", "trained_tokens")
_TENTH = 1.2816  # standard deviations above the median that a tenth of a normal distribution exceeds


def measured(folder: RunFolder) -> tuple[dict[str, Cost], LogNormal]:
    """What `strop plan RUN` computes with: the run's costs for `CONSTANTS`, a log-normal of its completions' lengths.

    Everything is taken from the second half of its steps. An update's seconds are put down to its tokens. Of decoding a
    run says how long it took altogether: `decode_step` and `decode_sequence` keep the ratio of `CONSTANTS`.

    Raises:
        InputError: it has trained fewer than two steps.
    """
    rows = [row for row in folder.read_metrics() if all(row.get(name) for name in _NEEDED)]
    rows = rows[-(len(rows) // 2) :] if len(rows) > 1 else []
    if not rows:
        raise InputError(f"{folder.path} has no two trained steps to take costs from; train it for a few")

    def mean(name: str) -> float:
        return fmean(row.get(name) or 0.0 for row in rows)

    config = parse(folder.read_json("config.json"), str(folder.config_path), to_run=False)
    setup = setup_of(config)
    busy = mean("seconds/rollout")
    if not setup.colocated:
        busy = setup.generators * (1 - mean("idle/generators")) * mean("seconds/step")
    tokens, longest = mean("tokens/generated"), mean("length/max") if setup.max_lag == 0 else 0.0
    steps = max(tokens / setup.at_once, setup.generators * longest)  # of all generators
    step, sequence = CONSTANTS["decode_step"].seconds, CONSTANTS["decode_sequence"].seconds
    slower = busy / (step * steps + sequence * tokens)
    found = {
        "decode_step": step * slower,
        "decode_sequence": sequence * slower,
        "train_update": 0.0,
        "train_token": mean("seconds/update") * setup.trainers / mean("trained_tokens"),
        "publish": mean("seconds/publish"),
        "record_step": max(mean("seconds/other") - mean("seconds/publish"), 0.0),
    }
    source = f"measured in {folder.path}"
    median, tenth = mean("length/p50"), mean("length/p90")
    lengths = LogNormal(max(median, 1.0), math.log(max(tenth / median, 1.0)) / _TENTH, config.sampling.max_new_tokens)
    return {name: Cost(seconds, source) for name, seconds in found.items()}, lengths
