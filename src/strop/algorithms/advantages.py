"""Advantages: how much better a completion is than the policy's average.

S completions of the step, T tokens of one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializeAsAny, model_validator

from strop.base.pieces import Piece
from strop.base.types import BoolArray, FloatArray, InputError, IntArray

_BLOCK = 128  # tokens whose discounted sums are one matrix product


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The outcomes of a step's completions.

    Attributes:
        rewards: float64 [S], shaped.
        group: int [S], the prompt group of each completion.
        lengths: int [S], completion tokens.
        survives: bool [S], whether the completion's group passed selection. Groups that did not are still here,
            because a statistic over "all generations" counts them.
        trained: S bool [T_s], tokens that were sampled, not injected; None: all were.
        values: S float32 [T_s], the critic's, of the state each token was chosen in; None without a critic.
        token_rewards: S float32 [T_s], a reward for each token (KL in the reward); None for none.
        turns: S tuples of where each turn after the first begins; None: one turn each.
        turn_rewards: S tuples of further rewards that an environment gave for the turns it answered; None for none.
        shaped: float64 [S] for each piece of `algorithm.shaping`: what it added to the rewards.
    """

    rewards: NDArray[np.float64]
    group: IntArray
    lengths: IntArray
    survives: NDArray[np.bool_]
    trained: tuple[BoolArray, ...] | None = None
    values: tuple[FloatArray, ...] | None = None
    token_rewards: tuple[FloatArray, ...] | None = None
    turns: tuple[tuple[int, ...], ...] | None = None
    turn_rewards: tuple[tuple[float, ...], ...] | None = None
    shaped: tuple[NDArray[np.float64], ...] = ()

    @property
    def sampled(self) -> IntArray:
        """int [S]: sampled tokens of each completion."""
        if self.trained is None:
            return self.lengths
        return np.array([mask.sum() for mask in self.trained], dtype=np.int32)

    @property
    def totals(self) -> NDArray[np.float64]:
        """float64 [S]: the reward of each completion, including the rewards of its tokens."""
        if self.token_rewards is None:
            return self.rewards
        return self.rewards + np.array([column.sum(dtype=np.float64) for column in self.token_rewards])


class Advantage(Piece):
    """From the outcomes of a step to an advantage per token."""

    modules: ClassVar[tuple[str, ...]] = ("strop.algorithms.advantages", "strop.algorithms.value")

    @property
    def needs_values(self) -> bool:
        """Whether a critic's values are read (`ValueAdvantage`)."""
        return False

    @property
    def needs_token_rewards(self) -> bool:
        """Whether nothing is learned without a reward for each token (`kl_in_reward`)."""
        return False

    @property
    def compares_group(self) -> bool:
        """Whether the other completions of a group are the baseline, so that a single completion has none."""
        return False

    @property
    def needs_several(self) -> bool:
        """Whether the only completion of a prompt has advantage 0, whatever its reward."""
        return False

    @abstractmethod
    def __call__(self, outcomes: Outcomes) -> list[FloatArray]:
        """S arrays, float32 [T_s] each, aligned with the completion's tokens."""


