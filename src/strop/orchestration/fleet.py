"""The executor of many generators, and the generators: workers with an engine each, whatever runs them.

    submit ─▶ queue of generator (ticket + attempt) mod N ─Submit─▶ worker ─Finished─▶ poll
    publish ─▶ weight store ─WeightUpdate─▶ every worker: stage, check the hash, swap, probe ─Updated─▶ publish returns

A generator is given requests only while it *serves*: it has acknowledged the current weights, and computes what the
others compute. The requests of one that dies come back from `poll` as `Lost`. Another worker takes its number
(`workers.Team`), loads the current weights and is probed before it serves.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from strop.base import progress
from strop.base.text import counted
from strop.base.types import FloatArray, IntArray, StropError
from strop.engines.protocol import KvMode, Request
from strop.orchestration.executor import PROBE_TOLERANCE, Event, Lost, Publication
from strop.orchestration.messages import (
    Cancel,
    Finished,
    Ready,
    StoredWeights,
    Submit,
    Updated,
    WeightUpdate,
    Work,
)
from strop.orchestration.workers import (
    ControllerConnection,
    Supervision,
    Team,
    WorkerHandle,
    WorkerLauncher,
    WorkerSpec,
)

if TYPE_CHECKING:
    from strop.engines.protocol import Engine, WeightSource
    from strop.engines.settings import EngineSettings
    from strop.model.settings import ModelSettings
    from strop.orchestration.weight_store import Publish, WeightStore

IDLE_SECONDS = 1.0
_LOOK_SECONDS = 1.0  # between two looks at who is silent


@dataclass
class Open:
    """A request that is not finished, and how many of its samples are not yet reported."""

    request: Request
    left: int
    cancelled: bool = False


@dataclass
class GeneratorHandle:
    """A generator by its number; after a death the same generator goes on with another worker.

    Attributes:
        number: its place in the team.
        team: all generators' workers.
        life: which worker it is, counted from 0.
        ready: its engine is built.
        serving: it has the current weights, passed their probe, and receives requests.
        pending: versions that it was asked to load and has not acknowledged.
        updated: its last acknowledgement of weights.
        queue: requests that were not sent to it yet.
        sent: requests that it has, by id.
    """

    number: int
    team: Team
    life: int = 0
    ready: bool = False
    serving: bool = False
    pending: set[int] = field(default_factory=set)
    updated: Updated | None = None
    queue: deque[Open] = field(default_factory=deque)
    sent: dict[str, Open] = field(default_factory=dict)

    @property
    def worker(self) -> WorkerHandle:
        """The present worker."""
        return self.team.handles[self.number]

    @property
    def unfinished(self) -> int:
        """Samples queued or sent and not reported."""
        return sum(item.left for item in self.queue) + sum(item.left for item in self.sent.values())

    def restarted(self) -> list[Open]:
        """Reset the state for a new worker; returns the requests that the former one had."""
        lost = list(self.sent.values())
        self.life += 1
        self.ready = self.serving = False
        self.updated = None
        self.pending.clear()
        self.sent.clear()
        return lost

    def update(self, weights: StoredWeights, kv: KvMode, probe: IntArray) -> None:
        """Tell the worker to load a version and to probe it."""
        self.pending.add(weights.version)
        self.worker.send(WeightUpdate(weights, kv, probe))

    def answer(self, version: int) -> Updated | None:
        """Its acknowledgement of the version; None until it has swapped it in."""
        return self.updated if self.updated is not None and self.updated.version == version else None

    def hand_out(self) -> None:
        """Send the queued requests, in order and in one message."""
        if self.serving and self.queue:
            self.sent |= {item.request.id: item for item in self.queue}
            self.worker.send(Submit(tuple(item.request for item in self.queue)))
            self.queue.clear()


class Fleet:
    """An `Executor` over one worker for each of `specs`.

    Args:
        launcher: starts workers.
        specs: the generators.
        source: writes the trainer's present parameters into a file.
        store: keeps them where the generators read them.
        supervision: when workers are killed, and how many deaths are survived.
        kv: whether cached keys and values are kept or computed again when weights change.
        note: receives a line for each death.
    """

    def __init__(
        self,
        launcher: WorkerLauncher,
        specs: Sequence[WorkerSpec],
        source: Publish,
        store: WeightStore,
        supervision: Supervision,
        note: Callable[[str], None],
        kv: KvMode = "keep",
    ) -> None:
        self.generators: list[GeneratorHandle] = []
        self.store = store
        self._source = source
        self._team = Team(launcher, specs, supervision)
        self._note = note
        self._kv: KvMode = kv
        self._stored: StoredWeights | None = None  # the version that all shall have
        self._probe: IntArray = np.zeros(0, np.int32)
        self._reference: FloatArray | None = None  # log-probs of the probe under the current weights
        self._events: list[Event] = []
        self._at_publication: dict[tuple[int, int], Work] = {}  # by generator and life

    # ------------------------------------------------------------------ the protocol

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not yet reported, those of events not yet polled left out."""
        return sum(generator.unfinished for generator in self.generators)

    def start(self, folder: Path) -> None:
        """Find a place for weights and start the workers, which build their engines meanwhile."""
        self.store.start(folder)
        self._team.start(folder)
        self.generators = [GeneratorHandle(number, self._team) for number in range(len(self._team.handles))]

    def submit(self, request: Request, ticket: int, attempt: int = 0) -> None:
        """Queue a request; it goes out with the next `poll`, together with the others of its generator."""
        generator = self.generators[(ticket + attempt) % len(self.generators)]
        generator.queue.append(Open(request, request.n))

    def cancel(self, request_id: str) -> None:
        """Cancel the request at its generator; one that was not sent yet is dropped from the queue."""
        for generator in self.generators:
            generator.queue = type(generator.queue)(item for item in generator.queue if item.request.id != request_id)
            if request_id in generator.sent:
                generator.sent[request_id].cancelled = True
                generator.worker.send(Cancel(request_id))

    def poll(self, patience: float) -> list[Event]:
        """Send queued requests; returns the completions that finished and the requests that were lost."""
        for generator in self.generators:
            generator.hand_out()
        self._hear()
        deadline = time.monotonic() + patience
        while not self._events and (left := deadline - time.monotonic()) > 0:
            self._wait(left)
        events, self._events = self._events, []
        return events

    def publish(self, version: int, probe: IntArray) -> Publication:
        """Store the weights; returns once every serving generator has swapped them in or died, and one has them."""
        begin = time.perf_counter()
        first = self._stored is None
        self._stored = self.store.publish(self._source, version)
        self._probe, self._reference = probe, None
        served = {generator.number: generator.life for generator in self.generators if generator.serving}
        for generator in self.generators:
            generator.updated = None

        def waits() -> bool:
            # Where all have died a new one must answer: without a reference no generator would serve.
            asked = [m for m in self.generators if first or served.get(m.number) == m.life] or self.generators[:1]
            return not all(generator.answer(version) for generator in asked)

        self._hear()
        generators = counted(len(self.generators), "generators")
        with progress.doing(f"{'starting' if first else 'handing weights to'} {generators}"):
            while waits():
                self._wait(_LOOK_SECONDS)
        probed = {m.number: found.logprobs for m in self.generators if (found := m.answer(version)) is not None}
        self._reference = next(iter(probed.values()), None)
        for generator in self.generators:
            self._bring_up(generator)
        self.store.keep({version for generator in self.generators for version in generator.pending} | {version})
        return Publication(version, time.perf_counter() - begin, probed, self._idle_share())

    def close(self) -> None:
        """End the workers and remove the weights."""
        self._team.close()
        self.store.release()

    # ------------------------------------------------------------------ what workers say

    def _wait(self, seconds: float) -> None:
        self._team.wait(min(seconds, _LOOK_SECONDS))
        self._hear()

    def _hear(self) -> None:
        """Take all messages and deaths, and have generators that are ready and lack the current weights load them."""
        for generator in self.generators:
            for message in generator.worker.receive():
                self._take(generator, message)
            if self._team.check(generator.number, busy=bool(generator.sent)) is not None:
                self._replace(generator)
        if self._stored is None:
            return
        version = self._stored.version
        for generator in self.generators:
            if generator.ready and generator.answer(version) is None and version not in generator.pending:
                generator.update(self._stored, self._kv, self._probe)

    def _take(self, generator: GeneratorHandle, message: Any) -> None:
        if isinstance(message, Finished):
            self._report(generator, message)
        elif isinstance(message, Updated):
            generator.updated = message
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
        """Let a generator serve if it has the current weights and computes what the others compute."""
        if generator.serving or self._stored is None or self._reference is None:
            return  # while there is no reference, `publish` waits for one
        updated = generator.answer(self._stored.version)
        if updated is None:
            return
        gap = float(np.abs(updated.logprobs - self._reference).mean())
        if not gap <= PROBE_TOLERANCE:
            raise StropError(
                f"{generator.worker.role} differs from the other generators by {gap:.3g} nats a token on the same "
                "weights; look for a difference between their machines"
            )
        generator.serving = True
        generator.hand_out()

    # ------------------------------------------------------------------ deaths

    def _replace(self, generator: GeneratorHandle) -> None:
        """Replace a dead worker, and report its requests as lost."""
        role, death = generator.worker.role, self._team.replace(generator.number)
        self._note(f"{role} died ({death.reason}) and is started again, {len(generator.sent)} of its groups with it")
        self._events += [
            Lost(item.request.id, f"{role} died: {death.reason}")
            for item in generator.restarted()
            if not item.cancelled
        ]

    def _idle_share(self) -> float | None:
        """The share of their time since the last publication in which generators had nothing to do; None at first."""
        now = {(one.number, one.life): one.updated.work for one in self.generators if one.updated is not None}
        busy = idle = 0.0
        for key, work in now.items():
            before = self._at_publication.get(key, Work())
            busy, idle = busy + work.busy - before.busy, idle + work.idle - before.idle
        self._at_publication = now
        return idle / (busy + idle) if busy + idle else None


