"""One pool of engines for training and evaluation: generators also answer the requests of evaluations.

    pool = EnginePool(executor, slots)                        # the loop's executor
    evaluator = PoolEvaluator(pool, sets, devices, asynchronous=False)

    loop ──submit──▶ EnginePool ─────────────────▶ executor ──▶ generators
    PoolEvaluator ─▶ EnginePool: waiting requests ─▶ where training has left a place

No second model is loaded to evaluate. Evaluations yield to training: a request of one goes out when the generators have
places that no request of training takes. The requests of a generator that dies are sent to another one.

With `asynchronous` false an evaluation runs between two steps: weights do not change meanwhile, so all of it is drawn
by the weights after its step. With `asynchronous` true training goes on, and the result says which versions drew it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strop.base import progress
from strop.base.interrupt import breakable
from strop.base.types import Completion
from strop.base.view import View
from strop.engines.protocol import Request
from strop.evaluation.evaluate import Measurement, ProblemSet
from strop.evaluation.result import EvaluationResult
from strop.orchestration.evaluator import MeasuredVersion, Weights
from strop.orchestration.executor import Event, Executor, Lost, Probe, Publication
from strop.orchestration.weight_store import Publish
from strop.verifiers.judges import OpenJudges

_PATIENCE = 0.1  # seconds of a wait for completions, between looks at verdicts


@dataclass
class _Sent:
    """A request of an evaluation that is under way, and how many of its samples are not yet reported."""

    request: Request
    left: int


class EnginePool:
    """An `Executor` whose generators also answer evaluations; the methods of the protocol are those of training.

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
