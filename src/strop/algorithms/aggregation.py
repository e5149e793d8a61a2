"""Loss aggregation as a weight per token, fixed when an update is packed.

The loss of an update is sum over trained tokens of weight × per-token loss. No denominator is left at backward, so
splitting the update into other micro-batches or over ranks changes nothing. S sequences.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

import numpy as np
from pydantic import Field

from strop.base.pieces import Piece
from strop.base.types import FloatArray, IntArray


class Aggregation(Piece):
    """How per-token losses of an update become one number."""

    @abstractmethod
    def __call__(self, trained: IntArray, group: IntArray) -> FloatArray:
        """The weight of each trained token of a sequence.

        Args:
            trained: int [S], trained tokens of each sequence, all of them positive.
            group: int [S], the prompt group of each sequence.

        Returns:
            float32 [S]; sequence s contributes weight[s] · Σ_t loss[s, t].
        """


class TokenMean(Aggregation):
    """Every token alike: 1 / Σ_s |o_s| (DAPO, Skywork-OR1, OPEFO)."""

    def __call__(self, trained: IntArray, group: IntArray) -> FloatArray:
        return np.full(len(trained), 1.0 / trained.sum(), dtype=np.float32)


class SampleMean(Aggregation):
    """Every sequence alike: 1 / (S · |o_s|) (GRPO)."""

    def __call__(self, trained: IntArray, group: IntArray) -> FloatArray:
        return (1.0 / (len(trained) * trained.astype(np.float64))).astype(np.float32)


class PromptMean(Aggregation):
    """Every prompt alike, the tokens of its group alike: 1 / (P · Σ_{s' in group} |o_s'|) (ScaleRL)."""

    def __call__(self, trained: IntArray, group: IntArray) -> FloatArray:
        _, member = np.unique(group, return_inverse=True)
        tokens_of_group = np.bincount(member, weights=trained)
        return (1.0 / (len(tokens_of_group) * tokens_of_group[member])).astype(np.float32)


class ConstantDenominator(Aggregation):
    """A fixed token count per sequence: 1 / (S · tokens); a sequence's length changes no weight (Dr. GRPO)."""

    tokens: Annotated[int, Field(ge=1)]

    def __call__(self, trained: IntArray, group: IntArray) -> FloatArray:
        return np.full(len(trained), 1.0 / (len(trained) * self.tokens), dtype=np.float32)
