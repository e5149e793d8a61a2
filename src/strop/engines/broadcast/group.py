"""A membership: the processes that have met for broadcasts, what they say to each other, and how they part."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .content import Entry, as_bytes, buckets, checksum, on_host, piece, size_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Watch = Callable[[], None]

BUCKET_BYTES = 64 << 20
LOOPBACK = "127.0.0.1"
_LOOK_SECONDS = 0.05  # between two looks at who has left
_LONGEST_PAUSE = 0.002
_ENDING_PAUSE = 0.25
_NEVER = datetime.timedelta(days=30)  # NCCL's own watchdog ends the process: it must never be the first to notice


class TransferLost(Exception):
    """A publication was given up before this process had the whole of it; what it had before is as it was."""


@dataclass(frozen=True)
class Channel:
    """A membership: who leaves, or joins, makes another one necessary.

    Attributes:
        host, port: of the store (torch's TCPStore) where its members meet; whoever closes it ends every transfer.
        name: of this membership, among all that meet there.
        size: ranks; the sender is 0.
        backend: `nccl` or `gloo`.
        seconds: after which a bucket that does not arrive is given up.
        bucket_bytes: of the one buffer that each member has.
    """

    host: str
    port: int
    name: str
    size: int
    backend: str
    seconds: float
    bucket_bytes: int = BUCKET_BYTES


@dataclass(frozen=True)
class Ticket:
    """A publication as one member is told of it: version, number among the channel's, and the member's own rank."""

    version: int
    number: int
    rank: int
    channel: Channel


def nobody() -> None:
    """Look at nothing."""


def give_up(channel: Channel, store: Any, reason: str) -> None:
    """Have every member of a channel leave it. `store` is a client of its store."""
    store.set(f"{channel.name}/gone", reason)


class Group:
    """One membership, joined."""

    def __init__(self, channel: Channel, rank: int, device: torch.device | None, address: str) -> None:
        self.channel = channel
        self.rank = rank
        self.number = -1
        self._device = device
        self._address = address
        self._said: list[list[str]] = [[]]  # keys of the last publications
        self._store = self._reach()
        self._backend: Any = None
        self._buffer: Tensor | None = None
        self._work: Any = None  # the last exchange

    # ------------------------------------------------------------------ coming and going

    def join(self, watch: Watch) -> None:
        """Wait for all members and connect with them; nothing where that is done."""
        if self._backend is not None:
            self._refuse_if_gone()
            return
        import torch

        name = self.channel.name
        here = [f"{name}/here/{rank}" for rank in range(self.channel.size)]
        self._store.set(here[self.rank], "")
        # Not in the backend's own rendezvous, which hears of no death: a member may still be in a long step.
        self._until(lambda: self._store.check(here), watch)
        made: list[Any] = []
        failed: list[Exception] = []

        def make() -> None:
            try:
                made.append(self._make())
            except Exception as error:  # whatever it is: it is raised below, in the thread that waits
                failed.append(error)

        maker = threading.Thread(target=make, daemon=True, name="group of weights")
        maker.start()
        self._until(lambda: not maker.is_alive(), watch, self.channel.seconds)
        if failed:
            raise failed[0]
        self._backend = made[0]
        self._buffer = torch.empty(self.channel.bucket_bytes, dtype=torch.uint8, device=self._device)

    def leave(self, reason: str | None = None) -> None:
        """Have done with it; with a `reason`, everybody else too."""
        if reason is not None:
            with contextlib.suppress(RuntimeError):  # then the store is gone, and all have left
                give_up(self.channel, self._store, reason)
        ending = [self._backend, self._work]
        self._backend = self._work = self._buffer = None
        if ending[1] is not None and not ending[1].is_completed():
            threading.Thread(target=_end, args=[ending], daemon=True, name="end of a group").start()
        elif ending[0] is not None:
            _end(ending)

    def _reach(self) -> Any:
        from torch._C._distributed_c10d import TCPStore

        timeout = datetime.timedelta(seconds=self.channel.seconds)
        return TCPStore(
            self.channel.host, self.channel.port, None, is_master=False, timeout=timeout, wait_for_workers=False
        )

    def _make(self) -> Any:
        """The backend; its rendezvous has a connection of its own, for waiting in it must not keep others waiting."""
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore

        store = PrefixStore(f"{self.channel.name}/group", self._reach())
        if self.channel.backend == "gloo":
            gloo: Any = dist.ProcessGroupGloo
            options = gloo._Options()
            options._devices = [gloo.create_device(hostname=self._address)]
            options._threads = 1
            options._timeout = datetime.timedelta(seconds=self.channel.seconds)
            return gloo(store, self.rank, self.channel.size, options)
        if self._address == LOOPBACK:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _NEVER
        with torch.cuda.device(self._device):
            made = dist.ProcessGroupNCCL(store, self.rank, self.channel.size, options)
            made.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
        return made

    # ------------------------------------------------------------------ words

    def begin(self, ticket: Ticket, facts: Any) -> None:
        """The sender's: a publication of these facts."""
        while len(self._said) > 1:  # who took part in the last one has had all of the one before it
            for key in self._said.pop(0):
                self._store.delete_key(key)
        self._said.append([])
        self.say("manifest", facts)

    def say(self, what: str, facts: Any) -> None:
        """Tell all members."""
        key = f"{self.channel.name}/{self.number}/{what}"
        self._said[-1].append(key)
        self._store.set(key, json.dumps(facts))

    def told(self, what: str, watch: Watch) -> Any:
        """What the sender says, once it has."""
        key = f"{self.channel.name}/{self.number}/{what}"
        self._until(lambda: self._store.check([key]), watch)
        return json.loads(self._store.get(key))

    # ------------------------------------------------------------------ bytes

    def send(self, manifest: Sequence[Entry], weights: Iterator[tuple[str, Tensor]], watch: Watch) -> list[int]:
        """All tensors of `weights`; their checksums."""
        sums: list[Tensor] = []
        content: Tensor | None = None
        place = -1
        assert self._buffer is not None
        with self._on_device():
            for cuts, length in buckets([size_of(entry) for entry in manifest], self.channel.bucket_bytes):
                for cut in cuts:
                    if cut.tensor != place:
                        content, place = self._next(weights, manifest[cut.tensor], sums), cut.tensor
                    assert content is not None
                    piece(self._buffer, cut.place, cut).copy_(piece(content, cut.start, cut))
                self._exchange(length, watch)
            return on_host(sums)

    def _next(self, weights: Iterator[tuple[str, Tensor]], entry: Entry, sums: list[Tensor]) -> Tensor:
        name, tensor = next(weights)
        if name != entry.name:
            raise ValueError(f"the weights go on with {name} where {entry.name} was announced")
        content = as_bytes(tensor)
        if len(content) != size_of(entry):
            raise ValueError(f"{name} has {len(content)} bytes where {size_of(entry)} were announced")
        sums.append(checksum(content))
        return content

    def receive(
        self, manifest: Sequence[Entry], staged: Sequence[Tensor], watch: Watch, count: Callable[[int], None]
    ) -> None:
        """Fill the tensors of `staged`; `count` hears how many are whole."""
        whole = 0
        assert self._buffer is not None
        sizes = [size_of(entry) for entry in manifest]
        with self._on_device():
            for cuts, length in buckets(sizes, self.channel.bucket_bytes):
                self._exchange(length, watch)
                for cut in cuts:
                    piece(as_bytes(staged[cut.tensor]), cut.start, cut).copy_(piece(self._buffer, cut.place, cut))
                    whole += cut.start + cut.length == sizes[cut.tensor]
                count(whole)

    def _exchange(self, length: int, watch: Watch) -> None:
        """Broadcast the first `length` bytes of the buffer."""
        import torch.distributed as dist

        assert self._buffer is not None
        watch()
        self._work = self._backend.broadcast([self._buffer[:length]], dist.BroadcastOptions())  # from rank 0
        self._until(self._work.is_completed, watch, self.channel.seconds)
        self._work.wait()

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        import torch

        return torch.cuda.device(self._device) if self.channel.backend == "nccl" else contextlib.nullcontext()

    # ------------------------------------------------------------------ waiting

    def _until(self, done: Callable[[], bool], watch: Watch, seconds: float = math.inf) -> None:
        begin = looked = time.monotonic()
        pause = 1e-4
        while not done():
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            now = time.monotonic()
            if now - looked >= _LOOK_SECONDS:
                looked = now
                watch()
                self._refuse_if_gone()
                if now - begin > seconds:
                    raise TransferLost(f"nothing has come for {seconds:g} s")

    def known_end(self) -> str | None:
        """Why somebody has left; None where nobody has said so, or nobody can."""
        with contextlib.suppress(RuntimeError):
            return self._end_said()
        return None

    def _refuse_if_gone(self) -> None:
        reason = self._end_said()
        if reason is not None:
            raise TransferLost(reason)

    def _end_said(self) -> str | None:
        gone = f"{self.channel.name}/gone"
        return self._store.get(gone).decode() if self._store.check([gone]) else None


def _end(ending: list[Any]) -> None:
    """Let go of a backend and its last exchange.

    Gloo ends an exchange with a member that hangs no sooner than by its time-out, and its destructor waits for that; so
    it is waited for here, in a thread of its own, where the end of the process may come between.
    """
    backend, work = ending
    ending.clear()
    with contextlib.suppress(RuntimeError):  # one that cannot be aborted ends with its last exchange
        backend.abort()
    while work is not None and not work.is_completed():
        time.sleep(_ENDING_PAUSE)


def first_line(error: BaseException) -> str:
    """What an error says, without the place in torch's source before it and the advice after it."""
    said = (str(error).splitlines() or [type(error).__name__])[0][:300]
    return said.partition("] ")[2].partition(". ")[0] if said.startswith("[/") else said


