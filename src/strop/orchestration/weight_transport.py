"""How a version of the weights gets from the trainer to the generators that are told of it.

    StoredCarrier      trainer ─▶ a file in memory or on disk ◀─ generators read it, each when it comes to it
    CollectiveCarrier  trainer ─▶ broadcast ─▶ generators that have met it in a group of their own, all at once

Both end in the same: a generator has checked a whole version and swaps it in between two tokens, or has nothing. What
differs is who waits. A file is there for whoever comes; a broadcast has to be made again for each that was not there,
which is possible because weights change only between two publications.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from strop.base.imports import command
from strop.base.types import InputError, IntArray, StropError
from strop.engines.broadcast import BUCKET_BYTES, Channel, Ticket, TransferLost, Watch, give_up
from strop.engines.protocol import KvMode
from strop.orchestration.generator_handle import Member
from strop.orchestration.messages import StoredWeights
from strop.orchestration.weight_store import FOLDER, MEMORY, Claim, WeightStore, claim
from strop.training.checkpoint import DiskFull
from strop.training.rendezvous import open_store

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

Source: TypeAlias = Callable[[WeightStore, int], StoredWeights]
Sender: TypeAlias = Callable[[Ticket, Watch], str]

DISK_FULL_TRIES = 3
DISK_FULL_SECONDS = 1.0
FAILURES = 3  # of a version's broadcasts for which no death of a generator can be blamed
_DEATH_SECONDS = 1.0  # until a death is known that has cut a broadcast


class BroadcastsFail(StropError):
    """Broadcasts do not come through although everybody lives; files may."""


def broadcast_backend(
    way: Literal["auto", "shared_memory", "files", "collective"], executor: str, own: str, devices: Sequence[str]
) -> Literal["nccl", "gloo"] | None:
    """The backend of broadcasts from device `own` to generators on `devices`, as torch names them; None: no broadcasts.

    `executor` is `ray` where each generator is given a GPU that no other process has. `auto` broadcasts where all are
    GPUs of this host, each of one process.

    Raises:
        InputError: a broadcast is wanted, and two of those that would take part in it share a GPU.
    """
    on_gpus = own.startswith("cuda")
    shared = executor != "ray" and len({own, *devices}) <= len(devices)
    if way == "auto":
        return "nccl" if on_gpus and not shared and executor != "ray" else None
    if way != "collective":
        return None
    if on_gpus and shared:
        raise InputError(
            "orchestration.weights=collective: NCCL needs a GPU for each process, and trainer and generators have "
            f"{', '.join([own, *devices])}; use fewer generators, or orchestration.weights=shared_memory"
        )
    return "nccl" if on_gpus else "gloo"


class Carrier(Protocol):
    """Brings versions to generators. `start` comes first, `release` last."""

    @property
    def together(self) -> bool:
        """Whether generators get a version at the same time, so that it pays to wait for all that lack it."""
        ...

    def start(self, folder: Path) -> None:
        """The run in `folder` begins."""
        ...

    def prepare(self, version: int) -> None:
        """The trainer's parameters are `version` from now on, until `prepare` is called again.

        Raises:
            StropError: there is no room for them.
        """
        ...

    def bring(self, version: int, members: Sequence[Member], kv: KvMode, probe: IntArray, watch: Watch) -> None:
        """Have these load the version that was prepared, and answer the probe under it.

        Args:
            watch: hears what workers say, and replaces those that are dead; called where this has to wait.

        Raises:
            StropError: it cannot be done, however often it is tried.
        """
        ...

    def refused(self, version: int, number: int, reason: str) -> None:
        """A generator that lives has not got `version`, by its ticket `number`; it will be brought again.

        Raises:
            StropError: that was often enough.
        """
        ...

    def keep(self, versions: Collection[int]) -> None:
        """Other versions are not needed any more."""
        ...

    def release(self) -> None:
        """Leave nothing behind; may be called twice."""
        ...


class StoredCarrier:
    """Through files: in memory where there is room for them, else in the run's folder.

    Args:
        source: writes the trainer's present parameters into a store.
        version_bytes: about how large a version is, to choose where the store lies.
        note: is told, in one line, that memory is full.
        memory: where files in memory lie; None is not to use it.
    """

    together = False

    def __init__(
        self, source: Source, version_bytes: int, note: Callable[[str], None], memory: Path | None = MEMORY
    ) -> None:
        self.source = source
        self.claims: list[Claim] = []
        self._version_bytes = version_bytes
        self._note = note
        self._memory = memory
        self._folder = Path()
        self._stored: StoredWeights | None = None
        self._needed: set[int] = set()

    def start(self, folder: Path) -> None:
        """Find a place."""
        self._folder = folder
        self.claims = [claim(folder, self._version_bytes, self._memory)]

    def prepare(self, version: int) -> None:
        """Into memory; where it is full into the run's folder; where that is full too, again after a while."""
        for attempt in range(DISK_FULL_TRIES):
            try:
                self._stored = self.source(WeightStore(self.claims[-1].path), version)
                return
            except DiskFull as error:
                self.keep(self._needed)
                on_disk = Claim(self._folder / FOLDER, None)
                if self.claims[-1].path != on_disk.path:
                    self.claims.append(on_disk)
                    self._note(f"{error}; from now on they go to {on_disk.path}")
                elif attempt + 1 < DISK_FULL_TRIES:
                    self._note(f"{error}; trying again")
                    time.sleep(DISK_FULL_SECONDS)
        raise StropError(
            f"the weights of version {version} could not be published in {DISK_FULL_TRIES} tries: no space in "
            f"{self.claims[-1].path}; free some, then go on with: "
            f"{command('train --resume', self._folder)}"
        )

    def bring(self, version: int, members: Sequence[Member], kv: KvMode, probe: IntArray, watch: Watch) -> None:
        """Say where it lies."""
        assert self._stored is not None and self._stored.version == version
        for member in members:
            member.update(self._stored, kv, probe)

    def refused(self, version: int, number: int, reason: str) -> None:
        """A file cannot be missed."""
        raise StropError(f"the weights of version {version} were not read: {reason}")

    def keep(self, versions: Collection[int]) -> None:
        """Remove the files of others."""
        self._needed = set(versions)
        for place in self.claims:
            WeightStore(place.path).keep(versions)

    def release(self) -> None:
        """Remove the weights."""
        for place in self.claims:
            place.release()


