"""Floating-point operations of a decoder, counted from its sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Dimensions:
    """The sizes of a dense decoder that its matrix products multiply."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    def forward_operations(self, lengths: Sequence[int], head_rows: int) -> float:
        """Floating-point operations of sequences of `lengths` tokens, `head_rows` of them through the head.

        A multiplication and an addition are two. Counted are the projections of a layer, its three feed-forward
        products, causal attention (token t of a sequence looks at t + 1: scores, and their product with the values)
        and the head; norms, rotary positions and the embedding are not. A backward pass costs twice as much, and what
        is computed again for it does not count.
        """
        projections = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = 2 * (projections + 3 * self.hidden * self.inner)
        pairs = sum(length * (length + 1) // 2 for length in lengths)
        attention = 4 * self.heads * self.head_dim * pairs
        return float(self.layers * (layer * sum(lengths) + attention) + 2 * self.hidden * self.vocabulary * head_rows)
