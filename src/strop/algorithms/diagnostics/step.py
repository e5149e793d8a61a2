"""Every diagnostic of a training step that follows from its groups and samples."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from strop.algorithms.advantages import GroupRelative, Outcomes
from strop.algorithms.diagnostics.groups import (
    effective_metrics,
    environment_metrics,
    group_metrics,
    interruption_metrics,
    solved_metrics,
)
from strop.algorithms.diagnostics.repetition import first_repetition, measured, repeated_ngrams, repeatness
from strop.base.metrics import Maximum, Mean, Metrics
from strop.base.sample import Sample, sample_id
from strop.base.types import Group, Rollout

GRPO = GroupRelative(normalization="prompt_std", ddof=1)


def credit_metrics(groups: Sequence[Group], samples: Sequence[Sample]) -> Metrics:
    """Advantages over trained tokens from the first repetition on (see `repetition.first_repetition`).

    Args:
        groups: those that the samples were made of; a group's usable rollouts and shaped rewards make GRPO's
            advantage, (r − mean) / (std + 1e-6) with ddof 1.
        samples: with the advantages they are trained with, whatever estimator, whitening or mask made these.

    Returns:
        The mean advantage of these tokens as trained and under GRPO, their share of the trained tokens, and over all
        completions the share that repeats and where repetition begins, in tokens of the completion.
    """
    completions = [rollout.completion for group in groups for rollout in group.rollouts]
    starts = [first_repetition(completion.token_ids) for completion in completions]
    tickets = [group.ticket for group in groups for _ in group.rollouts]
    onset = {
        sample_id(ticket, completion.index, part): len(own.prompt_ids) + max(start - own.start, 0)
        for ticket, completion, start in zip(tickets, completions, starts, strict=True)
        if start is not None
        for part, own in enumerate(completion.sequences)
        if start < own.end
    }
    found = [start for start in starts if start is not None]
    grpo = _grpo_advantages(groups)
    tokens, trained, given, otherwise = 0, 0, 0.0, 0.0
    for sample in samples:
        trained += sample.trained_tokens
        if sample.id in onset:
            start = onset[sample.id]
            advantages = sample.advantages[start:][sample.trained[start:]]
            tokens += len(advantages)
            given += float(advantages.sum(dtype=np.float64))
            otherwise += grpo[sample.completion] * len(advantages)
    return {
        "repetition/share": Mean(len(found), len(starts)),
        "repetition/first_token": Mean(sum(found), len(found)),
        "repetition/token_share": Mean(tokens, trained),
        "repetition/advantage": Mean(given, tokens),
        "repetition/advantage_grpo": Mean(otherwise, tokens),
    }


def _grpo_advantages(groups: Sequence[Group]) -> dict[int, float]:
    """GRPO's advantage of every usable rollout, by the number of its sample."""
    counted = [(index, group.ticket, rollout) for index, group in enumerate(groups) for rollout in group.usable]
    if not counted:
        return {}
    outcomes = Outcomes(
        rewards=np.array([rollout.reward for _, _, rollout in counted], dtype=np.float64),
        group=np.array([index for index, _, _ in counted], dtype=np.int32),
        lengths=np.ones(len(counted), dtype=np.int32),
        survives=np.ones(len(counted), dtype=np.bool_),
    )
    numbers = [sample_id(ticket, rollout.completion.index) for _, ticket, rollout in counted]
    return dict(zip(numbers, GRPO.per_completion(outcomes).tolist(), strict=True))


PATTERNS = ("wait,", "recheck", "retry", "alternatively,", "however,")


def reflections(text: str) -> dict[str, int]:
    """How often each pattern occurs in the lower-cased text.

    The paper's five strings, as they stand there. Its released code leaves capitals as they are, so that "Wait," does
    not count, and asks for a comma or a space after "recheck"; here a sentence may begin with the word.
    """
    lowered = text.lower()
    return {pattern: lowered.count(pattern) for pattern in PATTERNS}