# ---------------------------------------------------------------------- the worker's side


@dataclass(frozen=True)
class GeneratorSettings:
    """The settings from which a generator builds its engine; its weights come from the store.

    `seed` is that of a fresh model's first parameters; `device` as torch names it.
    """

    model: ModelSettings
    engine: EngineSettings
    seed: int
    device: str = "cpu"


def main(connection: ControllerConnection, settings: GeneratorSettings) -> None:
    """The entry of a generator: it builds an engine, with the model loaded as the trainer's is."""
    from strop.engines.build import own_engine

    serve(connection, own_engine(settings.engine, settings.model, settings.seed, settings.device))


Load: TypeAlias = "Callable[[StoredWeights], WeightSource]"


def serve(connection: ControllerConnection, engine: Engine, load: Load | None = None) -> None:
    """Serve the controller at the other end of `connection` until it closes it (`ControllerGone` is raised then).

    `load` turns a stored version into what the engine takes; by default the tensors, mapped and checked.
    """
    GeneratorServer(connection, engine, load or _read).run()


def _read(stored: StoredWeights) -> WeightSource:
    from strop.orchestration.weight_store import read

    return read(stored)


class GeneratorServer:
    """The serving loop: messages between two steps of the engine, and never within one."""

    def __init__(self, connection: ControllerConnection, engine: Engine, load: Load) -> None:
        self.connection = connection
        self.engine = engine
        self.load = load
        self._busy = self._idle = 0.0

    def run(self) -> None:
        """Until the connection is closed."""
        self.connection.send(Ready())
        while True:
            self.listen()
            if self.engine.unfinished:
                self.step()

    def listen(self) -> None:
        """Take what has come in; wait for it where there is nothing to generate."""
        idle = not self.engine.unfinished
        begin = time.perf_counter()
        messages = self.connection.receive(IDLE_SECONDS if idle else 0.0)
        if idle:
            self._idle += time.perf_counter() - begin
        for message in messages:
            self.take(message)

    def step(self) -> None:
        """A token for every running sequence; what finished is sent."""
        begin = time.perf_counter()
        completions = self.engine.step()
        self._busy += time.perf_counter() - begin
        if completions:
            self.connection.send(Finished(tuple(completions)))

    def take(self, message: Any) -> None:
        """Do what a message asks for."""
        if isinstance(message, Submit):
            for request in message.requests:
                self.engine.submit(request)
        elif isinstance(message, Cancel):
            self.engine.cancel(message.request_id)
        elif isinstance(message, WeightUpdate):
            self.update(message)
        else:
            raise TypeError(f"a generator knows no message {type(message).__name__}")

    def update(self, message: WeightUpdate) -> None:
        """Read, check, swap and probe; running sequences go on with the new weights."""
        stored = message.weights
        self.engine.update_weights(self.load(stored), stored.version, message.kv)
        logprobs = self.engine.verify_weights(message.probe)
        self.connection.send(Updated(stored.version, logprobs, Work(self._busy, self._idle)))
