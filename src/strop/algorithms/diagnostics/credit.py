"""Credit on repetition: the advantage of repeating tokens, beside what GRPO would have given the same tokens.

A critic can tell where a response begins to loop; a group's baseline gives every token of it the same advantage
(Open-Reasoner-Zero, Section 3.3, Figure 5).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strop.algorithms.advantages import GroupRelative, Outcomes
from strop.algorithms.diagnostics.repetition import first_repetition
from strop.base.metrics import Mean, Metrics
from strop.base.sample import Sample, sample_id
from strop.base.types import Group

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
