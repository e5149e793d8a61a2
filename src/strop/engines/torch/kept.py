"""Keys and values of sequences that wait for their environment, until the next turn goes on from them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from strop.engines.torch.kv import Ids, SlotCache

MIB = 1 << 20


class InSlot(NamedTuple):
    """A sequence whose keys and values still lie in the slot where it ran: of the tokens [n], by weights `version`."""

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

    Beyond `mebibytes` the copies that lie here longest make room; with 0 nothing is kept.
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
        """Copy what a slot holds, which is wanted for another sequence."""
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
        """Drop what lies here since before weights `version`: its trajectory has ended."""
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
