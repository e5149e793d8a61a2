"""Evaluators measure the policy while it trains. The run begins an evaluation and later collects its result.

    evaluator.begin(step, names, weights)      # in this process: returns when the measurement is done
    ...                                        # in a worker: returns at once, and training goes on
    for found in evaluator.poll(): ...         # results, in the order of their steps

Where servers generate, they also evaluate (`pool`). Else `InProcessEvaluator` and `WorkerEvaluator` measure the same
sets with the same seeds, on engines of the same settings, and have the same results. The worker's weights stay in a
separate store until the result is in:

    begin ─▶ weights into the store ─Evaluate─▶ worker
    poll  ◀───────────────────────Evaluated── worker

One evaluation is under way; others wait with their weights. A worker that dies, hangs or falls silent is replaced, as
often as `restarts` allows, and its evaluation is repeated: samples depend on seed and problem only, so the result is
the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from strop.base import progress
from strop.base.interrupt import breakable
from strop.base.types import FloatArray, IntArray, StropError
from strop.base.view import SilentView, View
from strop.engines.protocol import Engine
from strop.evaluation.evaluate import ProblemSet, measure
from strop.evaluation.result import EvaluationResult
from strop.model.policy import Policy
from strop.orchestration.fleet import GeneratorSettings
from strop.orchestration.messages import Evaluate, Evaluated, Evaluating, Ready, StoredWeights
from strop.orchestration.weight_store import EVALUATED, WeightFile, WeightStore, read
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
