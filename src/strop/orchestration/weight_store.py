"""The weight store: each publication is a file that is there whole, or not at all.

    store = WeightStore(root)
    stored = store.write(7, policy.weights().items())       # root/weights-7.safetensors
    weights = read(stored)                                  # in a generator: mapped, hash checked, not copied
    store.keep({7})                                         # older versions go

A version is written to a temporary file, fsynced and renamed, so that a reader finds all of it or none. The digest is
SHA-256 of the SHA-256 of every 8 MiB: processors have instructions for it, and the pieces are hashed in parallel.

`claim` finds a place for the store: memory (/dev/shm) where there is room for it, else the run's folder. What a killed
run has left in memory is removed at the next claim of any run.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self, TextIO, TypeAlias

from torch import Tensor

from strop.base.files import TEMPORARY
from strop.base.imports import command
from strop.base.types import StropError
from strop.model import tensor_file
from strop.orchestration.messages import StoredWeights
from strop.training.checkpoint import DiskFull

MEMORY = Path("/dev/shm")
FOLDER = "weights"  # in the run's folder, where memory has no room
EVALUATED = "weights-evaluated"  # likewise, of the versions that are being evaluated
VERSIONS_AT_ONCE = 3  # the current one, the next, and one that a slow generator still reads
_PREFIX = "strop-"
_OWNER = "owner"
_PIECE = 8 << 20
_ABANDONED_SECONDS = 600.0


class WeightStore:
    """The versions under `root`. One process writes.

    Args:
        root: a folder; made when the first version is written.
        owner: the open lock file of a folder that `claim` made.
    """

    def __init__(self, root: Path, owner: TextIO | None = None) -> None:
        self.root = root
        self._owner = owner

    def write(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> StoredWeights:
        """Store a version.

        Raises:
            DiskFull: no room; what was written of it is removed, earlier versions are whole.
        """
        path = self.root / f"weights-{version}.safetensors"
        partial = path.with_name(f".{path.name}{TEMPORARY}")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with partial.open("w+b", buffering=0) as file, _Digest(file.fileno()) as digest:
                for part in tensor_file.parts(dict(weights)):
                    _write_all(file.fileno(), part)
                    digest.grown(file.tell())
                os.fsync(file.fileno())
                stored = StoredWeights(version, str(path), digest.hexdigest(file.tell()), file.tell())
            os.rename(partial, path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no space in {self.root} for the weights of version {version}") from error
            raise
        return stored

    def keep(self, versions: Collection[int]) -> None:
        """Remove every other version. A reader that has one mapped keeps what it reads."""
        names = {f"weights-{version}.safetensors" for version in versions}
        for file in self.root.glob("weights-*.safetensors"):
            if file.name not in names:
                file.unlink(missing_ok=True)

    def release(self) -> None:
        """Remove the folder and all versions in it; may be called twice."""
        shutil.rmtree(self.root, ignore_errors=True)  # what cannot be removed now is swept later
        if self._owner is not None:
            self._owner.close()
            self._owner = None


def read(stored: StoredWeights) -> dict[str, Tensor]:
    """The tensors of a version by name, on the CPU, checked; they stay in the mapped file until they are copied.

    Raises:
        StropError: the file is missing, or its content is not what was written.
    """
    try:
        with open(stored.path, "rb") as file, _Digest(file.fileno()) as digest:
            size = os.fstat(file.fileno()).st_size
            whole = size == stored.bytes and digest.hexdigest(size) == stored.digest
        if whole:
            return tensor_file.read([Path(stored.path)])
    except OSError as error:
        raise StropError(f"weights of version {stored.version}: cannot read {stored.path}: {error}") from error
    raise StropError(f"weights of version {stored.version}: {stored.path} is not what the trainer has written")


class _Digest:
    """SHA-256 of the SHA-256 of every 8 MiB of an open file, hashed in other threads while the file grows."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pool = ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0))))  # hashing lets other threads run
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


def _write_all(descriptor: int, part: bytes | memoryview) -> None:
    left = memoryview(part)
    while left:
        left = left[os.write(descriptor, left) :]


# ---------------------------------------------------------------------- places


