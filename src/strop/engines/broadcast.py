"""Weights from one sender to many receivers, device to device: a process group of their own, bucket by bucket.

    sender    peer.send(ticket, manifest, weights)       # the trainer; rank 0
    receiver  tensors = peer.receive(ticket)             # a generator; staged whole and checked, or `TransferLost`

    store:   here/RANK ... | manifest |                    | sums        gone: somebody has left, all leave
    group:                              bucket bucket ...

The group is torch's own backend object, NCCL where the weights lie on GPUs and gloo on CPUs, beside whatever default
group a process has. It is made anew when the membership changes. A version goes out as buckets of bytes, packed into
one buffer that is used again; the receiver copies them into tensors of its own, so that it holds a whole version beside
the one it computes with. `sums`, a checksum a tensor, comes last: who has no sums, or others, has nothing. Every wait
is short, and looks between whether somebody has left, so that a death or a stopped process never holds the others for
longer than it takes to notice it.

Standard library and torch alone: vLLM's worker loads this file by its path, in an environment without strop.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
_PRIME = (1 << 31) - 1
_COLUMNS = 1024


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


@dataclass(frozen=True)
class Entry:
    """A tensor of a version: its type as torch names it, such as `float32`."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def described(weights: Mapping[str, Tensor]) -> list[Entry]:
    """What will be sent; of sharded tensors the whole shapes."""
    return [Entry(name, str(one.dtype).removeprefix("torch."), tuple(one.shape)) for name, one in weights.items()]


def nobody() -> None:
    """Look at nothing."""


class Peer:
    """This process's place in publications: it joins a channel when a ticket names it, and leaves the one before.

    Args:
        device: of the tensors; None is the CPU.
        address: of this host as the other members reach it.

    Attributes:
        staged: tensors of the publication under way that have arrived whole.
    """

    def __init__(self, device: torch.device | None = None, address: str = LOOPBACK) -> None:
        self.device = device
        self.address = address
        self.staged = 0
        self._group: _Group | None = None

    def send(
        self,
        ticket: Ticket,
        manifest: Sequence[Entry],
        weights: Iterable[tuple[str, Tensor]],
        watch: Watch = nobody,
    ) -> str:
        """Send a version; a digest of what was sent.

        Args:
            manifest: of `weights`, in the same order.
            weights: each is read once and may be gone afterwards. They are read to their end also where the transfer
                is lost, for other processes may have to take part in making them.
            watch: called between buckets and at least every 50 ms; may set the channel's end by `give_up`.

        Raises:
            TransferLost: a member has left, or a bucket did not arrive.
        """
        rest = iter(weights)
        try:
            with self._joined(ticket, watch) as group:
                group.begin(ticket, {"version": ticket.version, "tensors": [vars(entry) for entry in manifest]})
                sums = group.send(manifest, rest, watch)
                group.say("sums", sums)
        finally:
            for _ in rest:
                pass
        return digest_of(sums)

    def receive(self, ticket: Ticket, watch: Watch = nobody) -> dict[str, Tensor]:
        """Every tensor of a version by name, on this peer's device, all there and each with the sender's checksum.

        Raises:
            TransferLost: there is less than that.
        """
        self.staged = 0
        with self._joined(ticket, watch) as group:
            facts = group.told("manifest", watch)
            if facts["version"] != ticket.version:
                raise TransferLost(f"version {facts['version']} was sent where {ticket.version} was announced")
            manifest = [Entry(one["name"], one["dtype"], tuple(one["shape"])) for one in facts["tensors"]]
            staged = self._empty(manifest)
            group.receive(manifest, staged, watch, self._count)
            found = read_sums(staged)
            expected = group.told("sums", watch)
            wrong = [entry.name for entry, one, other in zip(manifest, found, expected, strict=True) if one != other]
            if wrong:
                raise TransferLost(f"{len(wrong)} tensors did not arrive as they were sent, such as {wrong[0]}")
        return {entry.name: tensor for entry, tensor in zip(manifest, staged, strict=True)}

    def close(self) -> None:
        """Leave the channel."""
        if self._group is not None:
            self._group.leave()
            self._group = None

    def _count(self, staged: int) -> None:
        self.staged = staged

    def _empty(self, manifest: Sequence[Entry]) -> list[Tensor]:
        import torch

        return [torch.empty(one.shape, dtype=getattr(torch, one.dtype), device=self.device) for one in manifest]

    @contextlib.contextmanager
    def _joined(self, ticket: Ticket, watch: Watch) -> Iterator[_Group]:
        """The group of a ticket; where anything is raised inside, it is left and everybody in it told so."""
        if self._group is None or (self._group.channel, self._group.rank) != (ticket.channel, ticket.rank):
            self.close()
            try:
                self._group = _Group(ticket.channel, ticket.rank, self.device, self.address)
            except RuntimeError as error:
                raise TransferLost(f"nobody is reached where weights are sent: {_first_line(error)}") from error
        group = self._group
        try:
            group.number = ticket.number
            group.join(watch)
            yield group
        except BaseException as error:
            self._group = None
            known = group.known_end()
            group.leave(f"rank {ticket.rank}: {_first_line(error)}" if known is None else None)
            if isinstance(error, RuntimeError):  # torch's: of the group, or of the store
                raise TransferLost(known or f"the transfer was cut: {_first_line(error)}") from error
            raise


