"""From judged groups to training samples, aligned per token, and to the outcomes that advantages are made of.

    candidates = make_candidates(groups, survivors={3, 5}, truncation_mask="drop")
    samples = make_samples(candidates, GroupRelative())

S completions, T completion tokens, L tokens of a whole sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.algorithms.advantages import Advantage, Outcomes
from strop.algorithms.rewards import LengthShaping
from strop.algorithms.settings import AlgorithmSettings, TruncationMask
from strop.algorithms.value import ValueAdvantage
from strop.base.metrics import Metrics
from strop.base.sample import Sample, sample_id
from strop.base.types import Completion, FloatArray, Group, IntArray, Rollout


@dataclass(frozen=True)
class Sizes:
    """The policy's parameters, those of them that a token is multiplied with, and the devices that train it.

    Devices are GPUs, or cores on a machine without. `attention_width` and `peak` are those of `ComputeMeter`.
    """

    parameters: int
    computing_parameters: int
    devices: int
    attention_width: int
    peak: float | None


@dataclass(frozen=True)
class TrainResult:
    """The samples that were trained on, with their advantages, and the metrics of the updates."""

    samples: tuple[Sample, ...]
    metrics: Metrics


@dataclass(frozen=True, eq=False)
class Candidate:
    """A completion that is trained on, or that counts in its group's statistics, or both.

    Attributes:
        rollout: the completion and its reward.
        group: place of its group among those of the step.
        samples: its tokens, without advantages yet: one sequence, or several (`Completion.sequences`).
        survives: its group passed selection.
        trains: its tokens enter the loss: its group survives, and the truncation mask does not drop it.
        counts: it enters its group's mean and standard deviation.
        silenced: the truncation mask sets its advantage to 0.
    """

    rollout: Rollout
    group: int
    samples: tuple[Sample, ...]
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
            samples = as_samples(rollout.completion, group.ticket)
            trains = survives and not (drops and truncated) and rollout.completion.sampled_tokens > 0
            candidates.append(Candidate(rollout, index, samples, survives, trains, counts, silences and truncated))
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


Columns = Sequence[FloatArray | None]  # one for each sequence of a completion, [L] each


def outcomes(
    candidates: Sequence[Candidate], token_rewards: Sequence[Columns] = (), shaping: Sequence[LengthShaping] = ()
) -> Outcomes:
    """The completions as candidates for training.

    Args:
        candidates: S completions; the critic's values are taken from their samples, where they are.
        token_rewards: for each of S completions a reward for each token (KL in the reward), a column for
            each of its sequences; empty for none.
        shaping: the pieces that had a part in the rewards.
    """

    def completions(columns: Sequence[Columns]) -> tuple[FloatArray, ...] | None:
        """Columns of sequences as columns of completions [T]; None where no sample has any, 0 where one lacks it."""
        if all(column is None for own in columns for column in own):
            return None
        found = []
        for candidate, own in zip(candidates, columns, strict=True):
            whole = np.zeros(len(candidate.rollout.completion.token_ids), dtype=np.float32)
            for part, column in zip(candidate.rollout.completion.sequences, own, strict=True):
                if column is not None:
                    whole[part.start : part.end] = column[len(part.prompt_ids) :]
            found.append(whole)
        return tuple(found)

    return Outcomes(
        rewards=np.array([candidate.rollout.reward for candidate in candidates], dtype=np.float64),
        group=np.array([candidate.group for candidate in candidates], dtype=np.int32),
        lengths=np.array([len(c.rollout.completion.token_ids) for c in candidates], dtype=np.int32),
        survives=np.array([candidate.survives for candidate in candidates], dtype=np.bool_),
        trained=tuple(~candidate.rollout.completion.injected for candidate in candidates),
        values=completions([[sample.values for sample in candidate.samples] for candidate in candidates]),
        token_rewards=completions(token_rewards) if token_rewards else None,
        turns=tuple(candidate.rollout.completion.turns for candidate in candidates),
        turn_rewards=tuple(candidate.rollout.verdict.turn_scores for candidate in candidates),
        shaped=tuple(
            np.array([piece(c.rollout.completion, c.rollout.verdict) for c in candidates], dtype=np.float64)
            for piece in shaping
        ),
    )


def make_samples(
    candidates: Sequence[Candidate],
    advantage: Advantage,
    token_rewards: Sequence[Columns] = (),
    shaping: Sequence[LengthShaping] = (),
) -> list[Sample]:
    """The samples of the candidates that are trained on, with advantages, and returns where a critic learns them.

    A silenced candidate has advantage 0 on every token; the critic still learns its returns.

    Args:
        candidates: all of the step, whatever the advantage reads already in their samples.
        advantage: the estimator.
        token_rewards, shaping: see `outcomes`.
    """
    counted = [place for place, candidate in enumerate(candidates) if candidate.counts]
    if not counted:
        return []
    rewards = token_rewards and [token_rewards[place] for place in counted]
    estimated = advantage(outcomes([candidates[place] for place in counted], rewards, shaping))
    advantages = dict(zip(counted, estimated, strict=True))
    returns = advantage.returns(outcomes(candidates, token_rewards)) if isinstance(advantage, ValueAdvantage) else None
    samples: list[Sample] = []
    for place, candidate in enumerate(candidates):
        if not candidate.trains:
            continue
        for sample, part in zip(candidate.samples, candidate.rollout.completion.sequences, strict=True):
            own, length = slice(part.start, part.end), len(sample)
            if not sample.trained_tokens:
                continue
            if not candidate.silenced:
                sample = replace(sample, advantages=after_prompt(advantages[place][own], length))
            if returns is not None:
                sample = replace(sample, returns=after_prompt(returns[place][own], length))
            samples.append(sample)
    return samples


def as_samples(completion: Completion, ticket: int) -> tuple[Sample, ...]:
    """Prompt and completion as one sequence, or as those that it was sampled as, without advantages."""
    versions, parts = token_versions(completion), completion.sequences
    return tuple(
        Sample(
            token_ids=np.concatenate([prompt_ids, completion.token_ids[start:end]]).astype(np.int32),
            trained=np.concatenate([np.zeros(len(prompt_ids), dtype=np.bool_), ~completion.injected[start:end]]),
            logprobs=after_prompt(completion.logprobs[start:end], length),
            advantages=np.zeros(length, dtype=np.float32),
            versions=np.concatenate([np.full(len(prompt_ids), -1, dtype=np.int32), versions[start:end]]),
            group=ticket,
            id=sample_id(ticket, completion.index, part),
            whole=sample_id(ticket, completion.index) if len(parts) > 1 else None,
            routed_experts=completion.routed_experts,
        )
        for part, (prompt_ids, start, end) in enumerate(parts)
        for length in (len(prompt_ids) + end - start,)
    )


def after_prompt(values: FloatArray, length: int) -> FloatArray:
    """Values of the completion's tokens as a column of the whole sequence of `length`, 0 on the prompt; float32 [L]."""
    column = np.zeros(length, dtype=np.float32)
    column[length - len(values) :] = values
    return column


def at_end(column: NDArray[Any], length: int) -> NDArray[Any]:
    """The column of a sequence as one of `length` with the same end; what is missing in front is 0."""
    kept = column[-length:]
    missing = np.zeros((length - len(kept), *column.shape[1:]), dtype=column.dtype)
    return np.concatenate([missing, kept])


def token_versions(completion: Completion) -> IntArray:
    """The weight version that sampled each completion token, int32 [T]."""
    versions = np.zeros(len(completion.token_ids), dtype=np.int32)
    for version, start, end in completion.versions:
        versions[start:end] = version
    return versions
