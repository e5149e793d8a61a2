"""From judged groups to training samples, aligned per token, and to the outcomes that advantages are made of.

    candidates = make_candidates(groups, survivors={3, 5}, truncation_mask="after")
    samples = make_samples(candidates, GroupRelative())

S completions, T completion tokens, L tokens of a whole sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from strop.algorithms.advantages import Advantage, Outcomes
from strop.algorithms.settings import TruncationMask
from strop.algorithms.value_advantages import ValueAdvantage
from strop.base.types import Completion, FloatArray, Group, IntArray, Rollout, Sample, sample_id


@dataclass(frozen=True, eq=False)
class Candidate:
    """A completion that counts in its group's statistics.

    Attributes:
        rollout: the completion and its reward.
        group: place of its group among those of the step.
        sample: its tokens, without advantages yet.
        survives: its group passed selection.
        trains: it enters the loss: its group survives, and no mask leaves it out.
    """

    rollout: Rollout
    group: int
    sample: Sample
    survives: bool
    trains: bool


def make_candidates(
    groups: Sequence[Group], survivors: Collection[int], truncation_mask: TruncationMask
) -> list[Candidate]:
    """The completions of a step that count, in order of ticket, then of sample index.

    Args:
        groups: every group of the step, those that selection dropped too (a batch statistic may count them).
        survivors: tickets of the groups that are trained on.
        truncation_mask: what becomes of truncated completions (Skywork-OR1, Ablation 3). `none`: trained as any
            other; `after`: counted in the group's mean, then left out of the loss; `before`: left out of both.
    """
    candidates: list[Candidate] = []
    for index, group in enumerate(groups):
        survives = group.ticket in survivors
        for rollout in countable(group, truncation_mask):
            sample = as_sample(rollout.completion, group.ticket)
            masked = truncation_mask == "after" and rollout.completion.truncated
            trains = survives and not masked and sample.trained_tokens > 0
            candidates.append(Candidate(rollout, index, sample, survives, trains))
    return candidates


def countable(group: Group, truncation_mask: TruncationMask) -> tuple[Rollout, ...]:
    """The rollouts that enter the group's statistics and selection."""
    if truncation_mask != "before":
        return group.usable
    return tuple(rollout for rollout in group.usable if not rollout.completion.truncated)


def outcomes(candidates: Sequence[Candidate], token_rewards: Sequence[FloatArray | None] = ()) -> Outcomes:
    """What the completions came to.

    Args:
        candidates: S completions; the critic's values are taken from their samples, where they are.
        token_rewards: S arrays [L], the reward each token has of its own (KL in the reward); empty for none.
    """
    starts = [len(candidate.rollout.completion.prompt_ids) for candidate in candidates]

    def completions(columns: Sequence[FloatArray | None]) -> tuple[FloatArray, ...] | None:
        """The completions' share of whole-sequence columns; None where no sample has any, 0 where one lacks it."""
        if all(column is None for column in columns):
            return None
        blank = [np.zeros(len(candidate.sample), dtype=np.float32) for candidate in candidates]
        filled = [other if column is None else column for column, other in zip(columns, blank, strict=True)]
        return tuple(column[start:] for column, start in zip(filled, starts, strict=True))

    return Outcomes(
        rewards=np.array([candidate.rollout.reward for candidate in candidates], dtype=np.float64),
        group=np.array([candidate.group for candidate in candidates], dtype=np.int32),
        lengths=np.array([len(c.rollout.completion.token_ids) for c in candidates], dtype=np.int32),
        survives=np.array([candidate.survives for candidate in candidates], dtype=np.bool_),
        trained=tuple(c.sample.trained[start:] for c, start in zip(candidates, starts, strict=True)),
        values=completions([candidate.sample.values for candidate in candidates]),
        token_rewards=completions(token_rewards or [None] * len(candidates)),
    )


def make_samples(
    candidates: Sequence[Candidate], advantage: Advantage, token_rewards: Sequence[FloatArray | None] = ()
) -> list[Sample]:
    """The samples of the candidates that are trained on, with advantages, and returns where a critic learns them.

    Args:
        candidates: all of the step, whatever the advantage reads already in their samples.
        advantage: the estimator.
        token_rewards: see `outcomes`.
    """
    if not candidates:
        return []
    found = outcomes(candidates, token_rewards)
    advantages = advantage(found)
    returns = advantage.returns(found) if isinstance(advantage, ValueAdvantage) else None
    samples: list[Sample] = []
    for place, candidate in enumerate(candidates):
        if not candidate.trains:
            continue
        length = len(candidate.sample)
        sample = replace(candidate.sample, advantages=after_prompt(advantages[place], length))
        if returns is not None:
            sample = replace(sample, returns=after_prompt(returns[place], length))
        samples.append(sample)
    return samples


def as_sample(completion: Completion, ticket: int) -> Sample:
    """Prompt and completion as one sequence, without advantages."""
    prompt = len(completion.prompt_ids)
    length = prompt + len(completion.token_ids)
    return Sample(
        token_ids=np.concatenate([completion.prompt_ids, completion.token_ids]).astype(np.int32),
        trained=np.concatenate([np.zeros(prompt, dtype=np.bool_), ~completion.injected]),
        logprobs=after_prompt(completion.logprobs, length),
        advantages=np.zeros(length, dtype=np.float32),
        versions=np.concatenate([np.full(prompt, -1, dtype=np.int32), token_versions(completion)]),
        group=ticket,
        id=sample_id(ticket, completion.index),
    )


def after_prompt(values: FloatArray, length: int) -> FloatArray:
    """Values of the completion's tokens as a column of the whole sequence of `length`, 0 on the prompt; float32 [L]."""
    column = np.zeros(length, dtype=np.float32)
    column[length - len(values) :] = values
    return column


def token_versions(completion: Completion) -> IntArray:
    """The weight version that sampled each completion token, int32 [T]."""
    versions = np.zeros(len(completion.token_ids), dtype=np.int32)
    for version, start, end in completion.versions:
        versions[start:end] = version
    return versions
