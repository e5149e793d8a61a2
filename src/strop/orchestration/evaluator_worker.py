"""The evaluator's side: an engine of its own that measures what the controller asks for, whatever connects it.

The first message out is `Ready`. Weights come as they do to a generator (`Update`, answered by `Updated`), then
`Evaluate`, answered by `Evaluated`; both are checked whole before the engine has them. A `StropError` ends the worker
for good: another one would meet it too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strop.orchestration.connection import ControllerConnection
from strop.orchestration.generator import GeneratorSettings
from strop.orchestration.messages import Evaluate, Evaluated, Evaluating, Ready, Update, Updated, Work

if TYPE_CHECKING:
    from strop.engines.protocol import Engine
    from strop.evaluation.validation import ValidationSet
    from strop.verifiers.judges import Judges

IDLE_SECONDS = 1.0
REPORT_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class EvaluatorSettings(GeneratorSettings):
    """The settings from which an evaluator builds its engine, as a generator does, and the sets that it may measure."""

    sets: tuple[ValidationSet, ...]


def main(connection: ControllerConnection, settings: EvaluatorSettings) -> None:
    """The entry of a worker with an engine of its own."""
    from strop.engines.build import own_engine

    serve(connection, own_engine(settings.engine, settings.model, settings.seed, settings.device), settings.sets)


def serve(connection: ControllerConnection, engine: Engine, sets: Sequence[ValidationSet]) -> None:
    """Measure what comes until the connection is closed (`ControllerGone` is raised then)."""
    from strop.verifiers.judges import Judges

    judges = Judges()
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
    sets: Sequence[ValidationSet],
    judges: Judges,
    waiting: list[object],
) -> None:
    """Do what a message asks for; what comes in meanwhile waits."""
    from strop.evaluation.validation import by_name, measure
    from strop.orchestration.weight_store import read

    begin = time.perf_counter()
    if isinstance(message, Update):
        engine.update_weights(read(message.weights), message.weights.version)
        connection.send(Updated(message.weights.version, time.perf_counter() - begin, Work()))
        return
    if not isinstance(message, Evaluate):
        raise TypeError(f"an evaluator knows no message {type(message).__name__}")
    report = _ProgressReport(connection, message.step)
    # Between two tokens it is checked whether the controller still listens.
    results = measure(
        engine, by_name(sets, message.names), judges, report, turn=lambda: waiting.extend(connection.receive(0.0))
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
