r"""Corrections for what the generator and the trainer compute differently, as constant factors on the policy loss.

Where importance ratios are anchored on log-probs that the trainer has computed again (π_anchor), the tokens were still
drawn from the generator's (π_gen). With gap_t = log π_anchor,t − log π_gen,t the token's ratio is w_t = exp(gap_t),
and a correction turns it into the factor of `Tokens.correction`. Anchored on the generator's log-probs there is nothing
to correct: the importance ratio holds it already. Shapes: M tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from strop.algorithms.tokens import sequence_mean, sequence_sum
from strop.base.lazy import torch
from strop.base.pieces import Piece

if TYPE_CHECKING:
    from torch import Tensor

Positive = Annotated[float, Field(gt=0)]


class Correction(Piece):
    """From the log-ratio of anchor and generator to a factor per token."""

    @abstractmethod
    def __call__(self, gap: Tensor, sequence: Tensor) -> Tensor:
        """The factor of each token, [M].

        Args:
            gap: floating point [M], log π_anchor − log π_gen of each trained token.
            sequence: int64 [M], the token's sequence; whole sequences only.
        """


class TokenTis(Correction):
    """Truncated importance sampling by token: min(w_t, cap)."""

    cap: Positive = 2.0

    def __call__(self, gap: Tensor, sequence: Tensor) -> Tensor:
        return torch.exp(gap).clamp(max=self.cap)


class SequenceMask(Correction):
    r"""Whole sequences leave the loss where their ratio is outside [low, high].

        geometric: s = exp((1/|o|) Σ_t gap_t)        product: s = exp(Σ_t gap_t), the probability ratio of the sequence

    Fields:
        low, high: the range of s in which a sequence is kept; None: no bound on that side.
        ratio: which s. The product needs a wide range: it grows with the length.
        factor: what kept tokens carry: `one` (rejection alone), `token` (w_t) or `sequence` (s).

    The defaults reject alone, by the geometric mean; `ratio="product", factor="sequence", low=None` is what trainers
    offer as a sequence-level importance mask.
    """

    low: Positive | None = 0.5
    high: Positive | None = 2.0
    ratio: Literal["geometric", "product"] = "geometric"
    factor: Literal["one", "token", "sequence"] = "one"

    @model_validator(mode="after")
    def _bounds_in_order(self) -> SequenceMask:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")
        return self

    def __call__(self, gap: Tensor, sequence: Tensor) -> Tensor:
        whole = torch.exp((sequence_mean if self.ratio == "geometric" else sequence_sum)(gap, sequence))
        kept = torch.ones_like(whole, dtype=torch.bool)
        if self.low is not None:
            kept &= whole >= self.low
        if self.high is not None:
            kept &= whole <= self.high
        carried = {"one": torch.ones_like(gap), "token": torch.exp(gap), "sequence": whole}[self.factor]
        return torch.where(kept, carried, torch.zeros_like(carried))


class IcePop(Correction):
    """Tokens whose ratio is outside [low, high] leave the loss, the others carry it: w_t · 1[low ≤ w_t ≤ high]."""

    low: Positive = 0.5
    high: Positive = 5.0

    @model_validator(mode="after")
    def _bounds_in_order(self) -> IcePop:
        if self.low >= self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")
        return self

    def __call__(self, gap: Tensor, sequence: Tensor) -> Tensor:
        ratio = torch.exp(gap)
        return torch.where((ratio >= self.low) & (ratio <= self.high), ratio, torch.zeros_like(ratio))
