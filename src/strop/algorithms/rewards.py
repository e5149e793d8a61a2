"""Rewards: from a verdict and a completion to a number, and shaping by length."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

from pydantic import Field, model_validator

from strop.base.pieces import Piece
from strop.base.types import Completion, Verdict


class Reward(Piece):
    """The reward of a completion with a usable verdict."""

    @abstractmethod
    def __call__(self, completion: Completion, verdict: Verdict) -> float:
        """The shaped reward."""


class BinaryReward(Reward):
    """`correct` for a score of 1, `wrong` for a score of 0, linear in between (ScaleRL: ±1; most others: 1 and 0)."""

    correct: float = 1.0
    wrong: float = 0.0

    @model_validator(mode="after")
    def _right_is_better(self) -> BinaryReward:
        if self.correct <= self.wrong:
            raise ValueError(f"correct={self.correct} must exceed wrong={self.wrong}")
        return self

    def __call__(self, completion: Completion, verdict: Verdict) -> float:
        return self.wrong + (self.correct - self.wrong) * verdict.score


class DirectReward(Reward):
    """The value that the user's reward functions returned, unchanged; without them, the verifier's score."""

    def __call__(self, completion: Completion, verdict: Verdict) -> float:
        return verdict.value


Count = Annotated[int, Field(ge=1)]


class LengthShaping(Piece):
    """A term added to the reward of a completion with a usable verdict, by its length."""

    @abstractmethod
    def __call__(self, completion: Completion, verdict: Verdict) -> float:
        """To be added to the reward; |y| is how many tokens the policy generated, without injected ones."""


class LengthPenalty(LengthShaping):
    """clip((max_tokens − |y|) / cache_tokens − 1, −1, 0) for correct completions, 0 for others (ScaleRL, Eq. 9).

    Nothing up to max_tokens − cache_tokens, −1 from max_tokens on. ScaleRL: 14k and 2k, read as 14 · 1024 and 2 · 1024.
    """

    max_tokens: Count = 14_336
    cache_tokens: Count = 2_048

    @model_validator(mode="after")
    def _cache_fits(self) -> LengthPenalty:
        _refuse_large_buffer("cache_tokens", self.cache_tokens, self.max_tokens)
        return self

    def __call__(self, completion: Completion, verdict: Verdict) -> float:
        if not verdict.passed:
            return 0.0
        return min(max((self.max_tokens - completion.sampled_tokens) / self.cache_tokens - 1, -1.0), 0.0)


class OverlongShaping(LengthShaping):
    """clip(−(|y| − (max_tokens − buffer_tokens)) / buffer_tokens, −1, 0) · factor, whatever the verdict (DAPO, Eq. 13).

    Nothing up to max_tokens − buffer_tokens, −factor from max_tokens on. DAPO: 20,480 tokens with a buffer of 4,096.
    """

    max_tokens: Count = 20_480
    buffer_tokens: Count = 4_096
    factor: Annotated[float, Field(ge=0)] = 1.0

    @model_validator(mode="after")
    def _buffer_fits(self) -> OverlongShaping:
        _refuse_large_buffer("buffer_tokens", self.buffer_tokens, self.max_tokens)
        return self

    def __call__(self, completion: Completion, verdict: Verdict) -> float:
        excess = completion.sampled_tokens - (self.max_tokens - self.buffer_tokens)
        return min(max(-excess / self.buffer_tokens, -1.0), 0.0) * self.factor


def _refuse_large_buffer(name: str, buffer: int, limit: int) -> None:
    if buffer > limit:
        raise ValueError(f"{name}={buffer} must not exceed max_tokens={limit}")
