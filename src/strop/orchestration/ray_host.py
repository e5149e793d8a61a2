"""The worker's side of Ray: the actor in whose process an entry runs, and the connection between the two.

The entry has its own thread; what comes and goes passes through queues, which the controller fills (`deliver`)
and empties (`collect`, which waits for something to collect, and answers every second at the latest: the heartbeat).
Nothing here imports ray when it is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from strop.orchestration.connection import ControllerGone
from strop.orchestration.messages import StoredWeights, Updated, WeightUpdate
from strop.orchestration.process_registry import RegisteredWorker
from strop.orchestration.worker_process import (
    HEARTBEAT_SECONDS,
    LOOPBACK,
    WorkerSetup,
    last_words,
    run,
    standing_since,
    written,
)

LOGS = "logs"


@dataclasses.dataclass(frozen=True)
class Hello:
    """Who an actor is: its process, and Ray's name of its node."""

    worker: RegisteredWorker
    node: str


@dataclasses.dataclass(frozen=True)
class Collected:
    """The output of an actor: pickled messages in order, the time its loop has not come round; `ended`: no more."""

    bodies: tuple[bytes, ...]
    stalled: float
    ended: bool


class QueueConnection:
    """A `ControllerConnection` over two queues. Weights that come with a message stay in this process."""

    def __init__(self) -> None:
        self.address = LOOPBACK
        self._changed = threading.Condition()
        self._early: dict[int, tuple[bytes, Any]] = {}  # a threaded actor may be called out of order
        self._due = 0
        self._in: list[tuple[bytes, Any]] = []
        self._out: list[bytes] = []
        self._closed = self._ended = False
        self._came_round = time.monotonic()
        self._staged: int | None = None

    # ------------------------------------------------------------------ the entry's

    def send(self, message: object) -> None:
        """Queue a message."""
        if isinstance(message, Updated):
            self._unstage()
        self._leave(written(message))

    def receive(self, seconds: float) -> list[Any]:
        """The messages that are in; waits up to `seconds` for the first."""
        self.progress()
        with self._changed:
            self._changed.wait_for(lambda: self._in or self._closed, seconds)
            found, self._in = self._in, []
            if self._closed and not found:
                raise ControllerGone
        self.progress()
        return [self._read(body, weights) for body, weights in found]

    def progress(self) -> None:
        """The work goes on."""
        self._came_round = time.monotonic()

    def _read(self, body: bytes, weights: Any) -> Any:
        message = pickle.loads(body)
        if weights is None:
            return message
        assert isinstance(message, WeightUpdate) and isinstance(message.weights, StoredWeights)
        stored = dataclasses.replace(message.weights, path=self._stage(memoryview(weights)))
        return dataclasses.replace(message, weights=stored)

    def _stage(self, content: memoryview) -> str:
        """A file without a name, which ends with this process at the latest; its reader checks the digest."""
        self._unstage()
        self._staged = os.memfd_create("strop-weights")
        while content:
            content = content[os.write(self._staged, content) :]
        return f"/proc/self/fd/{self._staged}"

    def _unstage(self) -> None:
        if self._staged is not None:
            os.close(self._staged)
            self._staged = None

    # ------------------------------------------------------------------ the actor's

    def come(self, number: int, body: bytes, weights: Any) -> None:
        """Message `number` has come; it is received after those before it."""
        with self._changed:
            self._early[number] = body, weights
            while self._due in self._early:
                self._in.append(self._early.pop(self._due))
                self._due += 1
            self._changed.notify_all()

    def close(self) -> None:
        """The controller has closed the connection."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def end(self, last: bytes | None) -> None:
        """The entry has ended, with these words."""
        with self._changed:
            if last is not None:
                self._out.append(last)
            self._ended = True
            self._changed.notify_all()

    def collect(self) -> Collected:
        """The messages that the entry has sent since the last call; waits a heartbeat for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._out or self._ended, HEARTBEAT_SECONDS)
            found, self._out = self._out, []
            return Collected(tuple(found), standing_since(self._came_round), self._ended)

    def _leave(self, body: bytes) -> None:
        with self._changed:
            self._out.append(body)
            self._changed.notify_all()


class RayHost:
    """The actor. Its methods run concurrently with each other and with the entry.

    Args:
        content: the pickled `Setup` of the worker. Read in the entry's thread, so that what cannot be is said.
    """

    def __init__(self, content: bytes) -> None:
        self._connection = QueueConnection()
        threading.Thread(target=self._run, args=(content,), daemon=True, name="entry").start()

    def hello(self, role: str) -> Hello:
        """Who it is."""
        import ray

        return Hello(RegisteredWorker.of(role, os.getpid()), str(ray.get_runtime_context().get_node_id()))

    def deliver(self, number: int, body: bytes, weights: Any = None) -> None:
        """Message `number`, counted from 0, with the weights it speaks of where they lie on another node."""
        self._connection.come(number, body, weights)

    def collect(self) -> Collected:
        """The messages that the worker has sent since; at least once in a heartbeat."""
        return self._connection.collect()

    def dismiss(self) -> None:
        """The controller has closed the connection."""
        self._connection.close()

    def _run(self, content: bytes) -> None:
        last: bytes | None = None
        try:
            setup = pickle.loads(content)
            assert isinstance(setup, WorkerSetup)
            setup = _at_home(setup)
            self._connection.address = address_of_node()
            if setup.folder is not None:
                _write_to(setup.folder / LOGS / f"{setup.spec.role}.txt")
            run(self._connection, setup)
        except ControllerGone:
            pass  # the normal end
        except BaseException as error:  # whatever it is, the controller must hear of it
            traceback.print_exc()
            last = written(last_words(error))
        self._connection.end(last)


def address_of_node() -> str:
    """Where other nodes of the cluster reach this one; the loopback device's outside of a cluster."""
    import ray

    return str(ray.util.get_node_ip_address()) if ray.is_initialized() else LOOPBACK


def _at_home(setup: WorkerSetup) -> WorkerSetup:
    """The setup on this node: the run's folder only where it is seen, and this node's own import path besides."""
    folder = setup.folder if setup.folder is not None and setup.folder.is_dir() else None
    return dataclasses.replace(setup, path=tuple(dict.fromkeys([*setup.path, *sys.path])), folder=folder)


def _write_to(path: Path) -> None:
    """From now on what this process prints goes to the end of `path`."""
    with contextlib.suppress(OSError):  # then it stays with Ray's own logs
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
