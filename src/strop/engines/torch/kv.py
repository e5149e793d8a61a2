"""Keys and values of running sequences, one slot each, and the attention of an engine step over them.

Shapes: W decoding slots (rows 0..W-1 of a step), R prompt tokens after them, H query heads, K key/value heads,
D head dimension (of values it may be another), C capacity of a slot in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from strop.engines.torch.fused_forward import DecodeKernels
from strop.model.attention import PackedContext
from strop.model.attention_kinds import EVERYTHING, PLAIN, AttentionKind, Reach, explicit

# Keys are read, and capacity grows, by whole blocks of tokens, so that shapes repeat.
BLOCK = 32
Ids = NDArray[np.int64]


def blocks(tokens: int) -> int:
    """`tokens` rounded up to whole blocks."""
    return -(-tokens // BLOCK) * BLOCK


class SlotCache:
    """Per layer, keys and values [slots, K, C, D]; C grows with the longest running sequence."""

    def __init__(self, slots: int, device: torch.device, kernels: DecodeKernels | None = None) -> None:
        """With `kernels`, which must take the keys' size and type, every row reads its own keys and no more."""
        self.slots = slots
        self.device = device
        self.kernels = kernels
        self.capacity = BLOCK
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The cache of a layer whose new key and value are [rows, K, D]; made on first use, filled with zeros: what was
        never written is masked, but must be finite."""
        if index not in self._layers:
            self._layers[index] = (self._zeros(key), self._zeros(value))
        return self._layers[index]

    def kept(self, index: int) -> Tensor:
        """What `SlotContext.keep` has written under this index, [slots, 1, C, k]."""
        return self._layers[index][0]

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
        """Copy the first `tokens` tokens of slots `source` to slots `target`, pairwise (or one source to all).

        All of them are read before any is written, so that slots may change places.
        """
        if not tokens or not target:
            return
        self.reserve(tokens)
        origin = torch.tensor(source, device=self.device)
        destination = torch.tensor(target, device=self.device)
        for pair in self._layers.values():
            for cache in pair:
                cache[destination, :, :tokens] = cache[origin, :, :tokens]

    def taken(self, slot: int, tokens: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Copies [K, tokens, D] of a slot's keys and values, by layer."""
        return {
            index: (keys[slot, :, :tokens].clone(), values[slot, :, :tokens].clone())
            for index, (keys, values) in self._layers.items()
        }

    def put(self, slot: int, layers: Mapping[int, tuple[Tensor, Tensor]], tokens: int) -> None:
        """Write what `taken` gave into the first `tokens` places of a slot."""
        self.reserve(tokens)
        for index, pair in layers.items():
            for cache, kept in zip(self._layers[index], pair, strict=True):
                cache[slot, :, :tokens] = kept


@dataclass(frozen=True, eq=False)
class PrefillJob:
    """Token ids [n] whose keys and values fill positions past..past+n-1 of every slot in `slots`, computed once.

    With `past` > 0 there is one slot, which holds the keys and values of the tokens before.
    """

    token_ids: Ids
    slots: tuple[int, ...]
    past: int = 0