class GroupRelative(Advantage):
    r"""The group's mean reward is the baseline: A_i = (r_i − b_i) / scale.

    `baseline` chooses b_i: `mean` of the group (GRPO), or `leave_one_out`, the mean of the group's others (RLOO), by
    which r_i − b_i is n / (n − 1) times as large.

    `normalization` chooses the scale:
      - `prompt_std`: std_g(r) + eps (GRPO, Eq. 5 of ScaleRL). A group of one keeps its reward (mean 0, std 1);
        under the other scales, which only compare within a group, it has advantage 0.
      - `batch_std`: standard deviation of all centred rewards A_i of the batch + eps (ScaleRL's Â_std).
      - `token_std`: r_i − b_i normalised over all sampled tokens of the batch, each completion counted |o_i| times:
        their mean is taken off and the rest divided by sqrt(variance + eps), the variance divided by the count (as
        Open-Reasoner-Zero normalises over its buffer; see `normalize_tokens`). `ddof` has no part in it.
      - `mean`: mean_g(r) + eps (MaxRL, arXiv 2602.02710): of 0 and 1, the rarer success is, the more one counts.
      - `none`: 1 (Dr. GRPO).

    Fields:
        ddof: 1 divides the variance by n − 1 (GRPO's public code), 0 by n (ScaleRL, taken here for the batch).
        batch: whose completions count for `batch_std` and `token_std`: those of prompts that survive selection, or all.

    Example: rewards [1, 0, 0, 0], prompt_std, ddof 1, eps 1e-6 → [1.499997, −0.499999, −0.499999, −0.499999].
    """

    baseline: Literal["mean", "leave_one_out"] = "mean"
    normalization: Literal["prompt_std", "batch_std", "token_std", "mean", "none"] = "prompt_std"
    ddof: Literal[0, 1] = 1
    eps: Annotated[float, Field(ge=0)] = 1e-6
    batch: Literal["survivors", "all"] = "survivors"

    @property
    def compares_group(self) -> bool:
        """Always."""
        return True

    @property
    def needs_several(self) -> bool:
        """Under every scale but `prompt_std`, by which a group of one keeps its reward."""
        return self.normalization != "prompt_std"

    def __call__(self, outcomes: Outcomes) -> list[FloatArray]:
        advantages = self.per_completion(outcomes)
        return [np.full(n, a, dtype=np.float32) for a, n in zip(advantages, outcomes.lengths, strict=True)]

    def per_completion(self, outcomes: Outcomes) -> NDArray[np.float64]:
        """The advantages, float64 [S], one a completion."""
        rewards = outcomes.totals
        _, member = np.unique(outcomes.group, return_inverse=True)
        size = np.bincount(member)
        mean = np.bincount(member, weights=rewards) / size
        single = size[member] == 1
        centred = rewards - mean[member]
        if self.baseline == "leave_one_out":
            centred = centred * (size / np.maximum(size - 1, 1))[member]
        if self.normalization == "none":
            return centred
        if self.normalization == "mean":
            if (rewards < 0).any():
                raise InputError(
                    "algorithm.advantage.normalization=mean divides by a group's mean reward, and some are negative; "
                    "set algorithm.reward.wrong=0, or another normalization"
                )
            return _over(centred, mean[member] + self.eps)
        if self.normalization == "prompt_std":
            squares = np.bincount(member, weights=(rewards - mean[member]) ** 2)
            spread = np.sqrt(squares / np.maximum(size - self.ddof, 1))
            # The public code's rule for a group of one: mean 0, standard deviation 1.
            return _over(np.where(single, rewards, centred), np.where(single, 1.0, spread[member]) + self.eps)
        chosen = outcomes.survives if self.batch == "survivors" else np.ones_like(outcomes.survives)
        if self.normalization == "token_std":
            return normalize_tokens(centred, outcomes.sampled * chosen, self.eps)
        counted = centred[chosen]
        if len(counted) <= self.ddof:
            return centred
        return _over(centred, np.full_like(centred, counted.std(ddof=self.ddof) + self.eps))


class Gdpo(Advantage):
    r"""Group reward-decoupled normalisation (GDPO, arXiv 2601.05242): each part of the reward is normalised by itself.

        A_i = Σ_k w_k (r_ik − mean_g(r_k)) / (std_g(r_k) + eps),    Â_i = (A_i − mean(A)) / (std(A) + eps)

    The parts are the verdict's reward, with w = 1, and what each piece of `algorithm.shaping` added to it; rewards of
    tokens count with the first. mean_g and std_g are of the prompt's group (`GroupRelative`), mean and std of all
    completions of groups that survive selection.

    Fields:
        shaping_weight: w of each shaping piece, whose own scale has no effect.
        ddof, eps: of all standard deviations, see `GroupRelative`.

    Example: rewards (0, 1) with terms of length (0, 0) in one group and (0, 1) in another. GRPO gives both −.707 and
    .707 (ddof 1); here A is −.707 and .707 in the first, −1.414 and 1.414 in the second.
    """

    shaping_weight: Annotated[float, Field(ge=0)] = 1.0
    ddof: Literal[0, 1] = 1
    eps: Annotated[float, Field(ge=0)] = 1e-6

    @property
    def compares_group(self) -> bool:
        """Always."""
        return True

    def __call__(self, outcomes: Outcomes) -> list[FloatArray]:
        normal = GroupRelative(ddof=self.ddof, eps=self.eps)
        rest = outcomes.totals - sum(outcomes.shaped, np.zeros(len(outcomes.rewards)))
        sums = np.zeros_like(rest)
        for weight, part in [(1.0, rest), *((self.shaping_weight, part) for part in outcomes.shaped)]:
            sums += weight * normal.per_completion(replace(outcomes, rewards=part, token_rewards=None))
        counted = sums[outcomes.survives]
        if len(counted) > self.ddof:
            sums = _over(sums - counted.mean(), np.full_like(sums, counted.std(ddof=self.ddof) + self.eps))
        return [np.full(n, a, dtype=np.float32) for a, n in zip(sums, outcomes.lengths, strict=True)]


