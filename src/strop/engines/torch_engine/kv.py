"""Keys and values of running sequences, one slot each, and the attention of an engine step over them.

Shapes: W decoding slots (rows 0..W-1 of a step), R prompt tokens after them, H query heads, K key/value heads,
D head dimension, C capacity of a slot in tokens, L keys read by a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.attention import PackedContext

# Keys are read, and capacity grows, by whole blocks of tokens, so that shapes repeat.
BLOCK = 32
Ids = NDArray[np.int64]


def blocks(tokens: int) -> int:
    """`tokens` rounded up to whole blocks."""
    return -(-tokens // BLOCK) * BLOCK


class SlotCache:
    """Per layer, keys and values [slots, K, C, D]; C grows with the longest running sequence."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.slots = slots
        self.device = device
        self.capacity = BLOCK
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The cache of a layer whose new key and value are [rows, K, D]; made on first use, filled with zeros: what was
        never written is masked, but must be finite."""
        if index not in self._layers:
            self._layers[index] = (self._zeros(key), self._zeros(value))
        return self._layers[index]

    def _zeros(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.slots, like.shape[1], self.capacity, like.shape[2])

    def clear(self) -> None:
        """Give the memory back; layers are made again when they are next used."""
        self._layers.clear()

    def reserve(self, tokens: int) -> None:
        """Make room for sequences of `tokens` tokens, by half as much again where it has to grow."""
        if tokens <= self.capacity:
            return
        grown = blocks(max(tokens, self.capacity * 3 // 2))
        for index, pair in self._layers.items():
            bigger = [old.new_zeros(*old.shape[:2], grown, old.shape[3]) for old in pair]
            for new, old in zip(bigger, pair, strict=True):
                new[:, :, : self.capacity] = old
            self._layers[index] = (bigger[0], bigger[1])
        self.capacity = grown

    def copy(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        """Copy the first `tokens` tokens of slots `source` to slots `target`, pairwise (or one source to all)."""
        if not tokens or not target:
            return
        self.reserve(tokens)
        origin = torch.tensor(source, device=self.device)
        destination = torch.tensor(target, device=self.device)
        for pair in self._layers.values():
            for cache in pair:
                cache[destination, :, :tokens] = cache[origin, :, :tokens]


@dataclass(frozen=True, eq=False)
class PrefillJob:
    """Token ids [n] whose keys and values fill positions 0..n-1 of every slot in `slots`, computed once."""

    token_ids: Ids
    slots: tuple[int, ...]


class Prefill:
    """Several jobs packed: what a step computes beside decoding, and where its keys and values go."""

    def __init__(self, jobs: Sequence[PrefillJob], device: torch.device, least_rows: int) -> None:
        """`least_rows` pads a prefill that runs alone up to the row count from which results stop changing."""
        ids = [job.token_ids for job in jobs]
        missing = least_rows - sum(map(len, ids))
        if missing > 0:
            ids.append(np.zeros(missing, np.int64))
        self.token_ids: Ids = np.concatenate(ids)
        self.positions: Ids = np.concatenate([np.arange(len(part)) for part in ids])
        self.context = PackedContext([len(part) for part in ids], device)
        token, slot, position = [], [], []
        start = 0
        for job in jobs:
            n = len(job.token_ids)
            token.append(np.tile(np.arange(start, start + n), len(job.slots)))
            position.append(np.tile(np.arange(n), len(job.slots)))
            slot.append(np.repeat(np.array(job.slots, np.int64), n))
            start += n
        self.token, self.slot, self.position = (
            torch.from_numpy(np.concatenate(part)).to(device) for part in (token, slot, position)
        )


class SlotContext:
    """Attention of one engine step: W decoding rows over their slots, then the rows of a prefill over themselves.

    New keys and values are written before they are read, and the prefill's before the decoding rows', so that a
    sequence admitted in this very step already sees its prompt.
    """

    def __init__(self, cache: SlotCache, positions: Tensor, length: int, prefill: Prefill | None) -> None:
        """`positions` int64 [W] of the decoding tokens in slots 0..W-1; `length` tokens in the longest that counts."""
        self.cache = cache
        self.prefill = prefill
        self.positions = positions
        self.width = len(positions)
        self.length = blocks(length)
        cache.reserve(self.length)
        if self.width:
            self.rows = torch.arange(self.width, device=positions.device)
            seen = torch.arange(self.length, device=positions.device) <= positions[:, None]
            self.bias = torch.zeros(seen.shape, device=positions.device).masked_fill_(~seen, -torch.inf)[:, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention [W + R, H, D] of query [W + R, H, D], key and value [W + R, K, D]."""
        keys, values = self.cache.layer(layer, key, value)
        parts: list[Tensor] = []
        w, p = self.width, self.prefill
        if p is not None:
            keys[p.slot, :, p.position] = key[w:][p.token]
            values[p.slot, :, p.position] = value[w:][p.token]
        if w:
            keys[self.rows, :, self.positions] = key[:w]
            values[self.rows, :, self.positions] = value[:w]
            parts.append(self._decode(query[:w], keys, values, scale))
        if p is not None:
            parts.append(p.context.attend(layer, query[w:], key[w:], value[w:], scale))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """One query [W, H, D] a slot over its first `length` keys and values; the single place for a GPU kernel."""
        w, h, d = query.shape
        kv = keys.shape[1]
        k = keys.view(-1, self.cache.capacity, keys.shape[3])[: w * kv, : self.length]
        v = values.view(-1, self.cache.capacity, values.shape[3])[: w * kv, : self.length]
        grouped = query.reshape(w * kv, h // kv, d)
        scores = torch.baddbmm(grouped.new_empty(1, 1, 1), grouped, k.transpose(1, 2), beta=0, alpha=scale)
        scores = scores.view(w, h, self.length)
        if scores.dtype == torch.float32:
            weights = scores.add_(self.bias).softmax(-1)
        else:
            weights = (scores.float() + self.bias).softmax(-1).to(v.dtype)
        return torch.bmm(weights.view(w * kv, h // kv, self.length), v).view(w, h, -1)
