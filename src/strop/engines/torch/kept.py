"""Keys and values of sequences that wait for their environment, until the next turn goes on from them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from strop.engines.torch.kv import Ids

MIB = 1 << 20


class Kept(NamedTuple):
    """Keys and values [K, n, D] of each layer, of the tokens [n], the last of which weights `version` computed."""

    token_ids: Ids
    version: int
    layers: dict[int, tuple[Tensor, Tensor]]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(one.nbytes for pair in self.layers.values() for one in pair)


class KeptKeys:
    """By the name of a trajectory; beyond `mebibytes` those that lie here longest make room."""

    def __init__(self, mebibytes: int) -> None:
        self._room = mebibytes * MIB
        self._kept: dict[str, Kept] = {}

    def put(self, name: str, kept: Kept) -> None:
        """Keep what may be wanted again."""
        self._take_out(name)
        self._room -= kept.nbytes
        self._kept[name] = kept
        while self._room < 0:
            self._take_out(next(iter(self._kept)))

    def take(self, name: str, token_ids: Ids) -> Kept | None:
        """What was kept under this name, where `token_ids` [L], L > n, go on from it; it is not kept any longer."""
        kept = self._take_out(name)
        if kept is None or not np.array_equal(kept.token_ids, token_ids[: len(kept.token_ids)]):
            return None
        return kept if len(kept.token_ids) < len(token_ids) else None

    def forget_before(self, version: int) -> None:
        """Drop what lies here since before weights `version`: its trajectory has ended."""
        for name in [name for name, kept in self._kept.items() if kept.version < version]:
            self._take_out(name)

    def clear(self) -> None:
        """Drop everything."""
        for name in list(self._kept):
            self._take_out(name)

    def _take_out(self, name: str) -> Kept | None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._room += kept.nbytes
        return kept