def _over(centred: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """centred / scale; 0 where nothing varies and eps = 0."""
    return np.divide(centred, scale, out=np.zeros_like(centred), where=scale > 0)


def normalize_tokens(
    advantages: NDArray[np.float64], counts: NDArray[np.integer], eps: float = 1e-8
) -> NDArray[np.float64]:
    """(A − mean) / sqrt(variance + eps) with the mean and the variance over tokens, float64 [N].

    Each of the N entries stands for `counts` tokens (1 and 0 for a mask over tokens; the lengths for an advantage that
    all tokens of a completion share). The variance is divided by the number of tokens (Open-Reasoner-Zero). Entries
    that count 0 are transformed too. Without a counted token nothing changes.
    """
    total = counts.sum()
    if total == 0:
        return advantages
    mean = (advantages * counts).sum() / total
    variance = (np.square(advantages - mean) * counts).sum() / total
    spread = float(np.sqrt(variance + eps))
    return (advantages - mean) / spread if spread > 0 else advantages - mean


def gae(
    rewards: NDArray[np.floating], values: NDArray[np.floating], gamma: float, lam: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Generalised advantage estimates of one sequence, and the critic's targets.

        δ_t = r_t + γ V_{t+1} − V_t,   A_t = δ_t + γ λ A_{t+1},   target_t = A_t + V_t,   V = A = 0 after the last token

    At γ = λ = 1 this is A_t = Σ_{t' ≥ t} r_{t'} − V_t (`gae_undiscounted`), which is then used.

    Args:
        rewards: [T], of each trained token in order; an outcome reward R is [0, …, 0, R].
        values: [T], the critic's value of the state in which each token was chosen.

    Returns:
        (advantages, targets), float64 [T] each.
    """
    if gamma == 1 and lam == 1:
        return gae_undiscounted(rewards, values)
    value = values.astype(np.float64)
    following = np.append(value[1:], 0.0) if len(value) else value
    errors = rewards.astype(np.float64) + gamma * following - value
    advantages = _discounted_sums(errors, gamma * lam)
    return advantages, advantages + value


def _discounted_sums(errors: NDArray[np.float64], decay: float) -> NDArray[np.float64]:
    """A_t = Σ_l decay^l · errors_{t+l}, float64 [T]: by a product within blocks, then from the last block to the first.

    A loop over tokens would take minutes for a step of long responses.
    """
    total = len(errors)
    width = min(_BLOCK, max(total, 1))
    blocks = np.zeros((-(-total // width), width))
    blocks.reshape(-1)[:total] = errors
    ahead = np.arange(width)[None, :] - np.arange(width)[:, None]
    reach = np.where(ahead >= 0, decay ** np.maximum(ahead, 0), 0.0)  # [t, t + l]
    sums = blocks @ reach.T
    rest = decay ** np.arange(width, 0, -1)  # from each place to the first of the next block
    for block in range(len(sums) - 2, -1, -1):
        sums[block] += rest * sums[block + 1, 0]
    return sums.reshape(-1)[:total]


def gae_undiscounted(
    rewards: NDArray[np.floating], values: NDArray[np.floating]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """GAE(1, 1) in closed form: A_t = R_t − V_t and target R_t, R_t the rewards still to come (R for an outcome)."""
    returns = np.cumsum(rewards.astype(np.float64)[::-1])[::-1]
    return returns - values, returns


class TurnLevel(Advantage):
    r"""Turn-level GRPO: GRPO with process supervision (DeepSeekMath, Section 4.1.3), a turn being a step.

        r̃_ij = (r_ij − mean(R)) / (std(R) + eps),    Â_it = Σ_{j ≥ turn(t)} r̃_ij,    R = {r_ij: all turns of the group}

    r_ij is what the environment gave for turn j of completion i (`Reply.score`); to that of the last turn the
    completion's own reward is added. A token has the normalised rewards of its turn and of all later ones. Of single
    turns without scores this is GRPO (`GroupRelative`).

    Fields:
        ddof, eps: of the standard deviation, see `GroupRelative`.

    Example: two completions of two turns, rewards (0, 1) and (0, 0), ddof 0, eps 0: R has mean 1/4 and std √3/4, so
    r̃ = (−.577, 1.732) and (−.577, −.577), and Â = (1.155, 1.732) and (−1.155, −.577).
    """

    ddof: Literal[0, 1] = 1
    eps: Annotated[float, Field(ge=0)] = 1e-6

    @property
    def compares_group(self) -> bool:
        """Always."""
        return True

    def __call__(self, outcomes: Outcomes) -> list[FloatArray]:
        turns = outcomes.turns or ((),) * len(outcomes.rewards)
        given = outcomes.turn_rewards or ((),) * len(outcomes.rewards)
        rewards = [
            _turn_rewards(float(total), len(starts) + 1, own)
            for total, starts, own in zip(outcomes.totals, turns, given, strict=True)
        ]
        counts = np.array([len(own) for own in rewards])
        rows = Outcomes(
            np.concatenate(rewards), np.repeat(outcomes.group, counts), np.ones(counts.sum(), np.int32),
            np.repeat(outcomes.survives, counts),
        )  # fmt: skip
        normal = GroupRelative(ddof=self.ddof, eps=self.eps).per_completion(rows)
        found = []
        for own, starts, length in zip(np.split(normal, counts.cumsum()[:-1]), turns, outcomes.lengths, strict=True):
            ahead = np.cumsum(own[::-1])[::-1]
            found.append(np.repeat(ahead, np.diff([0, *starts, int(length)])).astype(np.float32))
        return found


def _turn_rewards(total: float, turns: int, given: Sequence[float]) -> NDArray[np.float64]:
    """float64 [turns]: what was given for each turn; the last one has the completion's reward, and what was given for
    a turn behind which there was no room for another."""
    rewards = np.zeros(turns)
    np.add.at(rewards, np.minimum(np.arange(len(given)), turns - 1), np.array(given, np.float64))
    rewards[-1] += total
    return rewards


class Distillation(Advantage):
    r"""On-policy distillation: each token is credited with what a teacher thinks of it, and nothing later.

        A_it = A_i + r_it,    r_it = −β (log π(o_it) − log π_T(o_it))

    r_it is `kl_in_reward` with its k1, the teacher the reference policy. Unlike in the other estimators a token has
    only its own reward (a discount of 0, as in Thinking Machines' on-policy distillation): E[∇log π · r_t] is
    −β ∇KL(π ‖ π_T) of the next token, the text before it held fixed. A_i is the `outcome`'s advantage of the verified
    reward, without the tokens' rewards, as SDPO mixes GRPO in; None for 0.
    """

    outcome: SerializeAsAny[Advantage] | None = None

    @model_validator(mode="after")
    def _no_critic(self) -> Distillation:
        if self.outcome is not None and self.outcome.needs_values:
            raise ValueError(f"outcome={self.outcome.piece_name()} needs a critic; take GroupRelative or TurnLevel")
        return self

    @property
    def needs_token_rewards(self) -> bool:
        """Always."""
        return True

    @property
    def compares_group(self) -> bool:
        """Where the outcome's does."""
        return self.outcome is not None and self.outcome.compares_group

    def __call__(self, outcomes: Outcomes) -> list[FloatArray]:
        rewards = outcomes.token_rewards or [np.zeros(n, dtype=np.float32) for n in outcomes.lengths]
        if self.outcome is None:
            return list(rewards)
        own = self.outcome(replace(outcomes, token_rewards=None))
        return [advantage + reward for advantage, reward in zip(own, rewards, strict=True)]
