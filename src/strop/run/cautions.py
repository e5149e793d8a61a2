"""What a configuration says that its user may not mean, in a line each: told by a start, a dry run and the doctor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from strop.algorithms.rewards import LengthShaping
from strop.base.types import Completion, Verdict, VersionSpan
from strop.base.view import counted
from strop.config.schema import RunConfig, stage_configs
from strop.data.dataset import Data
from strop.model.settings import ModelSettings
from strop_verify.verdict import Status

USUAL_SCALE = 4  # the most that adapters are usually multiplied by


class Caution(NamedTuple):
    """What is unusual of which topic, and the way out."""

    topic: str
    found: str
    advice: str

    @property
    def line(self) -> str:
        """Both in one line."""
        return f"{self.found}; {self.advice}"


def cautions(config: RunConfig) -> list[Caution]:
    """Those that the configuration alone shows."""
    single = (_without_baseline(config), large_adapters(config.model), _critic_alone(config))
    found = [caution for caution in single if caution is not None]
    return [*found, *_endless_warm_up(config), *_penalties_out_of_reach(config)]


def large_adapters(settings: ModelSettings) -> Caution | None:
    """Adapters that weigh more than `USUAL_SCALE`, as where a small rank is set alone."""
    lora = settings.lora
    if lora is None or lora.alpha <= USUAL_SCALE * lora.rank:
        return None
    return Caution(
        "adapters",
        f"model.lora.rank={lora.rank} and model.lora.alpha={lora.alpha:g}: adapters are multiplied by alpha / rank = "
        f"{lora.alpha / lora.rank:g}, where 1 or 2 is usual",
        f"set model.lora.alpha={2 * lora.rank}",
    )


def few_to_train_on(config: RunConfig, data: Data) -> Caution | None:
    """More of the source is held out than is left, as where a small file meets a recipe's own count."""
    settings, held_out = config.data.held_out, data.held_out
    if settings is None or settings.source is not None or held_out is None or len(held_out) <= data.train.different:
        return None
    whole = len(held_out) + data.train.different
    return Caution(
        "split",
        f"data.held_out.count={len(held_out)} leaves {data.train.different} of the {whole} problems of "
        f"{data.train.name} to train on",
        f"a fifth is usually enough to measure on: data.held_out.count={max(whole // 5, 1)}",
    )


def _without_baseline(config: RunConfig) -> Caution | None:
    """A prompt's only completion is to be compared with others."""
    if not any(stage.batch.samples_per_prompt == 1 for stage in stage_configs(config)):
        return None
    if not config.algorithm.advantage.compares_group:
        return None
    return Caution(
        "groups",
        "batch.samples_per_prompt=1: with no other completion of its prompt to compare with, a completion's advantage "
        "is its reward itself, so that a reward of 0 teaches nothing",
        "8 are usual: raise batch.samples_per_prompt, with fewer prompts_per_step if need be",
    )


def _critic_alone(config: RunConfig) -> Caution | None:
    """The critic's warm-up is as long as the run."""
    if config.critic is None or config.critic.warmup_steps < config.steps:
        return None
    return Caution(
        "critic",
        f"critic.warmup_steps={config.critic.warmup_steps} of {counted(config.steps, 'steps')}: the critic alone "
        "learns, and the policy stays as it is",
        "lower critic.warmup_steps, or take more steps",
    )


def _endless_warm_up(config: RunConfig) -> Iterator[Caution]:
    """The learning rate still rises at the end of the run."""
    stages = stage_configs(config)
    updates = config.steps * max(stage.batch.updates_per_step * stage.batch.passes_per_batch for stage in stages)
    warm_up, rate = stages[0].optim.warmup_steps, stages[0].optim.lr
    if warm_up >= updates and warm_up > 1:
        yield Caution(
            "warm-up",
            f"optim.warmup_steps={warm_up}: the learning rate rises through all {counted(updates, 'updates')} of the "
            f"run, to {rate * updates / warm_up:.2g} of optim.lr={rate:g}",
            "lower optim.warmup_steps, or take more steps",
        )


def _penalties_out_of_reach(config: RunConfig) -> Iterator[Caution]:
    """Length shaping begins beyond the budget, in every stage."""
    stages = stage_configs(config)
    for number in range(max(len(stage.algorithm.shaping) for stage in stages)):
        having = [stage for stage in stages if number < len(stage.algorithm.shaping)]
        if not any(_acts(one.algorithm.shaping[number], one.sampling.max_new_tokens) for one in having):
            shape, budget = having[-1].algorithm.shaping[number], having[-1].sampling.max_new_tokens
            yield Caution(
                "shaping",
                f"algorithm.shaping.{number}: {shape.piece_name()} adds nothing to completions of any length that "
                f"sampling.max_new_tokens={budget} allows",
                "let it begin earlier (its max_tokens), or take it out with algorithm.shaping=[]",
            )


def _acts(shape: LengthShaping, budget: int) -> bool:
    """Whether the term is ever anything but 0: tried with right and wrong completions of several lengths."""
    lengths = {-(-budget * tenth // 10) for tenth in range(1, 11)}
    verdicts = (Verdict(1.0, Status.CORRECT), Verdict(0.0, Status.WRONG))
    return any(shape(_completion(length), verdict) for length in lengths for verdict in verdicts)


def _completion(length: int) -> Completion:
    ids, logprobs = np.zeros(length, np.int32), np.zeros(length, np.float32)
    spans, injected = (VersionSpan(0, 0, length),), np.zeros(length, np.bool_)
    return Completion("", 0, ids[:1], ids, logprobs, spans, injected, "", "stop")
