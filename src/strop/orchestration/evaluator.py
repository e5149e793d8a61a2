"""Evaluators measure the policy while it trains. The run begins an evaluation and later collects its result.

    evaluator.begin(step, names, weights)      # in this process: returns when the measurement is done
    ...                                        # in a worker: returns at once, and training goes on
    for found in evaluator.poll(): ...         # results, in the order of their steps

Where servers generate, they also evaluate (`PoolEvaluator`). Else `InProcessEvaluator` and `WorkerEvaluator` measure
the same sets with the same seeds, on engines of the same settings, and have the same results. The worker's weights stay
in a separate store until the result is in:

    begin ─▶ weights into the store ─Evaluate─▶ worker
    poll  ◀───────────────────────Evaluated── worker

One evaluation is under way; others wait with their weights. A worker that dies, hangs or falls silent is replaced, as
often as `restarts` allows, and its evaluation is repeated: samples depend on seed and problem only, so the result is
the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from strop.base import progress
from strop.base.interrupt import breakable
from strop.base.types import Completion, FloatArray, IntArray, StropError
from strop.base.view import SilentView, View
from strop.engines.protocol import Engine, Request
from strop.evaluation.evaluate import Measurement, ProblemSet, measure
from strop.evaluation.result import EvaluationResult
from strop.model.policy import Policy
from strop.orchestration.executor import Event, Executor, Lost, Probe, Publication
from strop.orchestration.fleet import GeneratorSettings
from strop.orchestration.messages import Evaluate, Evaluated, Evaluating, Ready, StoredWeights
from strop.orchestration.weight_store import EVALUATED, Publish, WeightFile, WeightStore, read
from strop.orchestration.workers import ControllerConnection, Supervision, Team, WorkerLauncher, WorkerSpec
from strop.verifiers.judges import OpenJudges


class Weights(Protocol):
    """A holder of weights to evaluate: a learner, or `WeightsOf` a policy."""

    def weights(self) -> Mapping[str, Tensor]:
        """Every parameter whole, by its name in the model."""
        ...

    def publish(self, file: WeightFile, version: int, /) -> StoredWeights:
        """Write them into a file."""
        ...

    def probe(self, token_ids: IntArray) -> FloatArray:
        """Their log-probs [L - 1] of `token_ids` [L] after the first, at temperature 1."""
        ...


@dataclass(frozen=True, eq=False)
class WeightsOf:
    """The weights that a policy has now."""

    policy: Policy

    def weights(self) -> Mapping[str, Tensor]:
        """The parameters themselves."""
        return self.policy.weights()

    def publish(self, file: WeightFile, version: int, /) -> StoredWeights:
        """Write them into a file."""
        return file.write(version, self.weights().items())

    def probe(self, token_ids: IntArray) -> FloatArray:
        """By the policy."""
        return self.policy.probe(token_ids)


@dataclass(frozen=True, eq=False)
class MeasuredVersion:
    """The results of evaluating the weights after `step`.

    Attributes:
        results: by the set's name.
        seconds: wall time of the evaluation.
        device_seconds: `seconds` times the number of devices that it kept busy.
    """

    step: int
    results: Mapping[str, EvaluationResult]
    seconds: float
    device_seconds: float


class Evaluator(Protocol):
    """Measures problem sets on the weights after a step."""

    @property
    def outstanding(self) -> Sequence[int]:
        """The steps whose evaluation is under way, waits, or was not yet polled."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether another evaluation may begin now."""
        ...

    def start(self, folder: Path, view: View) -> None:
        """Begin for the run in `folder`; `view` shows the progress of evaluations."""
        ...

    def begin(self, step: int, names: Sequence[str], weights: Weights) -> None:
        """Begin to measure the named sets on `weights`, those after training step `step`."""
        ...

    def poll(self, patience: float = 0.0) -> list[MeasuredVersion]:
        """The evaluations finished since the last call; waits up to `patience` seconds where some are outstanding."""
        ...

    def close(self) -> None:
        """End what runs; may be called twice."""
        ...


