"""The executor of many generators: workers behind handles, whatever runs them.

    submit ─▶ queue of generator (ticket + attempt) mod N ─Submit─▶ worker ─Finished─▶ poll
    publish ─▶ transport ─WeightUpdate─▶ every worker: stage, check the hash, swap ─Updated─▶ publish returns

A generator is given requests only while it *serves*: it has acknowledged the current weights, and computes what the
others compute. One that dies is noticed by its handle; what it had comes back from `poll` as `Lost`, and another worker
takes its number, loads the current weights and is probed before it serves. Deaths beyond the budget end the run.

A death cannot be blamed on one of the requests that ran. So those which have met two deaths are generated one at a time
from then on; one that was the only one at a death, or the only one that has met two, is quarantined.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from strop.base import progress
from strop.base.imports import command
from strop.base.types import FloatArray, IntArray, StropError
from strop.engines.protocol import KvMode, Request
from strop.orchestration.connection import Death, WorkerHandle, WorkerLauncher, WorkerSpec, end, lively, overdue
from strop.orchestration.executor import PROBE_TOLERANCE, Event, Lost, Publication, Quarantined
from strop.orchestration.messages import (
    Cancel,
    Finished,
    Probe,
    Probed,
    Ready,
    StoredWeights,
    Submit,
    Updated,
    Updating,
    WeightUpdate,
    Work,
)
from strop.orchestration.weight_store import Publish, WeightTransport


@dataclass
class Open:
    """A request on its way. `isolated`: it has killed before, and is generated with nothing else."""

    request: Request
    ticket: int
    isolated: bool
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
        self.worker.send(WeightUpdate(weights, kv))
        self.worker.send(Probe(probe))

    def has(self, version: int) -> bool:
        """Whether it has swapped the version in and answered its probe."""
        return self.probed is not None and self.probed.version == version

    def hand_out(self) -> None:
        """Send what is queued, in order and at once; an isolated one waits until nothing runs."""
        batch: list[Request] = []
        while self.serving and self.queue:
            first = self.queue[0]
            if any(item.isolated for item in self.sent.values()) or (first.isolated and self.sent):
                break
            self.queue.popleft()
            self.sent[first.request.id] = first
            batch.append(first.request)
        if batch:
            self.worker.send(Submit(tuple(batch)))


DEATHS_OF_A_SUSPECT = 2
_LOOK_SECONDS = 1.0  # between two looks at who is silent


@dataclass(frozen=True)
class Supervision:
    """When a generator is given up, and how often.

    Attributes:
        silence: seconds without a sign of life after which a worker is killed.
        stall: seconds without progress of a living worker's own loop after which it is killed: beyond the longest step
            of an engine, and beyond the loading of a model.
        restarts: how many deaths a run survives.
    """

    silence: float = 60.0
    stall: float = 900.0
    restarts: int = 10

    def allow(self, role: str, death: Death, deaths: int, whose: str, folder: Path) -> None:
        """Let the run in `folder` go on after a death of `role`, number `deaths` (in words: `whose`).

        Raises:
            StropError: another worker would meet the same end, or it is one death too many.
        """
        if death.fatal:
            raise StropError(f"{role}: {death.reason}")
        if deaths > self.restarts:
            raise StropError(
                f"{role} died: {death.reason}. That is {whose} in this run, and orchestration.restarts={self.restarts} "
                f"allows no more; see its log in {folder / 'logs'}, then go on with: "
                f"{command('train --resume', folder)}"
            )


class Fleet:
    """An `Executor` over one worker for each of `specs`.

    Args:
        launcher: starts workers.
        specs: the generators.
        source: writes the trainer's present parameters into a store.
        transport: stores them where the generators read them.
        supervision: of the workers.
        kv: whether cached keys and values are kept or computed again when weights change.
        note: receives a line for each death.
    """

    def __init__(
        self,
        launcher: WorkerLauncher,
        specs: Sequence[WorkerSpec],
        source: Publish,
        transport: WeightTransport,
        supervision: Supervision,
        note: Callable[[str], None],
        kv: KvMode = "keep",
    ) -> None:
        self.generators: list[GeneratorHandle] = []
        self.transport = transport
        self._source = source
        self._launcher = launcher
        self._specs = specs
        self._supervision = supervision
        self._note = note
        self._kv: KvMode = kv
        self._folder = Path()
        self._stored: StoredWeights | None = None  # the version that all shall have
        self._probe: IntArray = np.zeros(0, np.int32)
        self._reference: FloatArray | None = None  # what the generators say of the probe under the current weights
        # The deaths that a ticket's requests have met. That one of them was survived proves nothing of later turns.
        self._deaths: Counter[int] = Counter()
        self._restarts = 0
        self._events: list[Event] = []
        self._at_publication: dict[tuple[int, int], Work] = {}  # by generator and life

    # ------------------------------------------------------------------ the protocol

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not yet reported, those of events not yet polled left out."""
        return sum(generator.unfinished for generator in self.generators)

    def start(self, folder: Path) -> None:
        """Find a place for weights and start the workers, which build their engines meanwhile."""
        self._folder = folder
        self._launcher.attach(folder)
        self.transport.start(folder)
        for number, spec in enumerate(self._specs):  # one by one: `close` ends those that were launched
            self.generators.append(GeneratorHandle(number, self._launcher.launch(spec)))

    def submit(self, request: Request, ticket: int, attempt: int = 0) -> None:
        """Queue a request; it goes out with the next `poll`, together with the others of its generator."""
        generator = self.generators[(ticket + attempt) % len(self.generators)]
        isolated = self._deaths[ticket] >= DEATHS_OF_A_SUSPECT
        generator.queue.append(Open(request, ticket, isolated, request.n))

    def cancel(self, request_id: str) -> None:
        """Let the request's generator forget it; one that was not sent yet leaves the queue without a word."""
        for generator in self.generators:
            generator.queue = type(generator.queue)(item for item in generator.queue if item.request.id != request_id)
            if request_id in generator.sent:
                generator.sent[request_id].cancelled = True
                generator.worker.send(Cancel(request_id))

    def poll(self, patience: float) -> list[Event]:
        """Hand out what is queued; what the generators have finished, and what was lost with one."""
        for generator in self.generators:
            generator.hand_out()
        self._hear()
        deadline = time.monotonic() + patience
        while not self._events and (left := deadline - time.monotonic()) > 0:
            self._wait(left)
        events, self._events = self._events, []
        return events

    def publish(self, version: int, probe: IntArray) -> Publication:
        """Store the weights; return when all generators that served have swapped them in or died, and one has them."""
        begin = time.perf_counter()
        first = self._stored is None
        self._stored = self.transport.publish(self._source, version)
        self._probe, self._reference = probe, None
        served = {generator.number: generator.life for generator in self.generators if generator.serving}
        for generator in self.generators:
            generator.probed = None

        def waits() -> bool:
            # Where all have died a new one must answer: without a reference no generator would serve.
            asked = [m for m in self.generators if first or served.get(m.number) == m.life] or self.generators[:1]
            return not all(generator.has(version) for generator in asked)

        self._hear()
        while waits():
            self._wait(_LOOK_SECONDS)
        probed = {m.number: m.probed.logprobs for m in self.generators if m.probed is not None and m.has(version)}
        self._reference = next(iter(probed.values()), None)
        for generator in self.generators:
            self._bring_up(generator)
        self.transport.keep({version for generator in self.generators for version in generator.pending} | {version})
        return Publication(version, time.perf_counter() - begin, probed, self._idle_share())

    def close(self) -> None:
        """End the workers and remove the weights."""
        end(self._launcher, [generator.worker for generator in self.generators])
        self.transport.release()

    # ------------------------------------------------------------------ what workers say

    def _wait(self, seconds: float) -> None:
        self._launcher.wait([generator.worker for generator in self.generators], min(seconds, _LOOK_SECONDS))
        self._hear()

    def _hear(self) -> None:
        """Take all messages and deaths that are there, kill who does not answer, and have those that are ready and
        lack the current weights load them."""
        for generator in self.generators:
            for message in generator.worker.receive():
                self._take(generator, message)
            if generator.worker.death is not None:
                self._replace(generator, generator.worker.death)
                continue
            reason = overdue(generator.worker, self._supervision.silence, self._supervision.stall)
            if reason is not None:
                generator.worker.kill(reason)
            elif generator.sent and lively(generator.worker):
                progress.made(f"tokens of {generator.worker.role}")  # its loop came round with work: a step was made
        if self._stored is None:
            return
        version = self._stored.version
        for generator in self.generators:
            if generator.ready and not generator.has(version) and version not in generator.pending:
                generator.update(self._stored, self._kv, self._probe)

    def _take(self, generator: GeneratorHandle, message: Any) -> None:
        if isinstance(message, Finished):
            self._report(generator, message)
        elif isinstance(message, Updating):
            generator.loading = True
        elif isinstance(message, Updated):
            generator.work = message.work
        elif isinstance(message, Probed):
            generator.probed, generator.loading = message, False
            generator.pending.discard(message.version)
            self._bring_up(generator)
        elif isinstance(message, Ready):
            generator.ready = True
        else:
            raise StropError(f"{generator.worker.role} sent a {type(message).__name__}, which the fleet does not know")

    def _report(self, generator: GeneratorHandle, message: Finished) -> None:
        for completion in message.completions:
            item = generator.sent[completion.request_id]
            item.left -= 1
            if item.left == 0:
                del generator.sent[completion.request_id]
            self._events.append(completion)
        generator.hand_out()

    def _bring_up(self, generator: GeneratorHandle) -> None:
        """Let a generator serve that has the current weights, and computes what others compute."""
        if generator.serving or self._stored is None or self._reference is None:
            return  # while there is no reference, `publish` waits for one
        if not generator.has(self._stored.version):
            return
        assert generator.probed is not None
        gap = float(np.abs(generator.probed.logprobs - self._reference).mean())
        if not gap <= PROBE_TOLERANCE:
            raise StropError(
                f"{generator.worker.role} differs from the other generators by {gap:.3g} nats a token on the same "
                "weights; look for a difference between their machines"
            )
        generator.serving = True
        generator.hand_out()

    # ------------------------------------------------------------------ deaths

    def _replace(self, generator: GeneratorHandle, death: Death) -> None:
        """A worker is dead: give back what it had, and start another."""
        role = generator.worker.role
        self._restarts += 1
        whose = f"death number {self._restarts} of a generator"
        self._supervision.allow(role, death, self._restarts, whose, self._folder)
        self._note(f"{role} died ({death.reason}) and is started again, {len(generator.sent)} of its groups with it")
        generating = generator.serving and not generator.loading
        lost = generator.reborn(self._launcher.launch(self._specs[generator.number]))
        lost = [item for item in lost if not item.cancelled]
        if generating:  # else it was not any of them that it died of
            self._deaths.update({item.ticket for item in lost})
        suspects = {item.ticket for item in lost if generating and self._deaths[item.ticket] >= DEATHS_OF_A_SUSPECT}
        for item in lost:
            convicted = item.ticket in suspects and (item.isolated or len(suspects) == 1)
            kind = Quarantined if convicted else Lost
            self._events.append(kind(item.request.id, f"{role} died: {death.reason}"))

    def _idle_share(self) -> float | None:
        """The share of their time since the last publication in which generators had nothing to do; None at first."""
        now = {(generator.number, generator.life): generator.work for generator in self.generators}
        busy = idle = 0.0
        for key, work in now.items():
            before = self._at_publication.get(key, Work())
            busy, idle = busy + work.busy - before.busy, idle + work.idle - before.idle
        self._at_publication = now
        return idle / (busy + idle) if busy + idle else None
