"""From judged groups to training samples, aligned per token, and to the outcomes that advantages are made of.

    candidates = make_candidates(groups, survivors={3, 5}, truncation_mask="drop")
    samples = make_samples(candidates, GroupRelative())

S completions, T completion tokens, L tokens of a whole sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from strop.algorithms.advantages import Advantage, Outcomes
from strop.algorithms.settings import AlgorithmSettings, TruncationMask
from strop.algorithms.value_advantages import ValueAdvantage
from strop.base.types import Completion, FloatArray, Group, IntArray, Rollout, Sample, sample_id


@dataclass(frozen=True, eq=False)
class Candidate:
    """A completion that is trained on, or that counts in its group's statistics, or both.

    Attributes:
        rollout: the completion and its reward.
        group: place of its group among those of the step.
        sample: its tokens, without advantages yet.
        survives: its group passed selection.
        trains: its tokens enter the loss: its group survives, and the truncation mask does not drop it.
        counts: it enters its group's mean and standard deviation.
        silenced: the truncation mask sets its advantage to 0.
    """

    rollout: Rollout
    group: int
    sample: Sample
    survives: bool
    trains: bool
    counts: bool = True
    silenced: bool = False


def make_candidates(
    groups: Sequence[Group], survivors: Collection[int], truncation_mask: TruncationMask
) -> list[Candidate]:
    """The completions of a step that are trained on or counted, in order of ticket, then of sample index.

    Args:
        groups: every group of the step, those that selection dropped too (a batch statistic may count them).
        survivors: tickets of the groups that are trained on.
        truncation_mask: see `AlgorithmSettings`.
    """
    drops, silences = truncation_mask.startswith("drop"), truncation_mask.startswith("zero")
    candidates: list[Candidate] = []
    for index, group in enumerate(groups):
        survives = group.ticket in survivors
        for rollout in group.usable:
            truncated = rollout.completion.truncated
            counts = not (truncated and truncation_mask.endswith("before"))
            if not counts and drops:
                continue
            sample = as_sample(rollout.completion, group.ticket)
            trains = survives and not (drops and truncated) and sample.trained_tokens > 0
            candidates.append(Candidate(rollout, index, sample, survives, trains, counts, silences and truncated))
    return candidates


def countable(group: Group, truncation_mask: TruncationMask) -> tuple[Rollout, ...]:
    """The rollouts that enter the group's statistics and selection."""
    if not truncation_mask.endswith("before"):
        return group.usable
    return tuple(rollout for rollout in group.usable if not rollout.completion.truncated)


def is_trained_on(group: Group, algorithm: AlgorithmSettings) -> bool:
    """Whether a judged group enters the loss.

    Selection decides over its countable rollouts. A group of several completions of which a single one is countable
    (the verifier failed on the others, or they are masked) has no baseline, so an advantage that compares within the
    group cannot be formed: it leaves as a group without signal, counted in `groups/without_baseline`.
    """
    rollouts = countable(group, algorithm.truncation_mask)
    if len(rollouts) == 1 < len(group.rollouts) and algorithm.advantage.compares_group:
        return False
    return algorithm.selection.keeps(rollouts)


def outcomes(candidates: Sequence[Candidate], token_rewards: Sequence[FloatArray | None] = ()) -> Outcomes:
    """The completions as candidates for training.

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
        turns=tuple(candidate.rollout.completion.turns for candidate in candidates),
        turn_rewards=tuple(candidate.rollout.verdict.turn_scores for candidate in candidates),
    )


def make_samples(
    candidates: Sequence[Candidate], advantage: Advantage, token_rewards: Sequence[FloatArray | None] = ()
) -> list[Sample]:
    """The samples of the candidates that are trained on, with advantages, and returns where a critic learns them.

    A silenced candidate has advantage 0 on every token; the critic still learns its returns.

    Args:
        candidates: all of the step, whatever the advantage reads already in their samples.
        advantage: the estimator.
        token_rewards: see `outcomes`.
    """
    counted = [place for place, candidate in enumerate(candidates) if candidate.counts]
    if not counted:
        return []
    rewards = token_rewards or [None] * len(candidates)
    estimated = advantage(outcomes([candidates[place] for place in counted], [rewards[place] for place in counted]))
    advantages = dict(zip(counted, estimated, strict=True))
    returns = advantage.returns(outcomes(candidates, rewards)) if isinstance(advantage, ValueAdvantage) else None
    samples: list[Sample] = []
    for place, candidate in enumerate(candidates):
        if not candidate.trains:
            continue
        sample, length = candidate.sample, len(candidate.sample)
        if not candidate.silenced:
            sample = replace(sample, advantages=after_prompt(advantages[place], length))
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
