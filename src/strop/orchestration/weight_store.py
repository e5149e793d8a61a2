"""The weight store: each published version is a file in memory or in the run's folder, read whole or refused.

    store = WeightStore(version_bytes, note)
    store.start(folder)
    stored = store.publish(learner.publish, 7)      # `learner.publish` writes a `WeightFile`
    weights = read(stored)                          # in a generator: mapped, hash checked, not copied
    store.keep({7})                                 # older versions go

A file in memory has no name (`memfd_create`). Other processes of this machine open it as /proc/PID/fd/N. It needs no
tmpfs of a certain size (a container's /dev/shm has 64 MiB), and the kernel frees it when this process and its readers
have ended, however they end.

To another machine a version may go as a difference to an earlier one:

    delta = difference(base, content)               # None: send the content
    b"".join(patched(base, delta)) == content
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from strop.base import machine
from strop.base.imports import command
from strop.base.types import StropError
from strop.model import tensor_file
from strop.orchestration.messages import StoredWeights
from strop.training.checkpoint import DiskFull

FOLDER = "weights"  # in the run's folder
EVALUATED = "weights-evaluated"  # likewise, of the versions that are being evaluated
DISK_FULL_TRIES = 3
DISK_FULL_SECONDS = 1.0
_FREE_VERSIONS = 2  # memory that must be free for a version to be stored there


@dataclass(frozen=True)
class WeightFile:
    """The file of one version; it need not exist before it is written."""

    path: Path

    def write(
        self, version: int, weights: Iterable[tuple[str, Tensor]], whole: Iterator[Tensor] | None = None
    ) -> StoredWeights:
        """Store a version; see `tensor_file.parts` for weights that are sharded.

        Raises:
            DiskFull: there is no room for it.
        """
        try:
            size, digest = tensor_file.write(self.path, dict(weights), whole)
            return StoredWeights(version, str(self.path), digest, size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no space at {self.path} for the weights of version {version}") from error
            raise


def read(stored: StoredWeights) -> tensor_file.Mapped:
    """The tensors of a version by name, on the CPU, checked; they stay in the mapped file until they are copied.

    Raises:
        StropError: the file is missing, or its content is not what was written.
    """
    try:
        if tensor_file.facts_of(stored.path) == (stored.bytes, stored.digest):
            return tensor_file.Mapped(Path(stored.path))
    except OSError as error:
        raise StropError(f"weights of version {stored.version}: cannot read {stored.path}: {error}") from error
    raise StropError(f"weights of version {stored.version}: {stored.path} is not what the trainer has written")


Publish: TypeAlias = Callable[[WeightFile, int], StoredWeights]


class WeightStore:
    """The versions that workers read. It belongs to one process, and ends with it.

    Args:
        version_bytes: the approximate size of a version, which decides whether memory has room for it.
        note: receives a line where the disk is full.
        within: the name of the folder in the run's folder.
    """

    def __init__(self, version_bytes: int, note: Callable[[str], None], within: str = FOLDER) -> None:
        self._version_bytes = version_bytes
        self._note = note
        self._within = within
        self._folder = Path()
        self._descriptors: dict[int, int] = {}  # of the versions in memory
        self._needed: set[int] = set()

    @property
    def root(self) -> Path:
        """The folder of the versions that are not in memory."""
        return self._folder / self._within

    def start(self, folder: Path) -> None:
        """Begin for the run in `folder`; what a killed process of the run has left there is removed."""
        self._folder = folder.resolve()
        shutil.rmtree(self.root, ignore_errors=True)

    def publish(self, publish: Publish, version: int) -> StoredWeights:
        """Store a version, which `publish` writes into the file that it is given; earlier versions stay.

        Raises:
            StropError: there is no room for it.
        """
        for attempt in range(DISK_FULL_TRIES):
            try:
                return publish(self._file(version), version)
            except DiskFull as error:
                self.keep(self._needed)
                if attempt + 1 < DISK_FULL_TRIES:
                    self._note(f"{error}; trying again")
                    time.sleep(DISK_FULL_SECONDS)
        raise StropError(
            f"the weights of version {version} could not be published in {DISK_FULL_TRIES} tries: no space in "
            f"{self.root}; free some, then go on with: {command('train --resume', self._folder)}"
        )

    def keep(self, versions: Collection[int]) -> None:
        """Remove all other versions; a worker that has one mapped keeps what it reads."""
        self._needed = set(versions)
        for version in self._descriptors.keys() - self._needed:
            os.close(self._descriptors.pop(version))
        for file in self.root.glob("weights-*.safetensors"):
            if int(file.stem.removeprefix("weights-")) not in self._needed:
                file.unlink(missing_ok=True)

    def release(self) -> None:
        """Remove all versions; may be called twice."""
        self.keep(())
        shutil.rmtree(self.root, ignore_errors=True)

    def _file(self, version: int) -> WeightFile:
        """A new file for a version."""
        if machine.memory()[1] > _FREE_VERSIONS * self._version_bytes:
            descriptor = os.memfd_create(f"strop-weights-{version}")
            if version in self._descriptors:
                os.close(self._descriptors[version])
            self._descriptors[version] = descriptor
            return WeightFile(Path(f"/proc/{os.getpid()}/fd/{descriptor}"))
        self.root.mkdir(parents=True, exist_ok=True)
        return WeightFile(self.root / f"weights-{version}.safetensors")


# ---------------------------------------------------------------------- the difference between two versions

# A step of AdamW at a learning rate of 1e-6 moves most bfloat16 values by less than half of their last digit, so that
# they stay what they are. Differences are of files, whose layout is the same for every version of a model, and exact.
# Of each run of 256 words (16 bits) a difference has the number of changed ones (16 bits); then come the place of each
# within its run (8 bits) and its value. With a share c of the words changed it takes 0.4 % + 1.5 c of the file.

Bytes = NDArray[np.uint8]

MOST = 0.25  # of the content: a larger difference is not worth its time, and the next ones would be larger still
_RUN = 256  # words
_PIECE = 1 << 24  # bytes that one thread compares at a time


def difference(base: Bytes, content: Bytes) -> Bytes | None:
    """What makes `content` of `base`; None where their lengths differ or are odd, or it would be larger than `MOST`."""
    if len(base) != len(content) or len(base) % 2:
        return None
    old, new = base.view(np.uint16), content.view(np.uint16)
    room = int(MOST * len(content))
    found: list[Bytes] = []
    threads = min(8, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads) as pool:
        places = [slice(start, start + _PIECE // 2) for start in range(0, len(new), _PIECE // 2)]
        for first in range(0, len(places), threads):
            found += pool.map(lambda part: _changed(old[part], new[part]), places[first : first + threads])
            if sum(map(len, found)) > room:
                return None
    return np.concatenate(found) if found else np.zeros(0, np.uint8)


def patched(base: Bytes, delta: Bytes) -> Iterator[memoryview]:
    """The content piece by piece; of a delta for another base it is anything, which its digest shows."""
    start = 0
    for place in range(0, len(base), _PIECE):
        words = base[place : place + _PIECE].copy().view(np.uint16)
        counts, start = _take(delta, start, -(-len(words) // _RUN), np.uint16)
        changed = int(counts.sum())
        within, start = _take(delta, start, changed, np.uint8)
        values, start = _take(delta, start, changed, np.uint16)
        words[np.repeat(np.arange(len(counts)) * _RUN, counts) + within] = values
        yield words.view(np.uint8).data


def _changed(old: NDArray[np.uint16], new: NDArray[np.uint16]) -> Bytes:
    places = np.flatnonzero(old != new)
    counts = np.bincount(places // _RUN, minlength=-(-len(new) // _RUN)).astype(np.uint16)
    within = (places % _RUN).astype(np.uint8)
    return np.concatenate([counts.view(np.uint8), within, new[places].view(np.uint8)])


def _take(delta: Bytes, start: int, count: int, kind: type[np.generic]) -> tuple[NDArray[Any], int]:
    end = start + count * np.dtype(kind).itemsize
    return np.frombuffer(delta[start:end].tobytes(), kind), end