class Prefill:
    """Several jobs packed: what a step computes during decoding, and where its keys and values go."""

    def __init__(self, jobs: Sequence[PrefillJob], device: torch.device, least_rows: int) -> None:
        """`least_rows` pads a prefill without decoding up to the row count from which results stop changing."""
        whole, extending = [job for job in jobs if not job.past], [job for job in jobs if job.past]
        missing = least_rows - sum(len(job.token_ids) for job in jobs)
        padding = [PrefillJob(np.zeros(missing, np.int64), ())] if missing > 0 else []
        rows = [*whole, *padding, *extending]
        self.token_ids: Ids = np.concatenate([job.token_ids for job in rows])
        self.positions: Ids = np.concatenate([job.past + np.arange(len(job.token_ids)) for job in rows])
        lengths = [len(job.token_ids) for job in (*whole, *padding)]
        self.context = PackedContext(lengths, device) if lengths else None
        self.packed = sum(lengths)
        token, slot, position = [], [], []
        self.extensions: list[Extension] = []
        start = 0
        for job in rows:
            n = len(job.token_ids)
            token.append(np.tile(np.arange(start, start + n), len(job.slots)))
            position.append(np.tile(job.past + np.arange(n), len(job.slots)))
            slot.append(np.repeat(np.array(job.slots, np.int64), n))
            if job.past:
                self.extensions.append(Extension(start, start + n, job.slots[0], job.past))
            start += n
        self.token, self.slot, self.position = (
            torch.from_numpy(np.concatenate(part)).to(device) for part in (token, slot, position)
        )
        # The slots of the rows that extend what these hold, and the position of each row.
        slots = [extension.slot for extension in self.extensions for _ in range(extension.start, extension.stop)]
        self.slots = torch.tensor(slots, dtype=torch.int64, device=device)
        self.places = torch.from_numpy(self.positions[self.packed :]).to(device)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, cache: SlotCache, scale: float, kind: AttentionKind
    ) -> list[Tensor]:
        """Attention of the R rows, in order: whole prompts over themselves, the others over their slots in the cache,
        where their own keys and values stand already; query [R, H, D], key and value [R, K, D]."""
        parts: list[Tensor] = []
        n = self.packed
        if self.context is not None:
            parts.append(self.context.attend(layer, query[:n], key[:n], value[:n], scale, kind))
        keys, values = cache.layer(layer, key, value)
        if self.extensions and cache.kernels is not None:
            first = None if kind.reach == EVERYTHING else kind.reach.first(self.places)
            parts.append(torch.empty_like(query[n:], memory_format=torch.contiguous_format))
            cache.kernels.read(query[n:], keys, values, self.slots, self.places + 1, first, scale, parts[-1])
            return parts
        for start, stop, slot, past in self.extensions:
            length = past + stop - start
            seen = kind.reach.seen(self.places[start - n : stop - n], length)
            k, v = keys[None, slot, :, :length], values[None, slot, :, :length]
            rows = query[None, start:stop].transpose(1, 2)
            if kind.softmax:
                found = scaled_dot_product_attention(rows, k, v, seen, scale=scale, enable_gqa=True)
            else:
                found = explicit(rows, k, v, seen, scale, kind)
            parts.append(found[0].transpose(0, 1))
        return parts


class Extension(NamedTuple):
    """Rows `start` to `stop` of a prefill go on from the `past` tokens that slot `slot` holds."""

    start: int
    stop: int
    slot: int
    past: int