class InProcessEvaluator:
    """Measures at `begin`, in turn with training. `poll` reports each evaluation once, in the order they were begun.

    Args:
        engine: idle at `begin`; closed by its maker.
        sets: every set that `begin` may name.
        judges: the pools of the sets' verifiers; closed with this evaluator.
        devices: the number of devices that the engine keeps busy.
    """

    def __init__(self, engine: Engine, sets: Sequence[ProblemSet], judges: OpenJudges, devices: int) -> None:
        self.engine = engine
        self._sets = sets
        self._judges = judges
        self._devices = devices
        self._begun: list[int] = []
        self._done: list[MeasuredVersion] = []

    @property
    def outstanding(self) -> Sequence[int]:
        """The steps whose evaluation was begun and not yet polled, and one that failed."""
        return tuple(self._begun)

    @property
    def has_room(self) -> bool:
        """Whether another evaluation may begin now: always."""
        return True

    def start(self, folder: Path, view: View) -> None:
        """Nothing to start."""

    def begin(self, step: int, names: Sequence[str], weights: Weights) -> None:
        """Measure the named sets on `weights`, those after training step `step`; returns when it is done.

        Raises:
            StropError: they cannot be measured.
        """
        self._begun.append(step)
        begin = time.perf_counter()
        self.engine.update_weights(weights.weights().items(), step)
        with breakable():
            results = measure(self.engine, self._sets, names, self._judges, _report)
        seconds = time.perf_counter() - begin
        self._done.append(MeasuredVersion(step, results, seconds, seconds * self._devices))

    def poll(self, patience: float = 0.0) -> list[MeasuredVersion]:
        """The finished evaluations; there is nothing to wait for."""
        found, self._done = self._done, []
        done = {measured.step for measured in found}
        self._begun = [step for step in self._begun if step not in done]
        return found

    def close(self) -> None:
        """Close the judges."""
        self._judges.close()


def _report(name: str, done: int, total: int) -> None:
    progress.part("evaluation", done, total)


AT_ONCE = 2  # one under way, one that waits
_LOOK_SECONDS = 1.0


