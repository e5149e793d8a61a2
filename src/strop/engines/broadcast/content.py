"""What is sent: which tensors, how they are cut into buckets, and what they are checked by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_PRIME = (1 << 31) - 1
_COLUMNS = 1024


@dataclass(frozen=True)
class Entry:
    """A tensor of a version: its type as torch names it, such as `float32`."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def empty(self, device: torch.device | str | None = None) -> Tensor:
        """Such a tensor, of whatever is in memory."""
        import torch

        return torch.empty(self.shape, dtype=getattr(torch, self.dtype), device=device)


def described(weights: Mapping[str, Tensor]) -> list[Entry]:
    """What will be sent; of sharded tensors the whole shapes."""
    return [Entry(name, str(one.dtype).removeprefix("torch."), tuple(one.shape)) for name, one in weights.items()]


@dataclass(frozen=True)
class Cut:
    """`length` bytes of tensor number `tensor` from `start` on, which lie in a bucket from `place` on."""

    tensor: int
    start: int
    place: int
    length: int


def buckets(sizes: Sequence[int], room: int) -> Iterator[tuple[list[Cut], int]]:
    """Tensors of so many bytes end to end, in buckets of `room` bytes: the cuts of each bucket, and its length.

    Example: sizes 3 and 4 in buckets of 5: [(0, 0, 0, 3), (1, 0, 3, 2)], 5, then [(1, 2, 0, 2)], 2.
    """
    cuts: list[Cut] = []
    place = 0
    for number, size in enumerate(sizes):
        start = 0
        while start < size or size == start == 0:
            length = min(size - start, room - place)
            cuts.append(Cut(number, start, place, length))
            start, place = start + length, place + length
            if place == room:
                yield cuts, place
                cuts, place = [], 0
            if size == 0:
                break
    if place:
        yield cuts, place


def piece(content: Tensor, start: int, cut: Cut) -> Tensor:
    return content[start : start + cut.length]


def as_bytes(tensor: Tensor) -> Tensor:
    """The content of a tensor as uint8 [bytes]; the same memory where it is contiguous."""
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def checksum(tensor: Tensor) -> Tensor:
    """A number of 31 bits that depends on every bit of a tensor and on where it is, computed where the tensor lies.

    The words of 32 bits are laid out in rows of 1024; sums of columns and of rows are each weighted by their place.
    Meant against what goes wrong in transfers (a piece that is missing, twice, elsewhere or of before), not against
    whoever wants to deceive.
    """
    import torch

    content = as_bytes(tensor)
    if content.data_ptr() % 4:
        content = content.clone()
    whole = len(content) // 4 * 4
    words = content[:whole].view(torch.int32)
    rows = len(words) // _COLUMNS
    table = words[: rows * _COLUMNS].view(rows, _COLUMNS)
    parts = (
        table.sum(0, dtype=torch.int64),
        table.sum(1, dtype=torch.int64),
        words[rows * _COLUMNS :].long(),
        content[whole:].long(),
    )
    total = torch.full((), len(content), dtype=torch.int64, device=content.device)
    for number, part in enumerate(parts):
        weights = torch.arange(1, len(part) + 1, device=part.device) % 1_048_573 + 1 + number
        total = total + ((part % _PRIME) * weights % _PRIME).sum() * (number + 1)
    return total % _PRIME


def on_host(sums: Sequence[Tensor]) -> list[int]:
    """Checksums as numbers; the host waits for the device once."""
    import torch

    return [int(one) for one in torch.stack(list(sums)).tolist()] if sums else []


def size_of(entry: Entry) -> int:
    import torch

    return math.prod(entry.shape) * int(getattr(torch, entry.dtype).itemsize)
