"""Packed sequences on a CPU: beginnings that sequences share are computed once, what no target needs not at all.

    layout = Layout.of(token_ids, positions, lengths, rows)
    hidden = policy.hidden(layout.token_ids, layout.positions, SharedContext(layout, kernels))
    F.embedding(layout.rows, hidden)        # [M, E]

The completions of one prompt are packed with the prompt before each. A token's hidden state depends on what is before
it alone, so the prompt is computed once where several of its completions lie in a micro-batch, and what comes
after the last scored row of a sequence (its end-of-text) is not computed. Gradients are those of all of them, summed in
another order.

Shapes: S sequences, N packed tokens, M targets, L tokens that are computed, H query heads, K key/value heads, D
features of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from strop.base.types import IntArray
from strop.model.attention_kinds import PLAIN, Kind
from strop.model.kernels.native import LayerKernels


@dataclass(frozen=True, eq=False)
class Layout:
    """The tokens that are computed.

    Attributes:
        token_ids: int64 [L].
        positions: int64 [L].
        rows: int64 [M], indices into L of the hidden states that predict the targets.
        ends: int64 [pieces + 1], see `LayerKernels.attention`.
        groups: int64 [groups + 1], likewise.
    """

    token_ids: Tensor
    positions: Tensor
    rows: Tensor
    ends: Tensor
    groups: Tensor

    @classmethod
    def of(cls, token_ids: Tensor, positions: Tensor, lengths: Sequence[int], rows: Tensor) -> Layout:
        """The layout of packed sequences of `lengths`, of which `rows` [M] are wanted; see `policy.Packed`."""
        ids, wanted = token_ids.numpy(), rows.numpy()
        starts = np.cumsum((0, *lengths))
        if not len(wanted):  # of a rank that only takes part
            return cls(token_ids, positions, rows, torch.from_numpy(starts), torch.arange(len(starts)))
        shared, pieces = _pieces(ids, starts, wanted)
        index = np.concatenate([np.arange(start, end) for group in pieces for start, end in group])
        place = np.full(len(ids), -1)
        place[index] = np.arange(len(index))
        for copy, original, count in shared:
            place[copy : copy + count] = place[original : original + count]
        sizes = [end - start for group in pieces for start, end in group]
        taken = torch.from_numpy(index)
        return cls(
            token_ids=token_ids[taken],
            positions=positions[taken],
            rows=torch.from_numpy(place[wanted]),
            ends=torch.from_numpy(np.cumsum((0, *sizes))),
            groups=torch.from_numpy(np.cumsum((0, *(len(group) for group in pieces)))),
        )


Span = tuple[int, int]


def _pieces(ids: IntArray, starts: IntArray, rows: IntArray) -> tuple[list[tuple[int, int, int]], list[list[Span]]]:
    """Which beginnings are left out, as (start, start of the one that is there, tokens); and groups of spans of packed
    tokens that are computed, the first of each its beginning."""
    sequence = np.searchsorted(starts, rows, side="right") - 1
    first, last = np.full(len(starts) - 1, len(ids)), np.full(len(starts) - 1, -1)
    np.minimum.at(first, sequence, rows)
    np.maximum.at(last, sequence, rows)
    members: dict[bytes, list[int]] = {}
    for s in np.unique(sequence).tolist():
        # The beginning ends with the first scored row: of what follows every token may differ.
        members.setdefault(ids[starts[s] : first[s] + 1].tobytes(), []).append(s)
    shared: list[tuple[int, int, int]] = []
    pieces: list[list[Span]] = []
    for own in members.values():
        begin = int(starts[own[0]])
        if len(own) == 1:
            pieces.append([(begin, int(last[own[0]]) + 1)])
            continue
        count = int(first[own[0]]) + 1 - begin
        spans = [(int(starts[s]) + count, int(last[s]) + 1) for s in own]
        pieces.append([(begin, begin + count), *(span for span in spans if span[0] < span[1])])
        shared += [(int(starts[s]), begin, count) for s in own[1:]]
    return shared, pieces


class SharedContext:
    """Causal attention of a layout."""

    def __init__(self, layout: Layout, kernels: LayerKernels) -> None:
        self.layout = layout
        self.kernels = kernels

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: Kind = PLAIN) -> Tensor:
        """Attention [L, H, D] of query [L, H, D] over key, value [L, K, D]; see `attention.AttentionContext`.

        Raises:
            ValueError: the layer does more than softmax; windows and chunks are the caller's to compare with lengths.
        """
        if not kind.softmax:
            raise ValueError(f"layer {layer}: the kernels know neither caps nor sinks")
        return self.kernels.attention(query, key, value, self.layout.ends, self.layout.groups, scale)