class WorkerEvaluator:
    """Measures in a worker while training goes on. `poll` reports each evaluation once, in the order they were begun.

    Args:
        launcher: starts the worker.
        spec: the worker, whose entry is `main` of this module.
        devices: the number of devices that the worker keeps busy.
        version_bytes: the approximate size of the weights, which decides where they are stored.
        supervision: when the worker is killed, and how often it may die.
    """

    def __init__(
        self,
        launcher: WorkerLauncher,
        spec: WorkerSpec,
        devices: int,
        version_bytes: int,
        supervision: Supervision,
    ) -> None:
        self._team = Team(launcher, [spec], supervision)
        self._devices = devices
        self._store = WeightStore(version_bytes, lambda line: self._view.note(line), within=EVALUATED)
        self._view: View = SilentView()
        self._ready = self._busy = False
        self._open: list[Evaluate] = []
        self._done: list[MeasuredVersion] = []

    @property
    def outstanding(self) -> Sequence[int]:
        """The steps whose evaluation is under way, waits, or was not yet polled."""
        return (*(found.step for found in self._done), *(item.step for item in self._open))

    @property
    def has_room(self) -> bool:
        """Whether another evaluation may begin now: each one holds a copy of the weights until it is done."""
        return len(self._open) < AT_ONCE

    def start(self, folder: Path, view: View) -> None:
        """Launch the worker, which builds its engine meanwhile; `view` also shows a line for each death."""
        self._view = view
        self._store.start(folder)
        self._team.start(folder)

    def begin(self, step: int, names: Sequence[str], weights: Weights) -> None:
        """Store the weights, those after training step `step`, and return; the worker gets them when it is free.

        Raises:
            StropError: they cannot be stored.
        """
        self._open.append(Evaluate(self._store.publish(weights.publish, step), step, tuple(names)))
        self._remove_old_weights()
        self._hear()

    def poll(self, patience: float = 0.0) -> list[MeasuredVersion]:
        """The evaluations finished since the last call; waits up to `patience` seconds where some are outstanding.

        Raises:
            StropError: an evaluation cannot be done, now or ever.
        """
        self._hear()
        deadline = time.monotonic() + patience
        while self._open and not self._done and (left := deadline - time.monotonic()) > 0:
            self._team.wait(min(left, _LOOK_SECONDS))
            self._hear()
        found, self._done = self._done, []
        return found

    def close(self) -> None:
        """End the worker, at once where it is at work, and remove the weights; may be called twice."""
        self._team.close(kill="its result is not waited for" if self._open else None)
        self._store.release()

    # ------------------------------------------------------------------ the worker

    def _hear(self) -> None:
        """Take all messages and a death that are there; give the worker what it is free for."""
        (handle,) = self._team.handles
        for message in handle.receive():
            self._take(message)
        if self._team.check(0, busy=self._busy) is not None:
            self._replace()
        elif self._ready and not self._busy and self._open:
            self._busy = True
            handle.send(self._open[0])

    def _take(self, message: Any) -> None:
        if isinstance(message, Evaluated):
            done = self._open.pop(0)
            assert done.step == message.step
            self._busy = False
            device_seconds = message.seconds * self._devices
            self._done.append(MeasuredVersion(message.step, message.results, message.seconds, device_seconds))
            self._remove_old_weights()
        elif isinstance(message, Evaluating):
            progress.part(f"evaluation of step {message.step}, {message.name}", message.done, message.total)
        elif isinstance(message, Ready):
            self._ready = True
        else:
            raise StropError(f"{self._team.handles[0].role} sent a {type(message).__name__}, which no evaluator sends")

    def _replace(self) -> None:
        death = self._team.replace(0)
        self._ready = self._busy = False
        steps = ", ".join(str(item.step) for item in self._open)
        again = f"; the evaluation of step {steps} is done again" if steps else ""
        self._view.note(f"{self._team.handles[0].role} died ({death.reason}) and is started again{again}")

    def _remove_old_weights(self) -> None:
        """All but those of evaluations that are under way or wait."""
        self._store.keep({item.weights.version for item in self._open})


IDLE_SECONDS = 1.0
REPORT_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class EvaluatorSettings(GeneratorSettings):
    """The settings from which an evaluator builds its engine, as a generator does, and the sets that it may measure."""

    sets: tuple[ProblemSet, ...]


def main(connection: ControllerConnection, settings: EvaluatorSettings) -> None:
    """The entry of a worker with its own engine."""
    from strop.engines.build import own_engine

    serve(connection, own_engine(settings.engine, settings.model, settings.seed, settings.device), settings.sets)


def serve(connection: ControllerConnection, engine: Engine, sets: Sequence[ProblemSet]) -> None:
    """Measure what comes until the connection is closed (`ControllerGone` is raised then)."""
    judges = OpenJudges()
    waiting: list[object] = []
    connection.send(Ready())
    try:
        while True:
            waiting += connection.receive(0.0 if waiting else IDLE_SECONDS)
            if waiting:
                _take(waiting.pop(0), connection, engine, sets, judges, waiting)
    finally:
        judges.close()


def _take(
    message: object,
    connection: ControllerConnection,
    engine: Engine,
    sets: Sequence[ProblemSet],
    judges: OpenJudges,
    waiting: list[object],
) -> None:
    """Do what a message asks for; what comes in meanwhile waits."""
    begin = time.perf_counter()
    if not isinstance(message, Evaluate):
        raise TypeError(f"an evaluator knows no message {type(message).__name__}")
    engine.update_weights(read(message.weights), message.weights.version)
    report = _ProgressReport(connection, message.step)
    # Between two tokens it is checked whether the controller still listens.
    results = measure(
        engine, sets, message.names, judges, report, turn=lambda: waiting.extend(connection.receive(0.0))
    )
    connection.send(Evaluated(message.step, results, time.perf_counter() - begin))