def is_reflective(text: str) -> bool:
    """Whether any of the patterns occurs."""
    lowered = text.lower()
    return any(pattern in lowered for pattern in PATTERNS)


@dataclass(frozen=True)
class Quantile:
    """The q-quantile of all values, linear between neighbours; it carries them all, so that it can be merged.

    For one number a completion, not a token.
    """

    values: tuple[float, ...]
    q: float

    def merge(self, other: Quantile) -> Quantile:
        if other.q != self.q:
            raise ValueError(f"the quantiles {self.q} and {other.q} are of different things")
        return Quantile(self.values + other.values, self.q)

    @property
    def value(self) -> float | None:
        return float(np.quantile(self.values, self.q)) if self.values else None


def length_metrics(groups: Sequence[Group]) -> Metrics:
    """Lengths in tokens of all completions, and of those that are correct, reflective, or both (ORZ, Figure 4)."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    lengths = tuple(float(_length(r)) for r in rollouts)
    reflective = [r for r in rollouts if is_reflective(r.completion.text)]
    return {
        "length/mean": Mean(sum(lengths), len(lengths)),
        "length/max": Maximum(max(lengths, default=None)),
        "length/p50": Quantile(lengths, 0.5),
        "length/p90": Quantile(lengths, 0.9),
        "length/correct": _mean_length([r for r in rollouts if _is_correct(r)]),
        "length/reflective": _mean_length(reflective),
        "length/correct_reflective": _mean_length([r for r in reflective if _is_correct(r)]),
    }


def reflection_metrics(groups: Sequence[Group]) -> Metrics:
    """The share of completions that reflect, and how often each pattern occurs in one."""
    texts = [rollout.completion.text for group in groups for rollout in group.rollouts]
    found = [reflections(text) for text in texts]
    counts: Metrics = {
        f"reflection/{pattern.rstrip(',')}": Mean(sum(f[pattern] for f in found), len(found)) for pattern in PATTERNS
    }
    return {"reflection/share": Mean(sum(any(f.values()) for f in found), len(found))} | counts


def repetition_metrics(groups: Sequence[Group]) -> Metrics:
    """Repeatness and repeated 20-grams, means over completions; equal texts are looked at once.

    Repeatness, the dearest of all diagnostics, is taken of every k-th completion where the step holds more than
    `repetition.CHARACTERS` characters. Completions too short for an n-gram do not count in the second.
    """
    texts = [rollout.completion.text for group in groups for rollout in group.rollouts]
    sample = measured(texts)
    repeated = {text: repeatness(text) for text in set(sample)}
    ngrams = {text: repeated_ngrams(text) for text in set(texts)}
    ratios = [repeats / total for repeats, total in (ngrams[text] for text in texts) if total]
    return {
        "repetition/repeatness": Mean(sum(repeated[text] for text in sample), len(sample)),
        "repetition/ngram20": Mean(sum(ratios), len(ratios)),
    }


def _mean_length(rollouts: Sequence[Rollout]) -> Mean:
    return Mean(sum(_length(r) for r in rollouts), len(rollouts))


def _length(rollout: Rollout) -> int:
    return len(rollout.completion.token_ids)


def _is_correct(rollout: Rollout) -> bool:
    return rollout.verdict.usable and rollout.verdict.passed


def step_diagnostics(groups: Sequence[Group], samples: Sequence[Sample], survivors: Collection[int]) -> Metrics:
    """Every diagnostic of a step that follows from its groups and samples (docs/metrics.md names them).

    Args:
        groups: all that the step looked at, dropped ones included.
        samples: what is trained on, made of these groups, with the advantages of the update.
        survivors: tickets of the groups that selection kept.

    Returns:
        Mergeable statistics by name; those of two steps merged are those of both together.
    """
    return {
        **group_metrics(groups, survivors),
        **solved_metrics(groups),
        **effective_metrics(groups, samples),
        **interruption_metrics(groups),
        **environment_metrics(groups),
        **length_metrics(groups),
        **reflection_metrics(groups),
        **repetition_metrics(groups),
        **credit_metrics(groups, samples),
    }
