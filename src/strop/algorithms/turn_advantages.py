"""Advantages of turns: what an environment gives for a turn belongs to that turn and those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strop.algorithms.advantages import Advantage, GroupRelative, Outcomes
from strop.base.types import FloatArray


class TurnLevel(Advantage):
    r"""Turn-level GRPO: GRPO with process supervision (DeepSeekMath, Section 4.1.3), a turn being a step.

        r̃_ij = (r_ij − mean(R)) / (std(R) + eps),    Â_it = Σ_{j ≥ turn(t)} r̃_ij,    R = {r_ij: all turns of the group}

    r_ij is what the environment gave for turn j of completion i (`Reply.score`); to that of the last turn the
    completion's own reward is added. A token has the normalised rewards of its turn and of all later ones. Of single
    turns without scores of their own this is GRPO (`GroupRelative`).

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