class _ProgressReport:
    """Sends how far an evaluation is, once a second."""

    def __init__(self, connection: ControllerConnection, step: int) -> None:
        self._connection = connection
        self._step = step
        self._said = time.monotonic()

    def __call__(self, name: str, done: int, total: int) -> None:
        """`done` of `total` samples of a set are judged."""
        if done == total or time.monotonic() - self._said >= REPORT_SECONDS:
            self._said = time.monotonic()
            self._connection.send(Evaluating(self._step, name, done, total))


# ---------------------------------------------------------------------- on the engines that training generates with
#
#   loop ──submit──▶ EnginePool ─────────────────▶ executor ──▶ generators
#   PoolEvaluator ─▶ EnginePool: waiting requests ─▶ where training has left a place


_PATIENCE = 0.1  # seconds of a wait for completions, between looks at verdicts


@dataclass
class _Sent:
    """A request of an evaluation that is under way, and how many of its samples are not yet reported."""

    request: Request
    left: int


class EnginePool:
    """An `Executor` whose generators also answer evaluations; the methods of the protocol are those of training.

    Evaluations yield to training: a request of one goes out when the generators have places that no request of training
    takes. The requests of a generator that dies are sent to another one.

    Args:
        executor: runs the generators.
        slots: sequences that all generators run at once.
    """

    def __init__(self, executor: Executor, slots: int) -> None:
        self.executor = executor
        self.version: int | None = None  # the last one that was published
        self.evaluate: Callable[[], None] | None = None  # called after completions may have come in
        self._slots = slots
        self._events: list[Event] = []  # of training
        self._answers: list[Completion] = []  # of the evaluation
        self._waiting: deque[Request] = deque()
        self._sent: dict[str, _Sent] = {}
        self._ticket = 0

    # ------------------------------------------------------------------ training

    @property
    def unfinished(self) -> int:
        """Sequences of training that were submitted and not yet reported."""
        return self.executor.unfinished - sum(item.left for item in self._sent.values())

    def start(self, folder: Path) -> None:
        """Start the generators."""
        self.executor.start(folder)

    def submit(self, request: Request, ticket: int, attempt: int = 0) -> None:
        """Queue a request of training."""
        self.executor.submit(request, ticket, attempt)

    def cancel(self, request_id: str) -> None:
        """Cancel a request of training."""
        self.executor.cancel(request_id)

    def poll(self, patience: float) -> list[Event]:
        """The events of training since the last call."""
        self.pump(0.0 if self._events else patience)
        found, self._events = self._events, []
        return found

    def publish(self, version: int, probe: Probe, source: Publish | None = None) -> Publication:
        """Publish weights to all generators; see `Executor.publish`."""
        found = self.executor.publish(version, probe, source)
        self.version = version
        return found

    def close(self) -> None:
        """End every generator."""
        self.executor.close()

    # ------------------------------------------------------------------ evaluations

    def ask(self, requests: Sequence[Request]) -> None:
        """Queue requests of an evaluation."""
        self._waiting += requests

    def answers(self) -> list[Completion]:
        """The completions of the evaluation that came in since the last call."""
        found, self._answers = self._answers, []
        return found

    def pump(self, patience: float) -> None:
        """Send the evaluation's requests that there are places for, and wait up to `patience` seconds for events."""
        busy = self.executor.unfinished
        while self._waiting and (not busy or busy + self._waiting[0].n <= self._slots):
            busy += self._waiting[0].n
            self._send(self._waiting.popleft())
        for event in self.executor.poll(patience):
            self._sort(event)
        if self.evaluate is not None:
            self.evaluate()

    def _sort(self, event: Event) -> None:
        sent = self._sent.get(event.request_id)
        if sent is None:
            self._events.append(event)
        elif isinstance(event, Lost):
            self._send(sent.request)  # its samples that are in come again, and are ignored
        else:
            sent.left -= 1
            if sent.left == 0:
                del self._sent[event.request_id]
            self._answers.append(event)

    def _send(self, request: Request) -> None:
        self._sent[request.id] = _Sent(request, request.n)
        self.executor.submit(request, self._ticket)  # in turn to each generator, and a lost one to the next
        self._ticket += 1