def claim(folder: Path, version_bytes: int, memory: Path | None = MEMORY, within: str = FOLDER) -> WeightStore:
    """A store of the run in `folder`, whose versions have `version_bytes`; dead runs' stores are swept.

    It is in `memory` if a few versions fit into the free space there, else, or if `memory` is None, in
    `folder/WITHIN`. It belongs to this process as long as the process lives.
    """
    in_folder = folder / within
    shutil.rmtree(in_folder, ignore_errors=True)  # a killed run's
    if memory is None or not memory.is_dir() or not os.access(memory, os.W_OK):
        return WeightStore(in_folder)
    sweep(memory)
    if shutil.disk_usage(memory).free < VERSIONS_AT_ONCE * version_bytes:
        return WeightStore(in_folder)
    run = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=6).hexdigest()
    # Locked before it has its name, so that no sweep of another run takes it for abandoned.
    partial = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}{run}-{os.getpid()}-", suffix=TEMPORARY, dir=memory))
    owner = (partial / _OWNER).open("w")
    fcntl.flock(owner, fcntl.LOCK_EX)
    owner.write(f"{os.getpid()} {folder.resolve()}\n")
    owner.flush()
    root = memory / partial.name.removeprefix(".").removesuffix(TEMPORARY)
    os.rename(partial, root)
    return WeightStore(root, owner)


def sweep(memory: Path = MEMORY) -> list[Path]:
    """Remove the stores of processes that have ended, whose locks ended with them; returns what was removed."""
    swept: list[Path] = []
    for place in [*memory.glob(f"{_PREFIX}*"), *memory.glob(f".{_PREFIX}*{TEMPORARY}")]:
        try:
            if place.name.startswith(".") and time.time() - place.stat().st_mtime < _ABANDONED_SECONDS:
                continue  # perhaps being made
            with (place / _OWNER).open("r") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)  # another user's, or another sweep is quicker
                swept.append(place)
        except OSError:
            continue  # a living run's, another user's, or gone meanwhile
    return swept


Publish: TypeAlias = Callable[[WeightStore, int], StoredWeights]

DISK_FULL_TRIES = 3
DISK_FULL_SECONDS = 1.0


class WeightTransport:
    """Stores versions where workers read them, and removes those that are no longer needed.

    Args:
        version_bytes: the approximate size of a version, which decides where the files are.
        note: receives a line where a place is full.
        memory: the folder for files in memory; None stores in the run's folder only.
        within: the name of the folder in the run's folder.

    Attributes:
        places: the stores that are used, the present one last; none before `start`.
    """

    def __init__(
        self, version_bytes: int, note: Callable[[str], None], memory: Path | None = MEMORY, within: str = FOLDER
    ) -> None:
        self.places: list[WeightStore] = []
        self._version_bytes = version_bytes
        self._note = note
        self._memory = memory
        self._within = within
        self._folder = Path()
        self._needed: set[int] = set()

    def start(self, folder: Path) -> None:
        """Find a place for the versions of the run in `folder`."""
        self._folder = folder
        self.places = [claim(folder, self._version_bytes, self._memory, self._within)]

    def publish(self, publish: Publish, version: int) -> StoredWeights:
        """Store a version, which `publish` writes into the store that it is given; earlier versions stay.

        Raises:
            StropError: there is no room for it, in memory or in the run's folder.
        """
        for attempt in range(DISK_FULL_TRIES):
            try:
                return publish(self.places[-1], version)
            except DiskFull as error:
                self.keep(self._needed)
                on_disk = WeightStore(self._folder / self._within)
                if self.places[-1].root != on_disk.root:
                    self.places.append(on_disk)
                    self._note(f"{error}; from now on they go to {on_disk.root}")
                elif attempt + 1 < DISK_FULL_TRIES:
                    self._note(f"{error}; trying again")
                    time.sleep(DISK_FULL_SECONDS)
        raise StropError(
            f"the weights of version {version} could not be published in {DISK_FULL_TRIES} tries: no space in "
            f"{self.places[-1].root}; free some, then go on with: {command('train --resume', self._folder)}"
        )

    def keep(self, versions: Collection[int]) -> None:
        """Remove the files of all other versions; a worker that has one mapped keeps what it reads."""
        self._needed = set(versions)
        for place in self.places:
            place.keep(versions)

    def release(self) -> None:
        """Remove all weights; may be called twice."""
        for place in self.places:
            place.release()
