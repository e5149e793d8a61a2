"""Token types: which tokens reason (high entropy) and which recall knowledge (low entropy), as Archer sorts them.

Shapes: M trained tokens of an update.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from strop.algorithms.tokens import Tokens, demanded
from strop.base.lazy import torch
from strop.base.pieces import Piece

if TYPE_CHECKING:
    from torch import Tensor


class TokenTypes(Piece):
    """Sorts the trained tokens of an update into reasoning and knowledge tokens."""

    @property
    def needs_old_entropy(self) -> bool:
        """Whether entropies from before the batch's first update are read (`tokens.old_entropy`)."""
        return False

    @property
    def needs_scores(self) -> bool:
        """Whether entropies from just before each update are read (`tokens.scored_entropy`)."""
        return False

    @abstractmethod
    def __call__(self, tokens: Tokens) -> Tensor:
        """bool [M], True for reasoning tokens, of all tokens of the update."""


class EntropyQuantile(TokenTypes):
    r"""Tokens at or above a quantile of the entropies of their response reason (Archer, Eq. 4 and 5).

        τ = Quantile({e_t}, quantile), linear between order statistics;   reasoning where e_t ≥ τ

    Fields:
        quantile: in (0, 1); Archer 0.8.
        scope: the entropies are of the token's own `response` (Archer), or of all tokens of the update, the `batch`
            (for comparison: Section 3.1.1, and the low-entropy masking that came before).
        boundary: a token at τ is a reasoning token: `inclusive`, the paper and the default; `exclusive`, the code
            (e > τ), where a response of equal entropies, or of one token, has none.
        when: entropies of the policy before the batch's first update, `batch` (the paper's Algorithm 1 and the
            default), or just before each update, `update` (the code).
    """

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.8
    scope: Literal["response", "batch"] = "response"
    boundary: Literal["inclusive", "exclusive"] = "inclusive"
    when: Literal["batch", "update"] = "batch"

    @property
    def needs_old_entropy(self) -> bool:
        """With `when="batch"`."""
        return self.when == "batch"

    @property
    def needs_scores(self) -> bool:
        """With `when="update"`."""
        return self.when == "update"

    def __call__(self, tokens: Tokens) -> Tensor:
        if self.when == "batch":
            entropy = demanded(tokens.old_entropy, "old_entropy")
        else:
            entropy = demanded(tokens.scored_entropy, "scored_entropy")
        entropy = entropy.double()
        group = tokens.sequence if self.scope == "response" else torch.zeros_like(tokens.sequence)
        threshold = group_quantile(entropy, group, self.quantile)
        return entropy >= threshold if self.boundary == "inclusive" else entropy > threshold


def group_quantile(values: Tensor, group: Tensor, quantile: float) -> Tensor:
    """The quantile of `values` [M] within each one's own group (int64 [M]), [M]; linear between order statistics.

    Example: the 0.8-quantile of [.1, .2, .3, .4, .5] is .42.
    """
    if not len(values):
        return values
    _, member, size = torch.unique(group, return_inverse=True, return_counts=True)
    order = torch.argsort(values, stable=True)
    order = order[torch.argsort(member[order], stable=True)]  # by group, then by value
    ranked = values[order]
    start = size.cumsum(0) - size
    place = quantile * (size - 1).to(values.dtype)
    # 0.7 · 10 is a little above 7 in binary, and would lift the threshold over the value it should be.
    place = torch.where((place - place.round()).abs() < 1e-9, place.round(), place)
    below = place.floor()
    low = ranked[start + below.long()]
    high = ranked[start + torch.minimum(below.long() + 1, size - 1)]
    return (low + (place - below) * (high - low))[member]
