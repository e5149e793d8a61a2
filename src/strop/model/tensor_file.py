"""safetensors files, written tensor by tensor and hashed on the way: no second copy in memory, and plain `OSError`s.

Tensors of several processes lie in a file of each, which holds the process's rows of them; `read` puts the rows
together, or takes from them what a process of any other number of them keeps.

The library's own `save_file` needs every tensor on the CPU at once, refuses shared storage, and reports a full disk as
a string. The format is small: a little-endian u64, that many bytes of JSON header, then the tensors end to end.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from safetensors import safe_open
from torch import Tensor

Groups = Mapping[str, Mapping[str, Tensor]]  # tensors by the name of their group and their own

_DTYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.uint64: "U64",
    torch.float32: "F32", torch.int32: "I32", torch.uint32: "U32",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.int16: "I16", torch.uint16: "U16",
    torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_CHUNK = 1 << 24
_PIECE = 8 << 20


class Digest:
    """SHA-256 of the SHA-256 of every 8 MiB of an open file, hashed in other threads while the file grows.

    Processors have instructions for SHA-256, and hashing lets other threads run.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pool = ThreadPoolExecutor(min(16, len(os.sched_getaffinity(0))))
        self._pieces: list[Future[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def grown(self, size: int) -> None:
        """The file has `size` bytes by now: its whole pieces are hashed."""
        while (start := len(self._pieces) * _PIECE) + _PIECE <= size:
            self._pieces.append(self._pool.submit(self._piece, start))

    def hexdigest(self, size: int) -> str:
        """The digest of the file, which has `size` bytes."""
        self.grown(size)
        last = self._piece(len(self._pieces) * _PIECE)
        return hashlib.sha256(b"".join([*(piece.result() for piece in self._pieces), last])).hexdigest()

    def _piece(self, start: int) -> bytes:
        return hashlib.sha256(os.pread(self._descriptor, _PIECE, start)).digest()


def facts_of(path: str | Path) -> tuple[int, str]:
    """A file's size in bytes and its digest.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file, Digest(file.fileno()) as digest:
        size = os.fstat(file.fileno()).st_size
        return size, digest.hexdigest(size)


def write(path: Path, tensors: Mapping[str, Tensor], whole: Iterator[Tensor] | None = None) -> tuple[int, str]:
    """Write `tensors`, or what they are `whole`, to `path`; returns the file's size in bytes and its digest.

    Raises:
        OSError: as the file system gives it.
        ValueError: a dtype that the format does not have.
    """
    with path.open("w+b", buffering=0) as file, Digest(file.fileno()) as digest:
        for part in parts(tensors, whole):
            left = memoryview(part)
            while left:
                left = left[file.write(left) :]
            digest.grown(file.tell())
        return file.tell(), digest.hexdigest(file.tell())


def ordered(tensors: Mapping[str, Tensor]) -> list[str]:
    """Their names in the order in which they lie in a file."""
    # Wide elements first, as the library does it: every tensor then starts at a multiple of its element size.
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def parts(tensors: Mapping[str, Tensor], whole: Iterator[Tensor] | None = None) -> Iterator[bytes | memoryview]:
    """The bytes of the file in order; a tensor that is not on the CPU is there only while its parts are asked for.

    Args:
        tensors: by name.
        whole: where `tensors` are sharded, each of them whole, in order; one at a time is asked for.

    Raises:
        ValueError: a dtype that the format does not have.
    """
    order = ordered(tensors)
    header: dict[str, object] = {}
    start = 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in _DTYPES:
            raise ValueError(f"tensor {name}: safetensors has no {tensor.dtype}")
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in order:
        yield from _chunks(tensors[name] if whole is None else next(whole))


class Layout(Protocol):
    """Which rows of a tensor a process keeps, and how they lie in its memory."""

    def rows(self, length: int) -> slice:
        """The process's rows of a tensor of `length` rows."""
        ...

    def lay(self, own: Tensor, shape: torch.Size) -> Tensor:
        """These rows, on the CPU, of a tensor of that shape as the process wants them."""
        ...


class Whole:
    """Everything, on the CPU."""

    def rows(self, length: int) -> slice:
        """All of them."""
        return slice(0, length)

    def lay(self, own: Tensor, shape: torch.Size) -> Tensor:
        """The tensor itself."""
        return own


WHOLE = Whole()


class Mapped(dict[str, Tensor]):
    """The tensors of one file by name, mapped; other processes of this machine may open `path` while they are used."""

    def __init__(self, path: Path) -> None:
        super().__init__(read([path]))
        self.path = path


def read(paths: Sequence[Path], layout: Layout = WHOLE) -> dict[str, Tensor]:
    """The tensors of a file, or of files that hold their rows one after the other, by name.

    A scalar lies in the first file, and stays on the CPU as it is.
    """
    with ExitStack() as opened:
        files = [opened.enter_context(safe_open(path, framework="pt")) for path in paths]
        names = [set(file.keys()) for file in files]
        return {
            name: _joined(name, [file for file, known in zip(files, names, strict=True) if name in known], layout)
            for name in files[0].keys()  # noqa: SIM118  (it is no dictionary)
        }


def _joined(name: str, files: Sequence[Any], layout: Layout) -> Tensor:
    """The rows that a layout keeps of a tensor whose rows lie in these files."""
    shapes = [file.get_slice(name).get_shape() for file in files]
    if not shapes[0]:
        scalar: Tensor = files[0].get_tensor(name)
        return scalar
    shape = torch.Size([sum(part[0] for part in shapes), *shapes[0][1:]])
    wanted = layout.rows(shape[0])
    found, begin = [], 0
    for file, (length, *_) in zip(files, shapes, strict=True):
        first, last = max(wanted.start - begin, 0), min(wanted.stop - begin, length)
        if first == 0 and last == length:
            found.append(file.get_tensor(name))
        elif first < last:
            found.append(file.get_slice(name)[first:last])
        begin += length
    own = torch.cat(found) if len(found) > 1 else found[0] if found else files[0].get_tensor(name)[:0]
    return layout.lay(own, shape)


def _chunks(tensor: Tensor) -> list[memoryview]:
    """The bytes of a tensor, row-major, in pieces of at most 16 MiB."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    if not flat.numel():
        return []
    content = flat.view(torch.uint8).numpy().data
    return [content[at : at + _CHUNK] for at in range(0, len(content), _CHUNK)]
