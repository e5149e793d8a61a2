"""A fleet's view of one of its generators: what it was given, what it has said, and how far it has come."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from strop.base.types import IntArray
from strop.engines.protocol import KvMode, Request
from strop.orchestration.connection import WorkerHandle
from strop.orchestration.messages import Probe, Probed, StoredWeights, Submit, Update, Work


@dataclass
class Open:
    """A request on its way. `alone`: it has killed before, and is generated with nothing beside it."""

    request: Request
    ticket: int
    alone: bool
    left: int  # samples not yet reported
    cancelled: bool = False


@dataclass
class GeneratorHandle:
    """A generator by its number; after a death the same generator goes on with another worker.

    Attributes:
        worker: the present worker process.
        life: which worker it is, counted from 0.
        ready: its engine is built.
        serving: it has the current weights, was found to compute the right thing, and is given requests.
        loading: it has begun to load weights, and has not answered their probe.
        pending: versions it was asked to load, and of which it has not answered the probe yet.
        probed: its answer to the last probe, with the version it has then.
        queue: requests it was not given yet.
        sent: requests it has, by id.
        work: what it had done when it last said so.
    """

    number: int
    worker: WorkerHandle
    life: int = 0
    ready: bool = False
    serving: bool = False
    loading: bool = False
    pending: set[int] = field(default_factory=set)
    probed: Probed | None = None
    queue: deque[Open] = field(default_factory=deque)
    sent: dict[str, Open] = field(default_factory=dict)
    work: Work = Work()

    @property
    def role(self) -> str:
        """Its worker's name."""
        return self.worker.role

    @property
    def unfinished(self) -> int:
        """Samples queued or sent and not reported."""
        return sum(item.left for item in self.queue) + sum(item.left for item in self.sent.values())

    def reborn(self, handle: WorkerHandle) -> list[Open]:
        """Go on with another worker; the requests that the former one had."""
        lost = list(self.sent.values())
        self.worker, self.life = handle, self.life + 1
        self.ready = self.serving = self.loading = False
        self.probed, self.work = None, Work()
        self.pending.clear()
        self.sent.clear()
        return lost

    def update(self, weights: StoredWeights, kv: KvMode, probe: IntArray) -> None:
        """Tell the worker to load a version and to probe it."""
        self.pending.add(weights.version)
        self.worker.send(Update(weights, kv))
        self.worker.send(Probe(probe))

    def has(self, version: int) -> bool:
        """Whether it has swapped the version in and answered its probe."""
        return self.probed is not None and self.probed.version == version

    def hand_out(self) -> None:
        """Send what is queued, in order and at once; one that must be alone waits until it is, and others after it."""
        batch: list[Request] = []
        while self.serving and self.queue:
            first = self.queue[0]
            if any(item.alone for item in self.sent.values()) or (first.alone and self.sent):
                break
            self.queue.popleft()
            self.sent[first.request.id] = first
            batch.append(first.request)
        if batch:
            self.worker.send(Submit(tuple(batch)))
