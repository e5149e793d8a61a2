"""Diagnostics of a step's completions: their lengths, reflection and repetition."""

from __future__ import annotations

from collections.abc import Sequence

from strop.algorithms.diagnostics.quantile import Quantile
from strop.algorithms.diagnostics.reflection import PATTERNS, is_reflective, reflections
from strop.algorithms.diagnostics.repetition import measured, repeated_ngrams, repeatness
from strop.base.metrics import Maximum, Mean, Metrics
from strop.base.types import Group, Rollout


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
