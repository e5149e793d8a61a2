"""Rewards: from a verdict and a completion to the number that is learned from."""

from __future__ import annotations

from abc import abstractmethod

from strop.pieces import Piece
from strop.types import Completion, Verdict


class Reward(Piece):
    """The reward of a completion with a usable verdict."""

    @abstractmethod
    def __call__(self, completion: Completion, verdict: Verdict) -> float:
        """The shaped reward."""


class BinaryReward(Reward):
    """`correct` for a score of 1, `wrong` for a score of 0, linear in between (ScaleRL: ±1; most others: 1 and 0)."""

    correct: float = 1.0
    wrong: float = 0.0

    def __call__(self, completion: Completion, verdict: Verdict) -> float:
        return self.wrong + (self.correct - self.wrong) * verdict.score
