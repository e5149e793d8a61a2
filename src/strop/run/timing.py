"""How long a step takes, measured before the run begins: some decoding and small micro-batches, on the loaded model.

    speed = measure(engine, trainer, config, data.train)
    found = of_time(config, speed, data.train)        # "a step takes at most 12 min 10 s, if all 128 completions …"

The time of decoding follows from the tokens a second with as many sequences as the run has at once. That of an update
follows from its multiplications (the layers' parameters for each computed token, the head's for each scored one) and
its micro-batches, each of which adds the same for gradients. Nothing is left behind: the gradients are dropped, the
samples are cancelled, and no random state is used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import nn

from strop.base.progress import doing
from strop.base.text import duration
from strop.base.types import IntArray
from strop.config.schema import RunConfig
from strop.data.dataset import Dataset
from strop.engines.protocol import Request
from strop.engines.torch.engine import TorchEngine
from strop.model.kernels.modules import SharedLayout
from strop.model.policy import PackedInputs, Policy
from strop.run.finding import Finding
from strop.training.learner import objective_of
from strop.training.optimizer import MasterAdamW
from strop.training.step import Trainer

ENOUGH, LEAST_STEPS, MOST = 0.3, 8, 0.5  # seconds and decode steps that are enough, and the most seconds
TINY = 1e10  # products of a run that is over before it is measured
SMALLEST, GROWTH = 16, 4  # scored tokens of the first micro-batch that is measured, times so many in the next
FORWARD = 1 / 3  # share of a micro-batch that its forward pass takes
MOMENTS = 1 << 22  # parameters of the optimizer whose step is measured
LONG, MINUTES = 3600.0, 600.0  # seconds of a step that is too long, and of one that is not
# Less teaches little.
LEAST = {"batch.prompts_per_step": 8, "batch.samples_per_prompt": 8, "sampling.max_new_tokens": 64}
LOOKED_AT = 100  # prompts whose mean length counts


@dataclass(frozen=True)
class Speed:
    """What was measured.

    Attributes:
        decoded: tokens a second, all sequences together.
        product: seconds of a parameter for a token, forward and backward.
        micro_batch: seconds that a micro-batch adds.
        optimizer: seconds of an optimizer step.
        layers, head: parameters that a computed token and a scored one are multiplied with.
        shares: whether the completions of a prompt share it in a micro-batch.
    """

    decoded: float
    product: float
    micro_batch: float
    optimizer: float
    layers: int
    head: int
    shares: bool


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step whose completions all reach their budget."""

    decoding: float
    update: float

    @property
    def whole(self) -> float:
        """Both."""
        return self.decoding + self.update


def is_tiny(config: RunConfig, policy: Policy) -> bool:
    """Whether a run is over in a few seconds anyway."""
    return config.steps * _samples(config) * config.sampling.max_new_tokens * policy.computing_parameters < TINY


@doing("measuring how long a step takes")
def measure(engine: TorchEngine, trainer: Trainer, config: RunConfig, dataset: Dataset) -> Speed:
    """Measure decoding and updates for the first stage of a run; takes at most a few seconds.

    Args:
        engine: idle; a version of the weights is published to it before it generates for the run.
        trainer: of the policy.
        config: the configuration of the run.
        dataset: the training problems.
    """
    config, policy, prompt = config.stage_configs()[0], trainer.policy, dataset[0].prompt_ids
    assert isinstance(policy, Policy)
    at_once = min(config.engine.slots, _samples(config))
    decoded = _decoded(engine, Request("timing", prompt, config.sampling, seed=0, n=at_once))
    head = policy.head_weight.numel()
    layers = policy.computing_parameters - head
    prompts = [dataset[index].prompt_ids for index in range(min(len(dataset), config.batch.prompts_per_step))]
    product, micro_batch = _micro_batches(trainer, config, prompts, layers, head)
    return Speed(decoded, product, micro_batch, _optimizer_step(trainer), layers, head, policy.shares_beginnings)


