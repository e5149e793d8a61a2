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

Standard library and torch alone: vLLM's worker loads this package by its path, in an environment without strop.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .content import Entry, checksum, described, on_host
from .group import BUCKET_BYTES, LOOPBACK, Channel, Group, Ticket, TransferLost, Watch, first_line, give_up, nobody

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "BUCKET_BYTES", "LOOPBACK", "Channel", "Entry", "Peer", "Ticket", "TransferLost", "Watch", "described", "give_up",
    "nobody",
]  # fmt: skip


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
        self._group: Group | None = None

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
        return hashlib.sha256(json.dumps(sums).encode()).hexdigest()

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
            if len({entry.name for entry in manifest}) < len(manifest):
                raise TransferLost("a tensor is given twice")
            staged = [entry.empty(self.device) for entry in manifest]
            group.receive(manifest, staged, watch, self._count)
            found = on_host([checksum(tensor) for tensor in staged])
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

    @contextlib.contextmanager
    def _joined(self, ticket: Ticket, watch: Watch) -> Iterator[Group]:
        """The group of a ticket; where anything is raised inside, it is left and everybody in it told so."""
        if self._group is None or (self._group.channel, self._group.rank) != (ticket.channel, ticket.rank):
            self.close()
            try:
                self._group = Group(ticket.channel, ticket.rank, self.device, self.address)
            except RuntimeError as error:
                raise TransferLost(f"nobody is reached where weights are sent: {first_line(error)}") from error
        group = self._group
        try:
            group.number = ticket.number
            group.join(watch)
            yield group
        except BaseException as error:
            self._group = None
            known = group.known_end()
            group.leave(f"rank {ticket.rank}: {first_line(error)}" if known is None else None)
            if isinstance(error, RuntimeError):  # torch's: of the group, or of the store
                raise TransferLost(known or f"the transfer was cut: {first_line(error)}") from error
            raise