def give_up(channel: Channel, store: Any, reason: str) -> None:
    """Have every member of a channel leave it. `store` is a client of its store."""
    store.set(f"{channel.name}/gone", reason)


# ---------------------------------------------------------------------- a membership


class _Group:
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
        self._store.set(f"{name}/here/{self.rank}", "")
        everybody = [f"{name}/here/{rank}" for rank in range(self.channel.size)]
        # Not in the backend's own rendezvous, which hears of no death: a member may still be in a long step.
        self._until(lambda: self._store.check(everybody), watch)
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
        if self._backend is not None:
            ending = [self._backend, self._work]
            threading.Thread(target=_end, args=[ending], daemon=True, name="end of a group").start()
        self._backend = self._work = self._buffer = None

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
            for cuts, length in buckets([_size(entry) for entry in manifest], self.channel.bucket_bytes):
                for cut in cuts:
                    if cut.tensor != place:
                        content, place = self._next(weights, manifest[cut.tensor], sums), cut.tensor
                    assert content is not None
                    piece = content[cut.start : cut.start + cut.length]
                    self._buffer[cut.place : cut.place + cut.length].copy_(piece)
                self._exchange(length, watch)
            return [int(one) for one in stacked(sums)]

    def _next(self, weights: Iterator[tuple[str, Tensor]], entry: Entry, sums: list[Tensor]) -> Tensor:
        name, tensor = next(weights)
        if name != entry.name:
            raise ValueError(f"the weights go on with {name} where {entry.name} was announced")
        content = as_bytes(tensor)
        if len(content) != _size(entry):
            raise ValueError(f"{name} has {len(content)} bytes where {_size(entry)} were announced")
        sums.append(checksum(content))
        return content

    def receive(
        self, manifest: Sequence[Entry], staged: Sequence[Tensor], watch: Watch, count: Callable[[int], None]
    ) -> None:
        """Fill the tensors of `staged`; `count` hears how many are whole."""
        whole = 0
        assert self._buffer is not None
        sizes = [_size(entry) for entry in manifest]
        with self._on_device():
            for cuts, length in buckets(sizes, self.channel.bucket_bytes):
                self._exchange(length, watch)
                for cut in cuts:
                    piece = as_bytes(staged[cut.tensor])[cut.start : cut.start + cut.length]
                    piece.copy_(self._buffer[cut.place : cut.place + cut.length])
                    whole += cut.start + cut.length == sizes[cut.tensor]
                count(whole)

    def _exchange(self, length: int, watch: Watch) -> None:
        """Broadcast the first `length` bytes of the buffer, from rank 0."""
        import torch.distributed as dist

        assert self._buffer is not None
        watch()
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        options.asyncOp = True
        self._work = self._backend.broadcast([self._buffer[:length]], options)
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
    """Let go of a backend and its last exchange, in a thread of its own.

    Gloo ends an exchange with a member that hangs no sooner than by its time-out, and its destructor waits for that; so
    it is waited for here, where the end of the process may come between.
    """
    backend, work = ending
    ending.clear()
    with contextlib.suppress(RuntimeError):  # one that cannot be aborted ends with its last exchange
        backend.abort()
    while work is not None and not work.is_completed():
        time.sleep(_ENDING_PAUSE)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


# ---------------------------------------------------------------------- what is sent


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


def stacked(sums: Sequence[Tensor]) -> list[int]:
    """Checksums on the host, which waits for the device once."""
    import torch

    return [int(one) for one in torch.stack(list(sums)).tolist()] if sums else []


def read_sums(tensors: Iterable[Tensor]) -> list[int]:
    """The checksum of each."""
    return stacked([checksum(tensor) for tensor in tensors])


def digest_of(sums: Sequence[int]) -> str:
    """Of the checksums of a version."""
    import hashlib

    return hashlib.sha256(json.dumps(list(sums)).encode()).hexdigest()


def _size(entry: Entry) -> int:
    import torch

    return math.prod(entry.shape) * int(getattr(torch, entry.dtype).itemsize)