@dataclass
class _Open:
    """An evaluation that has begun: the sets that are left to measure, and the results of the others."""

    step: int
    left: list[ProblemSet]
    began: float
    results: dict[str, EvaluationResult] = field(default_factory=dict)


class PoolEvaluator:
    """Measures on the generators of a pool. `poll` reports each evaluation once, in the order they were begun.

    With `asynchronous` false an evaluation runs between two steps: weights do not change meanwhile, so all of it is
    drawn by the weights after its step. With `asynchronous` true training goes on, and the result says which versions
    drew it.

    Args:
        pool: the generators, which training uses too.
        sets: every set that `begin` may name.
        devices: the number of devices of all generators.
        asynchronous: training goes on meanwhile; else `begin` returns when the measurement is done.
    """

    def __init__(self, pool: EnginePool, sets: Sequence[ProblemSet], devices: int, asynchronous: bool) -> None:
        self._pool = pool
        self._sets = {each.name: each for each in sets}
        self._judges = OpenJudges()
        self._devices = devices
        self._asynchronous = asynchronous
        self._open: _Open | None = None
        self._measurement: Measurement | None = None
        self._done: list[MeasuredVersion] = []
        pool.evaluate = self._advance

    @property
    def outstanding(self) -> Sequence[int]:
        """The steps whose evaluation is under way, or was not yet polled."""
        return (*(found.step for found in self._done), *([] if self._open is None else [self._open.step]))

    @property
    def has_room(self) -> bool:
        """Whether another evaluation may begin now: a later one would find newer weights still."""
        return self._open is None

    def start(self, folder: Path, view: View) -> None:
        """Nothing to start."""

    def begin(self, step: int, names: Sequence[str], weights: Weights) -> None:
        """Begin to measure the named sets on `weights`, those after training step `step`.

        Generators that have other weights get these, and then the evaluation is done before anything else.

        Raises:
            StropError: they cannot be measured.
        """
        begin, waits = time.perf_counter(), not self._asynchronous
        if self._pool.version != step:
            first = next(iter(self._sets.values())).dataset[0].prompt_ids
            self._pool.publish(step, Probe(first, 0, weights.probe(first)), weights.publish)
            waits = True
        self._open = _Open(step, [self._sets[name] for name in names], begin)
        self._advance()
        if waits:
            with breakable():
                while self._open is not None:
                    self._pool.pump(_PATIENCE)

    def poll(self, patience: float = 0.0) -> list[MeasuredVersion]:
        """The evaluations finished since the last call; waits up to `patience` seconds where one is under way."""
        deadline = time.monotonic() + patience
        while self._open is not None and not self._done and (left := deadline - time.monotonic()) > 0:
            self._pool.pump(min(left, _PATIENCE))
        found, self._done = self._done, []
        return found

    def close(self) -> None:
        """Close the judges."""
        self._judges.close()

    def _advance(self) -> None:
        """Hand completions to the judges, ask for what is due, and go on to the next set where one is measured."""
        while (now := self._open) is not None:
            if self._measurement is None:
                self._measurement = Measurement(now.left[0], self._judges, None)
            measurement = self._measurement
            for completion in self._pool.answers():
                measurement.take(completion)
            before = measurement.done
            measurement.judged()
            self._pool.ask(measurement.requests())
            if measurement.done > before:
                name = f"evaluation of step {now.step}, {now.left[0].name}"
                progress.part(name, measurement.done, measurement.total)
            if measurement.done < measurement.total:
                return
            now.results[now.left.pop(0).name] = measurement.result(now.step)
            self._measurement = None
            if not now.left:
                seconds = time.perf_counter() - now.began
                self._done.append(MeasuredVersion(now.step, now.results, seconds, seconds * self._devices))
                self._open = None
