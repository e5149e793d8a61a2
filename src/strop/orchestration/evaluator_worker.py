"""The evaluator's side: an engine of its own that measures what it is told to, whatever connects it.

The first message out is `Ready`. Weights come as they do to a generator (`Update`, answered by `Updated`), then
`Evaluate`, answered by `Evaluated`; both are checked whole before the engine has them. A `StropError` ends the worker
for good: another one would meet it too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strop.orchestration.connection import Line
from strop.orchestration.messages import Evaluate, Evaluated, Evaluating, Ready, Update, Updated, Work

if TYPE_CHECKING:
    from strop.engines.protocol import Engine
    from strop.engines.settings import EngineSettings
    from strop.evaluation.validation import ValidationSet
    from strop.model.settings import ModelSettings
    from strop.verifiers.judges import Judges

IDLE_SECONDS = 1.0
TOLD_SECONDS = 1.0


@dataclass(frozen=True)
class EvaluatorSettings:
    """What an evaluator builds its engine from, and the sets that it may be asked for.

    `seed` is that of a fresh model's first parameters; `device` as torch names it.
    """

    model: ModelSettings
    engine: EngineSettings
    seed: int
    device: str
    sets: tuple[ValidationSet, ...]


def main(line: Line, settings: EvaluatorSettings) -> None:
    """The entry of a worker with an engine of its own."""
    from strop.engines.build import own_engine

    serve(line, own_engine(settings.engine, settings.model, settings.seed, settings.device), settings.sets)


def serve(line: Line, engine: Engine, sets: Sequence[ValidationSet]) -> None:
    """Measure what comes until the line is closed (`ControllerGone` is raised then)."""
    from strop.verifiers.judges import Judges

    judges = Judges()
    waiting: list[object] = []
    line.send(Ready())
    try:
        while True:
            waiting += line.receive(0.0 if waiting else IDLE_SECONDS)
            if waiting:
                _take(waiting.pop(0), line, engine, sets, judges, waiting)
    finally:
        judges.close()


def _take(
    message: object, line: Line, engine: Engine, sets: Sequence[ValidationSet], judges: Judges, waiting: list[object]
) -> None:
    """Do what a message asks for; what comes in meanwhile waits."""
    from strop.evaluation.validation import by_name, measure
    from strop.orchestration.weight_store import read

    begin = time.perf_counter()
    if isinstance(message, Update):
        engine.update_weights(read(message.weights), message.weights.version)
        line.send(Updated(message.weights.version, time.perf_counter() - begin, Work()))
        return
    if not isinstance(message, Evaluate):
        raise TypeError(f"an evaluator knows no message {type(message).__name__}")
    telling = _Telling(line, message.step)
    # Between two tokens it is seen whether anybody still listens.
    results = measure(
        engine, by_name(sets, message.names), judges, telling.tell, turn=lambda: waiting.extend(line.receive(0.0))
    )
    line.send(Evaluated(message.step, results, time.perf_counter() - begin))


class _Telling:
    """Says how far an evaluation is, once a second."""

    def __init__(self, line: Line, step: int) -> None:
        self._line = line
        self._step = step
        self._said = time.monotonic()

    def tell(self, name: str, done: int, total: int) -> None:
        """`done` of `total` samples of a set are judged."""
        if done == total or time.monotonic() - self._said >= TOLD_SECONDS:
            self._said = time.monotonic()
            self._line.send(Evaluating(self._step, name, done, total))
