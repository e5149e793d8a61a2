"""Simulated generators that end at a chosen point, once: the faults of the fault tests."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.simulated import SimulatedEngine, Simulation, load

from strop.base.types import Completion, FloatArray, IntArray
from strop.engines.protocol import KvMode, WeightSource
from strop.orchestration.fleet import serve
from strop.orchestration.messages import Finished, StoredWeights
from strop.orchestration.workers import ControllerConnection
from strop_verify.framing import framed


@dataclass(frozen=True)
class Fault:
    """Where a generator ends. It does so once in a run, whoever is first.

    Some are no end: who is `lying` computes something else from version `after` on, and of `changed` one dies while it
    generates, and whoever is started after that computes something else; `slow` takes 3 s for the version `after`, and
    `sluggish` a moment for every one.

    Attributes:
        point: `generating`, `sending`, `loading`, `swapping`, `hanging`, `stopping`, `lying`, `changed`, `slow` or
            `sluggish`.
        marker: a file; where it exists the fault has been.
        after: steps, messages or versions before it.
    """

    simulation: Simulation
    point: str
    marker: str
    after: int = 2

    def first(self) -> bool:
        """Whether this process is the one that the fault is for; it is of one process, and once."""
        try:
            Path(self.marker).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def strike(self) -> None:
        """End this process, or stop it, unless another one has been before."""
        if self.first():
            self.end()

    def end(self) -> None:
        """End this process, or stop it."""
        if self.point == "hanging":
            time.sleep(3600)
        os.kill(os.getpid(), signal.SIGSTOP if self.point == "stopping" else signal.SIGKILL)


class FaultyEngine(SimulatedEngine):
    """Ends while it generates, or while it swaps weights in."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.simulation)
        self.fault = fault
        self.steps = 0
        self.changed = fault.point == "changed" and Path(fault.marker).exists()

    def step(self) -> list[Completion]:
        self.steps += 1
        if self.steps > self.fault.after and self.fault.point in ("generating", "hanging", "stopping", "changed"):
            self.fault.strike()
        return super().step()

    def update_weights(self, source: WeightSource, version: int, kv: KvMode = "keep") -> None:
        if self.fault.point == "sluggish" or (self.fault.point == "slow" and version == self.fault.after):
            time.sleep(3.0 if self.fault.point == "slow" else 0.3)
        super().update_weights(self._half(dict(source), version), version, kv)

    def verify_weights(self, probe_ids: IntArray) -> FloatArray:
        lies = self.fault.point == "lying" and self.weight_version >= self.fault.after
        return super().verify_weights(probe_ids) + np.float32(lies or self.changed)

    def _half(self, given: dict[str, Any], version: int) -> Iterator[tuple[str, Any]]:
        for number, item in enumerate(given.items()):
            if number == 50 and version >= self.fault.after and self.fault.point == "swapping":
                self.fault.strike()
            yield item


class FaultyLine:
    """Ends in the middle of a result."""

    def __init__(self, connection: Any, fault: Fault) -> None:
        self.connection = connection
        self.fault = fault
        self.results = 0
        self.address = str(connection.address)

    def send(self, message: object) -> None:
        self.results += isinstance(message, Finished)
        late = isinstance(message, Finished) and self.results > self.fault.after
        if late and self.fault.point == "sending" and self.fault.first():
            whole = framed(pickle.dumps(message))
            self.connection._channel.socket.sendall(whole[: len(whole) // 2])
            self.fault.end()
        self.connection.send(message)

    def receive(self, seconds: float) -> list[Any]:
        found: list[Any] = self.connection.receive(seconds)
        return found

    def progress(self) -> None:
        self.connection.progress()


def main(connection: ControllerConnection, fault: Fault) -> None:
    """The entry."""

    def loading(stored: StoredWeights) -> WeightSource:
        if stored.version >= fault.after and fault.point == "loading":
            with open(stored.path, "rb") as file:
                file.read(stored.bytes // 2)
            fault.strike()
        return load(stored)

    serve(FaultyLine(connection, fault), FaultyEngine(fault), loading)
