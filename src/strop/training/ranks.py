"""The ranks that train together: which of them computes which micro-batch, and what all of them must know.

Every rank holds the whole update (token ids and columns are small compared with a model) and computes its share of the
micro-batches. What depends on all of them is gathered and then computed alike everywhere, so that no rank is special.

    share = Share(update, ranks)
    found = share.collect([work(batch) for batch in share.batches])     # one result a micro-batch, on every rank
"""

from __future__ import annotations

import datetime
import fcntl
import io
import os
import socket
import struct
from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from strop.base.types import StropError
from strop.training.packing import EMPTY, MicroBatch, Update

T = TypeVar("T")


class Ranks(Protocol):
    """Processes that hold shards of the same modules and take every step together."""

    @property
    def rank(self) -> int:
        """The number of this one, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    @property
    def teams(self) -> int:
        """How many micro-batches they compute at once: with sequence parallelism ranks in a row share each."""
        ...

    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank; tensors arrive on the CPU. All ranks must call it."""
        ...

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Write into tensors of one type the mean of what every rank has there; equal bits on all. All must call it."""
        ...


class Alone:
    """One process that holds everything."""

    rank = 0
    size = 1
    teams = 1

    def gather(self, value: T) -> list[T]:
        """The value itself."""
        return [value]

    def average(self, tensors: Sequence[Tensor]) -> None:
        """There is one rank: its values are the mean."""


ALONE = Alone()


class Together:
    """The ranks of a process group that moves tensors of the CPU (gloo)."""

    def __init__(self, group: dist.ProcessGroup, team: int = 1) -> None:
        """`team`: how many ranks in a row compute a micro-batch together."""
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.teams = self.size // team

    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank, through pickles: ranks trust each other."""
        # torch.save, because plain pickles would bring a tensor back on the device of another rank.
        buffer = io.BytesIO()
        torch.save(value, buffer)
        found: list[bytes] = [b""] * self.size
        dist.all_gather_object(found, buffer.getvalue(), self._group)
        return [torch.load(io.BytesIO(part), map_location="cpu", weights_only=False) for part in found]

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Write the mean over all ranks into the tensors."""
        if not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat, group=self._group)
        flat /= self.size
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))


def deal(tokens: Sequence[int], ranks: int) -> list[list[int | None]]:
    """Which micro-batches each rank computes, one a round; None stands for an empty one, so that all have as many.

    Ranks wait for each other in every round. So a round is of micro-batches of similar size, longest first; within it
    the rank that has computed least so far takes the longest. A single rank keeps the order given.

    Example: sizes [5, 9, 7] over 2 ranks → [[1, None], [2, 0]].
    """
    if ranks == 1:
        return [list(range(len(tokens)))]
    order = sorted(range(len(tokens)), key=lambda index: (-tokens[index], index))
    hands: list[list[int | None]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for start in range(0, len(order), ranks):
        round_ = order[start : start + ranks]
        for place, rank in enumerate(sorted(range(ranks), key=lambda rank: (load[rank], rank))):
            index = round_[place] if place < len(round_) else None
            hands[rank].append(index)
            load[rank] += 0 if index is None else tokens[index]
    return hands


class Share:
    """A rank's part of an update.

    Attributes:
        indices: of its micro-batches in the update; None for an empty one.
    """

    def __init__(self, update: Update, ranks: Ranks) -> None:
        self._ranks = ranks
        self._hands = deal([len(batch.packed.token_ids) for batch in update.micro_batches], ranks.teams)
        self._count = len(update.micro_batches)
        self._team = ranks.size // ranks.teams
        self.indices = self._hands[ranks.rank // self._team]

    def take(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Those of all micro-batches that are this rank's, or its team's, empty ones among them."""
        return [EMPTY if index is None else batches[index] for index in self.indices]

    def rounds(self, flags: Sequence[bool]) -> list[bool]:
        """For each round, whether the flags of the micro-batches that the teams compute in it are all set."""
        return [all(index is None or flags[index] for index in each) for each in zip(*self._hands, strict=True)]

    def collect(self, results: Sequence[T]) -> list[T]:
        """From a result for each of this rank's micro-batches to one for every micro-batch of the update, in order."""
        if self._ranks.size == 1:
            return list(results)
        found: dict[int, T] = {}
        firsts = self._ranks.gather(list(results))[:: self._team]  # the others of a team have the same
        for hand, part in zip(self._hands, firsts, strict=True):
            found |= {index: result for index, result in zip(hand, part, strict=True) if index is not None}
        return [found[index] for index in range(self._count)]


_SIOCGIFADDR = 0x8915
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def open_store(address: str, size: int, seconds: float) -> TCPStore:
    """Listen only on `address` (torch would listen on all), on a port that the system chooses: `store.port`.

    Args:
        address: of this host, as the other ranks reach it.
        size: ranks that will meet.
        seconds: how long one may wait for another.

    Raises:
        StropError: this host has no such address.
    """
    listening = socket.socket()
    try:
        listening.bind((address, 0))
        listening.listen()
    except OSError as error:
        listening.close()
        raise StropError(f"the trainer's ranks cannot meet at {address}: {error.strerror or error}") from error
    port = listening.getsockname()[1]
    return TCPStore(
        address,
        port,
        size,
        is_master=True,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=seconds),
        master_listen_fd=listening.detach(),
    )


def reach_store(place: str, size: int, seconds: float) -> TCPStore:
    """The store that rank 0 has opened at HOST:PORT.

    Raises:
        StropError: no server answers there.
    """
    host, _, port = place.rpartition(":")
    try:
        return TCPStore(host, int(port), size, is_master=False, timeout=datetime.timedelta(seconds=seconds))
    except dist.DistError as error:
        said = str(error).splitlines()[0]
        raise StropError(f"the trainer's first rank is not reached at {place}: {said}") from error


def use_interface_of(address: str) -> None:
    """Exchange over the interface that has this address, unless the user has named another one."""
    name = interface_of(address)
    if name is not None:
        for variable in _INTERFACES:
            os.environ.setdefault(variable, name)


def interface_of(address: str) -> str | None:
    """The network interface of this host that has an IPv4 address; None where none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no such address at all
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