def _decoded(engine: TorchEngine, request: Request) -> float:
    """Tokens a second of all samples of a request, without the time of its prompt."""
    engine.submit(request)
    try:
        engine.step()
        tokens, steps, begin = 0, 0, time.perf_counter()
        while engine.unfinished and (seconds := time.perf_counter() - begin) < MOST:
            if steps >= LEAST_STEPS and seconds >= ENOUGH:
                break
            tokens += engine.unfinished
            engine.step()
            steps += 1
        return tokens / (time.perf_counter() - begin) if tokens else math.inf
    finally:
        engine.cancel(request.id)
        engine.step()


def _micro_batches(
    trainer: Trainer, config: RunConfig, prompts: Sequence[IntArray], layers: int, head: int
) -> tuple[float, float]:
    """Seconds of a product, and what a micro-batch adds, from those of a small and of a larger one."""
    policy, budget = trainer.policy, config.sampling.max_new_tokens
    assert isinstance(policy, Policy)
    longest = budget + max(map(len, prompts))
    most = min(max(config.batch.tokens_per_microbatch // longest, 1), _samples(config)) * budget
    tokens = min(SMALLEST, most)
    found: dict[float, list[float]] = {}  # seconds by products
    while True:
        packed = _packed(policy, prompts, tokens, config)
        begin = _now(policy.device)
        with trainer.gradients_dropped():
            policy(packed, trainer.temperature)[0].sum().backward()
            seconds = _now(policy.device) - begin
        computed = packed.token_ids
        if policy.shares_beginnings:
            computed = SharedLayout.of(computed, packed.positions, packed.lengths, packed.rows).token_ids
        times = found.setdefault(len(computed) * layers + len(packed.rows) * head, [])
        times.append(seconds)
        if len(times) == 1 and (seconds < ENOUGH or tokens == most):
            continue  # the first of a size has more to do
        if tokens == most or (seconds >= ENOUGH and len(found) > 1):
            break
        tokens = min(GROWTH * tokens, most)
    small, large = min(found), max(found)
    less, more = found[small][-1], found[large][-1]
    product = (more - less) / (large - small) if len(found[small]) > 1 and large > small else 0.0
    micro_batch = less - product * small
    if product <= 0 or micro_batch < 0:
        return more / large, 0.0
    return product, micro_batch


def _packed(policy: Policy, prompts: Sequence[IntArray], tokens: int, config: RunConfig) -> PackedInputs:
    """Completions with so many tokens together, each within the budget, of as few prompts as the run would have."""
    budget, samples = config.sampling.max_new_tokens, config.batch.samples_per_prompt
    sequences, sizes = [], [min(budget, tokens - begin) for begin in range(0, tokens, budget)]
    for place, size in enumerate(sizes):
        prompt = prompts[place // samples % len(prompts)][: 2 * tokens].tolist()
        sequences.append(prompt + [7919 * (place + token) % policy.vocabulary for token in range(size)])  # any tokens
    packed = PackedInputs.whole(sequences)
    pairs = zip(sequences, sizes, strict=True)
    scored = torch.cat([torch.arange(1, len(each)) >= len(each) - size for each, size in pairs])
    return replace(packed, rows=packed.rows[scored], targets=packed.targets[scored]).to(policy.device)


def _optimizer_step(trainer: Trainer) -> float:
    """Seconds of an optimizer step, from that of an optimizer with fewer parameters."""
    parameters = trainer.optimizer.parameters.values()
    one, whole = next(iter(parameters)), sum(parameter.numel() for parameter in parameters)
    few = nn.Parameter(torch.zeros(min(whole, MOMENTS), dtype=one.dtype, device=one.device))
    optimizer = MasterAdamW(trainer.settings, [("few", few)])
    for _ in range(2):  # the first one makes the moments
        few.grad = torch.ones_like(few)
        optimizer.accumulate()
        begin = _now(few.device)
        optimizer.step(0.0, optimizer.grad_norm())
    return (_now(few.device) - begin) * whole / few.numel()


def _now(device: torch.device) -> float:
    """The time, once the device has computed what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


# ---------------------------------------------------------------------- what follows


def step_time(config: RunConfig, speed: Speed, prompt: float) -> StepTime:
    """The time of a step of the first stage, if all completions have `max_new_tokens`.

    `prompt` is the mean length of a prompt.
    """
    batch, algorithm = config.batch, config.algorithm
    samples, budget = _samples(config), config.sampling.max_new_tokens
    of_prompts = batch.prompts_per_step * prompt
    decoding = samples * budget / speed.decoded + FORWARD * of_prompts * speed.layers * speed.product
    computed = samples * budget + of_prompts * (1 if speed.shares else batch.samples_per_prompt)
    products = (computed * speed.layers + samples * budget * speed.head) * speed.product
    fitting = max(int(batch.tokens_per_microbatch // (prompt + budget)), 1)
    updates = batch.updates_per_step
    one_pass = products + updates * math.ceil(samples / updates / fitting) * speed.micro_batch
    forwards = algorithm.needs_old_scores + algorithm.needs_reference + (config.critic is not None)
    forwards += batch.passes_per_batch * objective_of(algorithm).needs_scores
    passes, steps = batch.passes_per_batch, updates * batch.passes_per_batch
    if config.critic is not None:
        passes += config.critic.passes_per_batch
        steps += config.critic.updates_per_step * config.critic.passes_per_batch
    return StepTime(decoding, (passes + FORWARD * forwards) * one_pass + steps * speed.optimizer)


def of_time(config: RunConfig, speed: Speed, dataset: Dataset) -> Finding:
    """How long a step takes; where that is very long, which settings make it minutes."""
    config = config.stage_configs()[0]
    prompt = fmean(len(dataset[index].prompt_ids) for index in range(min(len(dataset), LOOKED_AT)))
    found = step_time(config, speed, prompt)
    said = (
        f"a step takes up to {_seconds(found.whole)}, if all {_samples(config):,} completions have "
        f"{config.sampling.max_new_tokens:,} tokens: decoding {_seconds(found.decoding)} "
        f"({speed.decoded:,.0f} tokens a second), the update {_seconds(found.update)}"
    )
    if found.whole <= LONG:
        return Finding("step-time", "ok", "time", said)
    changed, least = _shorter(config, speed, prompt)
    sets = " ".join(f"--set {key}={value}" for key, value in changed.items())
    way_out = f"{sets} makes it up to {_seconds(least)}" if sets else "take a smaller model"
    return Finding("step-time", "warning", "time", said, way_out)


def _shorter(config: RunConfig, speed: Speed, prompt: float) -> tuple[dict[str, int], float]:
    """Settings with which a step takes minutes, or as short as they make it, and its seconds with them.

    Of the sizes of a step the one that is furthest above `LEAST` is halved, again and again.
    """
    sizes = {"batch.prompts_per_step": config.batch.prompts_per_step,
             "batch.samples_per_prompt": config.batch.samples_per_prompt,
             "sampling.max_new_tokens": config.sampling.max_new_tokens}  # fmt: skip
    before = dict(sizes)
    while (seconds := step_time(config, speed, prompt).whole) > MINUTES:
        name = max(sizes, key=lambda key: sizes[key] / LEAST[key])
        if sizes[name] <= LEAST[name]:
            break
        sizes[name] = max(sizes[name] // 2, LEAST[name])
        section, _, key = name.partition(".")
        changed = getattr(config, section).model_copy(update={key: sizes[name]})
        config = config.model_copy(update={section: changed})
    return {name: size for name, size in sizes.items() if size != before[name]}, seconds


def _samples(config: RunConfig) -> int:
    return config.batch.prompts_per_step * config.batch.samples_per_prompt


def _seconds(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"
