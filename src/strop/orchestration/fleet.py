"""The executor of many generators, and the generators: workers with an engine each, whatever runs them.

    submit ─▶ queue of generator (ticket + attempt) mod N ─Submit─▶ worker ─Finished─▶ poll
    publish ─▶ weight store ─WeightUpdate─▶ every worker: stage, check the hash, swap, probe ─Updated─▶ probe checked

`publish` returns once the version is stored. A generator has one version to take at a time: while it swaps, newer ones
replace each other, and it is sent the newest afterwards. A request goes out behind the weights that were published last
when it was made, so that no token of it is older. Messages are handled in order, so that a version's probe is checked
before anything that was drawn with it is reported.

The requests of a generator that dies come back from `poll` as `Lost`. Another worker takes its number
(`workers.Team`), loads the current weights and is probed before it serves.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from strop.base import progress
from strop.base.text import counted
from strop.base.types import StropError
from strop.engines.protocol import KvMode, Request
from strop.orchestration.executor import Event, Lost, Probe, ProbeCheck, Publication
from strop.orchestration.messages import (
    Cancel,
    Finished,
    Ready,
    Starting,
    StoredWeights,
    Submit,
    Updated,
    WeightUpdate,
    Work,
)
from strop.orchestration.workers import (
    ControllerConnection,
    ControllerGone,
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
    """A request that is not finished.

    Attributes:
        left: samples not yet reported.
        since: the oldest version that may draw it.
    """

    request: Request
    left: int
    since: int
    cancelled: bool = False


@dataclass
class GeneratorHandle:
    """A generator by its number; after a death the same generator goes on with another worker.

    Attributes:
        number: its place in the team.
        team: all generators' workers.
        life: which worker it is, counted from 0.
        ready: its engine is built.
        serving: it has acknowledged weights, and receives requests.
        sent_version: the last version that it was told to load; -1 before the first.
        pending: the probe of that version, until it has acknowledged it.
        work: what it has done, by its last message.
        queue: requests that were not sent to it yet.
        sent: requests that it has, by id.
    """

    number: int
    team: Team
    life: int = 0
    ready: bool = False
    serving: bool = False
    sent_version: int = -1
    pending: Probe | None = None
    work: Work | None = None
    queue: deque[Open] = field(default_factory=deque)
    sent: dict[str, Open] = field(default_factory=dict)

    @property
    def worker(self) -> WorkerHandle:
        """The present worker."""
        return self.team.handles[self.number]

    def restarted(self) -> list[Open]:
        """Reset the state for a new worker; returns the requests that the former one had."""
        lost = list(self.sent.values())
        self.life += 1
        self.ready = self.serving = False
        self.sent_version, self.pending, self.work = -1, None, None
        self.sent.clear()
        return lost

    def update(self, weights: StoredWeights, kv: KvMode, probe: Probe) -> None:
        """Tell the worker to load a version and to probe it."""
        self.sent_version, self.pending = weights.version, probe
        self.worker.send(WeightUpdate(weights, kv, probe.token_ids))

    def hand_out(self) -> None:
        """Send the queued requests that its weights may draw, in order and in one message."""
        if not self.serving:
            return
        due = list(takewhile(lambda item: item.since <= self.sent_version, self.queue))
        if due:
            for item in due:
                self.queue.popleft()
                self.sent[item.request.id] = item
            self.worker.send(Submit(tuple(item.request for item in due)))


class Fleet:
    """An `Executor` over one worker for each of `specs`.

    Args:
        launcher: starts workers.
        specs: the generators.
        source: writes the trainer's present parameters into a file.
        store: keeps them where the generators read them.
        supervision: when workers are killed, and how many deaths are survived.
        check: holds generators' probes against the trainer's.
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
        check: ProbeCheck,
        kv: KvMode = "keep",
    ) -> None:
        self.generators: list[GeneratorHandle] = []
        self.store = store
        self._source = source
        self._team = Team(launcher, specs, supervision)
        self._note = note
        self._check = check
        self._kv: KvMode = kv
        self._published: tuple[StoredWeights, Probe] | None = None  # the version that all shall have
        self._events: list[Event] = []
        self._unfinished = 0
        self._looked = -_LOOK_SECONDS  # when it was last looked who is silent
        self._at_publication: dict[tuple[int, int], Work] = {}  # by generator and life

    # ------------------------------------------------------------------ the protocol

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not yet reported, those of events not yet polled left out."""
        return self._unfinished

    def start(self, folder: Path) -> None:
        """Find a place for weights and start the workers, which build their engines meanwhile."""
        self.store.start(folder)
        self._team.start(folder)
        self.generators = [GeneratorHandle(number, self._team) for number in range(len(self._team.handles))]

    def submit(self, request: Request, ticket: int, attempt: int = 0) -> None:
        """Queue a request; it goes out with the next `poll`, together with the others of its generator."""
        assert self._published is not None
        generator = self.generators[(ticket + attempt) % len(self.generators)]
        generator.queue.append(Open(request, request.n, since=self._published[0].version))
        self._unfinished += request.n

    def cancel(self, request_id: str) -> None:
        """Cancel the request at its generator; one that was not sent yet is dropped from the queue."""
        for generator in self.generators:
            for item in [item for item in generator.queue if item.request.id == request_id]:
                generator.queue.remove(item)
                self._unfinished -= item.left
            if request_id in generator.sent:
                generator.sent[request_id].cancelled = True
                generator.worker.send(Cancel(request_id))

    def poll(self, patience: float) -> list[Event]:
        """Send queued requests; returns the completions that finished and the requests that were lost."""
        for generator in self.generators:
            if generator.queue:
                generator.hand_out()
        self._hear()
        deadline = time.monotonic() + patience
        while not self._events and (left := deadline - time.monotonic()) > 0:
            self._wait(left)
        events, self._events = self._events, []
        return events

    def publish(self, version: int, probe: Probe, source: Publish | None = None) -> Publication:
        """Store the weights and return; the first time, once every generator has them."""
        begin = time.perf_counter()
        first = self._published is None
        self._published = self.store.publish(source or self._source, version), probe
        self._hear()
        if first:
            with progress.doing(f"starting {counted(len(self.generators), 'generators')}"):
                while not all(generator.serving for generator in self.generators):
                    self._wait(_LOOK_SECONDS)
        self._tidy()
        return Publication(version, time.perf_counter() - begin, self._idle_share())

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
        now, updated = time.monotonic(), False
        looks = now - self._looked >= _LOOK_SECONDS
        self._looked = now if looks else self._looked
        for generator in self.generators:
            worker = generator.worker
            for message in worker.receive():
                self._take(generator, message)
                updated |= isinstance(message, Updated)
            # Of thousands of generators all are gone through for a completion of one: who is silent can wait.
            due = looks or worker.death is not None
            if due and self._team.check(generator.number, busy=bool(generator.sent)) is not None:
                self._replace(generator)
        if self._published is None:
            return
        if updated:
            self._tidy()
        for generator in self.generators:
            if generator.ready and generator.pending is None and generator.sent_version < self._published[0].version:
                generator.update(self._published[0], self._kv, self._published[1])
                generator.hand_out()

    def _take(self, generator: GeneratorHandle, message: Any) -> None:
        if isinstance(message, Finished):
            generator.work = message.work
            self._report(generator, message)
        elif isinstance(message, Updated):
            generator.work = message.work
            probe, generator.pending = generator.pending, None
            assert probe is not None
            self._check(generator.number, message.version, probe, message.logprobs)
            generator.serving = True
            generator.hand_out()
        elif isinstance(message, Ready):
            generator.ready = True
        elif isinstance(message, Starting):
            progress.part(f"{generator.worker.role}: {message.what}", message.done, message.total)
        else:
            raise StropError(f"{generator.worker.role} sent a {type(message).__name__}, which the fleet does not know")

    def _tidy(self) -> None:
        """Remove the versions that no generator loads now and none will."""
        assert self._published is not None
        loading = {generator.sent_version for generator in self.generators if generator.pending is not None}
        self.store.keep(loading | {self._published[0].version})

    def _report(self, generator: GeneratorHandle, message: Finished) -> None:
        for completion in message.completions:
            item = generator.sent[completion.request_id]
            item.left -= 1
            self._unfinished -= 1
            if item.left == 0:
                del generator.sent[completion.request_id]
            self._events.append(completion)
        generator.hand_out()

    # ------------------------------------------------------------------ deaths

    def _replace(self, generator: GeneratorHandle) -> None:
        """Replace a dead worker, and report its requests as lost."""
        role, death = generator.worker.role, self._team.replace(generator.number)
        self._note(f"{role} died ({death.reason}) and is started again, {len(generator.sent)} of its groups with it")
        lost = generator.restarted()
        self._unfinished -= sum(item.left for item in lost)
        self._events += [
            Lost(item.request.id, f"{role} died: {death.reason}") for item in lost if not item.cancelled
        ]

    def _idle_share(self) -> float | None:
        """The share of their time since the last publication in which generators had nothing to do; None at first."""
        now = {(one.number, one.life): one.work for one in self.generators if one.work is not None}
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

    def says(text: str) -> None:
        with suppress(ControllerGone):
            for part in progress.CURRENT.parts[-1:]:
                connection.send(Starting(part.name, part.done, part.total))

    progress.CURRENT.show = says
    with progress.heartbeat():
        engine = own_engine(settings.engine, settings.model, settings.seed, settings.device)
    serve(connection, engine)


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
            self.connection.send(Finished(tuple(completions), Work(self._busy, self._idle)))

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
        """Read and check while running sequences go on, then swap and probe; they go on with the new weights."""
        stored = message.weights
        with ThreadPoolExecutor(1) as reader:
            source = reader.submit(self.load, stored)
            while self.engine.unfinished and not source.done():
                self.step()
        self.engine.update_weights(source.result(), stored.version, message.kv)
        logprobs = self.engine.verify_weights(message.probe)
        self.connection.send(Updated(stored.version, logprobs, Work(self._busy, self._idle)))