class CollectiveCarrier:
    """By broadcasts of the trainer: nothing passes through files.

    Args:
        sender: broadcasts the trainer's present parameters; gives a digest of them.
        address: of this host as generators and trainer reach it; the store in which they meet listens there alone.
        backend: `nccl` where all weights lie on GPUs, each rank on one of its own, else `gloo`.
        seconds: after which a bucket that does not arrive is given up.
        note: is told of broadcasts that were lost, in one line each.
        bucket_bytes: of the buffer that each rank has besides.
    """

    together = True

    def __init__(
        self,
        sender: Sender,
        address: Callable[[], str],
        backend: str,
        seconds: float,
        note: Callable[[str], None],
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._sender = sender
        self._address = address
        self._backend = backend
        self._seconds = seconds
        self._note = note
        self._bucket_bytes = bucket_bytes
        self._store: TCPStore | None = None
        self._channel: Channel | None = None
        self._present: list[tuple[int, int, int]] = []  # members of the channel: number, life, ranks
        self._channels = self._sent = 0
        self._whole = 0  # the last broadcast of which everything was sent
        self._digest: str | None = None  # of the version that is current
        self._failures = 0

    def start(self, folder: Path) -> None:
        """Nothing yet: where this process is reached may only be known once a worker was launched."""

    def prepare(self, version: int) -> None:
        """Other parameters."""
        self._digest = None
        self._failures = 0

    def bring(self, version: int, members: Sequence[Member], kv: KvMode, probe: IntArray, watch: Watch) -> None:
        """Tell them of a broadcast, and have it made. Those that it does not reach say so, or are dead."""
        channel = self._channel_of(members)
        self._sent += 1
        rank = 1
        for member in members:
            member.update(Ticket(version, self._sent, rank, channel), kv, probe)
            rank += member.ranks
        lives = {member.number: member.life for member in members}

        def dead() -> list[str]:
            return [member.role for member in members if member.life != lives[member.number]]

        def look() -> None:
            try:
                watch()
            except BaseException as error:
                self._give_up(f"the run ends: {error}")
                raise
            if dead():
                self._give_up(f"{dead()[0]} died")

        try:
            digest = self._sender(Ticket(version, self._sent, 0, channel), look)
        except TransferLost as error:
            self._channel = None
            self._judge(version, str(error), dead, watch)
            return
        except BaseException as error:
            self._give_up(f"the sender is lost: {error}")
            raise
        if self._digest not in (None, digest):
            raise StropError(f"the trainer's parameters have changed under version {version} while it was published")
        self._digest, self._whole = digest, self._sent

    def refused(self, version: int, number: int, reason: str) -> None:
        """Of a broadcast that was lost to all, this is no news."""
        if number == self._whole:
            self._note(f"version {version} has not come whole to a generator ({reason}) and is sent again")
            self._failed(version, reason)

    def _failed(self, version: int, reason: str) -> None:
        self._channel = None
        self._failures += 1
        if self._failures >= FAILURES:
            raise BroadcastsFail(
                f"the weights of version {version} did not reach the generators in {FAILURES} broadcasts: {reason}; "
                "set orchestration.weights=shared_memory to have them go through files"
            )

    def keep(self, versions: Collection[int]) -> None:
        """Nothing is kept anywhere."""

    def release(self) -> None:
        """Close the store; whoever is in a broadcast leaves it."""
        self._channel = self._store = None

    def _channel_of(self, members: Sequence[Member]) -> Channel:
        """The channel of exactly these; the last one, where it still stands."""
        present = [(member.number, member.life, member.ranks) for member in members]
        if self._channel is None or present != self._present:
            address = self._address()
            if self._store is None:
                self._store = open_store(address, 1, self._seconds)
            self._channels += 1
            size = 1 + sum(member.ranks for member in members)
            name = f"weights-{os.getpid()}-{self._channels}"
            self._channel = Channel(
                address, self._store.port, name, size, self._backend, self._seconds, self._bucket_bytes
            )
            self._present = present
        return self._channel

    def _give_up(self, reason: str) -> None:
        if self._channel is not None and self._store is not None:
            with contextlib.suppress(RuntimeError):  # the store's own: then nobody waits for it either
                give_up(self._channel, self._store, reason)

    def _judge(self, version: int, reason: str, dead: Callable[[], list[str]], watch: Watch) -> None:
        """A broadcast was lost: by somebody's death, which may not be known yet, or for no reason that is known."""
        until = time.monotonic() + _DEATH_SECONDS
        while not dead() and time.monotonic() < until:
            watch()
            time.sleep(0.01)
        self._note(f"the broadcast of version {version} was lost ({reason}) and is made again")
        if not dead():
            self._failed(version, reason)


class WithFallback:
    """Broadcasts; from the version on that they do not bring to its end though everybody lives, files.

    Args:
        first: broadcasts.
        then: files.
        note: is told of the change, in one line.
    """

    def __init__(self, first: CollectiveCarrier, then: StoredCarrier, note: Callable[[str], None]) -> None:
        self._first, self._then = first, then
        self._note = note
        self._using: Carrier = first
        self._folder = Path()
        self._version = -1

    @property
    def together(self) -> bool:
        """As the way that is used now."""
        return self._using.together

    def start(self, folder: Path) -> None:
        """The run in `folder` begins."""
        self._folder = folder
        self._using.start(folder)

    def prepare(self, version: int) -> None:
        """Other parameters."""
        self._version = version
        self._using.prepare(version)

    def bring(self, version: int, members: Sequence[Member], kv: KvMode, probe: IntArray, watch: Watch) -> None:
        """By the way that is used now; who was not reached says so, and is brought it by the next."""
        try:
            self._using.bring(version, members, kv, probe, watch)
        except BroadcastsFail as error:
            self._change(error)

    def refused(self, version: int, number: int, reason: str) -> None:
        """Of a broadcast; where files are used by now, it was one of those that led to that."""
        if self._using is self._first:
            try:
                self._first.refused(version, number, reason)
            except BroadcastsFail as error:
                self._change(error)

    def keep(self, versions: Collection[int]) -> None:
        """Other versions are not needed any more."""
        self._using.keep(versions)

    def release(self) -> None:
        """Leave nothing behind."""
        self._first.release()
        self._then.release()

    def _change(self, error: BroadcastsFail) -> None:
        said = str(error).partition(";")[0]
        self._note(f"{said}; from now on weights go through files (orchestration.weights=shared_memory)")
        self._first.release()
        self._using = self._then
        self._then.start(self._folder)
        self._then.prepare(self._version)
