"""Pages of keys and values: who owns which, shared by the samples of a group, and given back at the last owner's end.

Page 0 is nobody's: tables point there where a row has no page, and what an empty row writes may land in it.

Shapes: P pages, K key/value heads, S tokens of a page, D head dimension, Q slots, W pages of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequence_

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.engines.torch.kernels import Heads, LayerCache
from strop.engines.torch.kv import Ids
from strop.model.attention import PackedContext


class PagePool:
    """Which of `count` pages are free, and how many owners each of the others has."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, 0, -1))
        self._owners = np.zeros(count, np.int64)

    @property
    def available(self) -> int:
        """Free pages."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` free pages, with one owner each; the caller has looked at `available`."""
        if count > len(self._free):
            raise ValueError(f"{count} pages asked for, {len(self._free)} are free")
        taken = self._free[len(self._free) - count :][::-1]
        del self._free[len(self._free) - count :]
        self._owners[taken] = 1
        return taken

    def share(self, pages: Sequence_[int]) -> None:
        """One more owner of each of `pages` (distinct)."""
        self._owners[list(pages)] += 1

    def drop(self, pages: Sequence_[int]) -> None:
        """One owner less of each of `pages` (distinct); those that have none left are free."""
        where = list(pages)
        if not where:
            return
        self._owners[where] -= 1
        if self._owners[where].min() < 0:
            raise ValueError("a page was given back more often than it was taken")
        self._free += [page for page in where if not self._owners[page]]


class PagedCache:
    """Keys and values of all layers, each [P, K, S, D]; zeros until written, so that none is ever not a number."""

    def __init__(self, layers: int, pages: int, page: int, heads: Heads, dtype: torch.dtype, device: torch.device):
        shape = (pages, heads.kv, page, heads.dim)
        self.page = page
        self.pages = pages
        self.device = device
        self.layers = [
            LayerCache(*(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))) for _ in range(layers)
        ]

    def copy(self, source: int, targets: Sequence_[int]) -> None:
        """Copy page `source` to the pages `targets`."""
        if targets:
            to = sent(np.array(targets, np.int64), self.device)
            for keys, values in self.layers:
                keys[to] = keys[source].clone()
                values[to] = values[source].clone()

    def clear(self) -> None:
        """Give the memory back; the cache cannot be used any more."""
        self.layers.clear()


def page_bytes(layers: int, page: int, heads: Heads, dtype: torch.dtype) -> int:
    """Bytes of one page in all layers."""
    return 2 * layers * page * heads.kv * heads.dim * dtype.itemsize


def sent(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """An array that nobody writes to any more as a tensor on the device; the host does not wait for the copy."""
    given = torch.from_numpy(np.ascontiguousarray(values))
    if device.type != "cuda":
        return given.to(device)
    # Pinned memory goes back to PyTorch's allocator, which hands it out again only when the copy is over.
    return given.pin_memory().to(device, non_blocking=True)


class PagedJob:
    """Token ids [n] to compute, and the places that their keys and values go to.

    Attributes:
        token, page, place: int64 [m], token `token` of the job goes to place `place` of page `page`.
    """

    def __init__(self, token_ids: Ids) -> None:
        self.token_ids = token_ids
        self._parts: list[tuple[Ids, Ids, Ids]] = []

    def write(self, pages: Sequence_[int], page: int, first: int = 0) -> None:
        """Tokens from `first` on, a whole number of pages, go to `pages` in order, as far as those reach."""
        token = np.arange(first, min(len(self.token_ids), first + len(pages) * page))
        if len(token):
            self._parts.append((token, np.array(pages, np.int64)[(token - first) // page], token % page))

    def places(self) -> tuple[Ids, Ids, Ids]:
        """`token`, `page` and `place`."""
        empty = np.zeros(0, np.int64)
        columns = zip(*self._parts, strict=True) if self._parts else ((empty,),) * 3
        token, page, place = (np.concatenate(column) for column in columns)
        return token, page, place


class PagedPrefill:
    """Jobs packed into one forward pass: an attention context that writes keys and values to their pages."""

    def __init__(self, cache: PagedCache, jobs: Sequence_[PagedJob], least_rows: int) -> None:
        """`least_rows` pads the pass up to the row count from which results stop changing."""
        ids = [job.token_ids for job in jobs]
        missing = least_rows - sum(map(len, ids))
        if missing > 0:
            ids.append(np.zeros(missing, np.int64))
        self._cache = cache
        self._packed = PackedContext([len(part) for part in ids], cache.device)
        columns: list[tuple[Ids, Ids, Ids]] = []
        start = 0
        for job in jobs:
            token, page, place = job.places()
            columns.append((token + start, page, place))
            start += len(job.token_ids)
        places = (np.concatenate(column) for column in zip(*columns, strict=True))
        self._token, self._page, self._place = (sent(column, cache.device) for column in places)
        self.token_ids = sent(np.concatenate(ids), cache.device)
        self.positions = sent(np.concatenate([np.arange(len(part)) for part in ids]), cache.device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention [N, H, D]; see `strop.model.attention.AttentionContext`."""
        keys, values = self._cache.layers[layer]
        keys[self._page, :, self._place] = key[self._token]
        values[self._page, :, self._place] = value[self._token]
        return self._packed.attend(layer, query, key, value, scale)
