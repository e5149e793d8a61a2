"""A generator worker: an engine that serves one controller, whatever connects them.

The first message out is `Ready`. Weights come before requests; an update waits for the end of the step that runs, is
read and checked whole, then swapped in between two tokens. Whatever goes wrong ends the worker: the controller starts
another, or ends the run where a `StropError` says that another would fail the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from strop.engines.protocol import OpenRequests
from strop.orchestration.connection import ControllerConnection
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

if TYPE_CHECKING:
    from strop.engines.protocol import Engine, WeightSource
    from strop.engines.settings import EngineSettings
    from strop.model.settings import ModelSettings

IDLE_SECONDS = 1.0


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
    """The entry of a worker with its own engine, whose model is loaded as the trainer's is."""
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
        self._open = OpenRequests()
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
        if not completions:
            return
        self._open.reported(completions)
        self.connection.send(Finished(tuple(completions)))

    def take(self, message: Any) -> None:
        """Do what a message asks for."""
        if isinstance(message, Submit):
            for request in message.requests:
                self.engine.submit(request)
                self._open.begin(request)
        elif isinstance(message, Cancel):
            if message.request_id in self._open:  # else its last completion is on its way
                self.engine.cancel(message.request_id)
        elif isinstance(message, WeightUpdate):
            self.update(message)
        elif isinstance(message, Probe):
            self.connection.send(Probed(self.engine.weight_version, self.engine.verify_weights(message.token_ids)))
        else:
            raise TypeError(f"a generator knows no message {type(message).__name__}")

    def update(self, message: WeightUpdate) -> None:
        """Read, check and swap; running sequences go on with the new weights."""
        self.connection.send(Updating())
        weights = message.weights
        self.engine.update_weights(self.load(weights), weights.version, message.kv)
        self.connection.send(Updated(weights.version, Work(self._busy, self._idle)))