class SlotContext:
    """Attention of one engine step: W decoding rows over their slots, then the rows of a prefill over themselves.

    New keys and values are written before they are read, and the prefill's before the decoding rows', so that a
    sequence admitted in this very step already sees its prompt.
    """

    def __init__(
        self, cache: SlotCache, positions: Tensor, prefill: Prefill | None, running: Tensor, longest: int
    ) -> None:
        """`positions` int64 [W] of the decoding tokens in slots 0..W-1, of which those `running` bool [W] count.

        Without kernels, all rows read the first `longest` keys of their slots, within the capacity.
        """
        self.cache = cache
        self.prefill = prefill
        self.positions = positions
        self.width = len(positions)
        self.longest = longest
        self._firsts: dict[Reach, Tensor] = {}
        self._seen: dict[tuple[Reach, bool], Tensor] = {}
        if cache.kernels is not None:
            self.running = running
            self.lengths = (positions + 1) * running
        elif self.width:
            self.rows = torch.arange(self.width, device=positions.device)

    def keep(self, index: int, values: Tensor) -> None:
        """Write values [W + R, 1, k] of every token where its keys are, as their own layer."""
        places, _ = self.cache.layer(index, values, values[..., :0])
        w, p = self.width, self.prefill
        if p is not None:
            places[p.slot, :, p.position] = values[w:][p.token]
        if w:
            rows = torch.arange(w, device=values.device)
            places[rows, :, self.positions] = values[:w]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: AttentionKind = PLAIN
    ) -> Tensor:
        """Attention [W + R, H, D] of query [W + R, H, D], key and value [W + R, K, D]."""
        keys, values = self.cache.layer(layer, key, value)
        parts: list[Tensor] = []
        w, p = self.width, self.prefill
        if p is not None:
            keys[p.slot, :, p.position] = key[w:][p.token]
            values[p.slot, :, p.position] = value[w:][p.token]
        if w and self.cache.kernels is not None:
            if not kind.softmax:
                raise ValueError(f"layer {layer}: the compiled decoding knows neither caps nor sinks")
            output = torch.empty_like(query, memory_format=torch.contiguous_format)
            self.cache.kernels.decode(
                query[:w], key[:w], value[:w], keys, values, self.lengths, self._first(kind.reach), scale, output
            )
            if p is not None:
                output[w:] = _joined(p.attend(layer, query[w:], key[w:], value[w:], self.cache, scale, kind))
            return output
        if w:
            keys[self.rows, :, self.positions] = key[:w]
            values[self.rows, :, self.positions] = value[:w]
            parts.append(_decode(query[:w], keys, values, self.longest, self._mask(kind), scale, kind))
        if p is not None:
            parts += p.attend(layer, query[w:], key[w:], value[w:], self.cache, scale, kind)
        return _joined(parts)

    def _first(self, reach: Reach) -> Tensor | None:
        """The first key that each decoding row sees, int64 [W]; None where all see all."""
        if reach == EVERYTHING:
            return None
        if reach not in self._firsts:
            self._firsts[reach] = reach.first(self.positions) * self.running
        return self._firsts[reach]

    def _mask(self, kind: AttentionKind) -> Tensor:
        """What the rows see [W, 1, longest]: as a bias of 0 and -inf, or as bool where scores are bent."""
        key = kind.reach, kind.softmax
        if key not in self._seen:
            seen = kind.reach.seen(self.positions, self.longest)
            mask = torch.where(seen, 0.0, -torch.inf) if kind.softmax else seen
            self._seen[key] = mask[:, None]
        return self._seen[key]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _decode(
    query: Tensor, keys: Tensor, values: Tensor, length: int, mask: Tensor, scale: float, kind: AttentionKind
) -> Tensor:
    """One query [w, H, D] a slot over the first `length` keys and values of slots 0..w-1, [w, H, D]."""
    w, h, d = query.shape
    kv, capacity = keys.shape[1:3]
    part = slice(w * kv)
    k = keys.view(-1, capacity, d)[part, :length]
    v = values.view(-1, capacity, values.shape[-1])[part, :length]
    grouped = query.reshape(w * kv, h // kv, d)
    if not kind.softmax:
        scores = torch.bmm(grouped, k.transpose(1, 2)).view(w, h, 1, length) * scale
        weights = kind.weights(scores, mask[:, None]).to(v.dtype)
    elif query.device.type == "cpu" and query.dtype != torch.float32:
        # Keys on the left: the other way round a CPU's half-precision product first copies all of them.
        scores = torch.bmm(k, grouped.transpose(1, 2)).transpose(1, 2).reshape(w, h, length)
        weights = torch.add(mask, scores, alpha=scale).softmax(-1).to(v.dtype)
    else:
        scores = torch.baddbmm(grouped.new_empty(1, 1, 1), grouped, k.transpose(1, 2), beta=0, alpha=scale)
        scores = scores.view(w, h, length)
        # In place where that needs no other type.
        scores = scores.add_(mask) if scores.dtype == torch.float32 else scores.float() + mask
        weights = scores.softmax(-1).to(v.dtype)
    return torch.bmm(weights.view(w * kv, h // kv, length), v).view(w, h, -1)


MIB = 1 << 20


class InSlot(NamedTuple):
    """A sequence whose keys and values are still in the slot where it ran: of the tokens [n], by weights `version`."""

    name: str
    token_ids: Ids
    version: int


class Copied(NamedTuple):
    """Copies of keys and values [K, n, D] of each layer, of the tokens [n], the last of which `version` computed."""

    token_ids: Ids
    version: int
    layers: dict[int, tuple[Tensor, Tensor]]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(one.nbytes for pair in self.layers.values() for one in pair)


class KeptKeys:
    """Keys and values by the name of a trajectory: in the free slot where it ran, and copied once that slot is wanted.

    Beyond `mebibytes` the oldest copies are dropped; with 0 nothing is kept.
    """

    def __init__(self, cache: SlotCache, mebibytes: int) -> None:
        self._cache = cache
        self._keeps = mebibytes > 0
        self._room = mebibytes * MIB
        self._in_slots: dict[int, InSlot] = {}
        self._slots: dict[str, int] = {}
        self._copies: dict[str, Copied] = {}

    def keep(self, name: str, slot: int, token_ids: Ids, version: int) -> None:
        """Keep what a slot holds of `token_ids` [n]; the slot is free from now on."""
        self._drop(name)
        if not self._keeps:
            return
        self._in_slots[slot] = InSlot(name, token_ids, version)
        self._slots[name] = slot
        if len(token_ids) >= self._cache.capacity:  # a free slot writes behind its tokens, or in the last place
            self.vacate(slot)

    def holds(self, slot: int) -> bool:
        """Whether a free slot holds keys and values that may be wanted again."""
        return slot in self._in_slots

    def vacate(self, slot: int) -> None:
        """Copy the keys and values of a slot that another sequence needs."""
        if slot not in self._in_slots:
            return
        name, token_ids, version = self._in_slots.pop(slot)
        del self._slots[name]
        copied = Copied(token_ids, version, self._cache.taken(slot, len(token_ids)))
        self._room -= copied.nbytes
        self._copies[name] = copied
        while self._room < 0:
            self._drop(next(iter(self._copies)))

    def slot_of(self, name: str, token_ids: Ids) -> int | None:
        """The slot in which `token_ids` [L] can go on from what was kept under this name; None where none holds it."""
        slot = self._slots.get(name)
        return slot if slot is not None and _goes_on(self._in_slots[slot].token_ids, token_ids) else None

    def resume(self, name: str, slot: int, token_ids: Ids) -> int:
        """Have the keys and values of what was kept under this name, where `token_ids` [L] go on from it, in `slot`.

        Returns:
            Of how many tokens, fewer than L; 0 where there is nothing. It is not kept any longer.
        """
        if self.slot_of(name, token_ids) == slot:
            kept = self._in_slots[slot].token_ids
            self._drop(name)
            return len(kept)
        copied = self._copies.get(name)
        self._drop(name)
        if copied is None or not _goes_on(copied.token_ids, token_ids):
            return 0
        self._cache.put(slot, copied.layers, len(copied.token_ids))
        return len(copied.token_ids)

    def forget_before(self, version: int) -> None:
        """Drop what was kept before weights `version`: its trajectory has ended."""
        versions = {name: copied.version for name, copied in self._copies.items()}
        versions |= {kept.name: kept.version for kept in self._in_slots.values()}
        for name in [name for name, of in versions.items() if of < version]:
            self._drop(name)

    def clear(self) -> None:
        """Drop everything."""
        for name in [*self._copies, *self._slots]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        slot, copied = self._slots.pop(name, None), self._copies.pop(name, None)
        if slot is not None:
            del self._in_slots[slot]
        if copied is not None:
            self._room += copied.nbytes


def _goes_on(kept: Ids, token_ids: Ids) -> bool:
    """Whether `token_ids` [L] begin with the tokens `kept` [n], n < L."""
    return len(kept) < len(token_ids) and np.array_equal(kept, token_ids[: len(kept)])
