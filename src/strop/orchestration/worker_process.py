"""A spawned worker's side: the program that a launcher of processes starts, and the connection to its controller.

It dies with its controller, however that one ends, and ignores Ctrl-C. SIGUSR1 makes it write the stacks of its threads
into `stacks/ROLE.txt` of the run's folder.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strop.base import progress
from strop.base.session import Code, accept, carried
from strop.base.types import StropError
from strop.engines.protocol import EngineLost
from strop.orchestration.connection import ControllerGone, WorkerSpec
from strop.orchestration.messages import Failed, Heartbeat
from strop.orchestration.process_registry import register_dump, stacks_path
from strop_verify.child_process import connect_to_parent, thread_environment
from strop_verify.framing import Channel

HEARTBEAT_SECONDS = 1.0
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class WorkerSetup:
    """The first message: what to run.

    Attributes:
        spec: the worker, its settings pickled: what they are made of may be the user's own code.
        path: the controller's import path.
        code: of the user's own, that the settings need.
        folder: of the run, where it is known.
    """

    spec: WorkerSpec
    path: tuple[str, ...]
    code: Code
    folder: Path | None


def setup_of(spec: WorkerSpec, folder: Path | None) -> WorkerSetup:
    """The first message to a worker.

    Raises:
        InputError: something of the script or notebook in the settings cannot be carried.
    """
    settings = written(spec.settings)
    code = carried(settings.decode("latin-1"))
    return WorkerSetup(replace(spec, settings=settings), tuple(sys.path), code, folder)


def written(message: object) -> bytes:
    """A message as it is sent: pickled. Both ends are processes of this run and of the same user."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


class SocketConnection:
    """A `ControllerConnection` over a stream socket. A heartbeat thread may send besides."""

    address = LOOPBACK

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel(end)
        self._sending = threading.Lock()
        self._came_round = time.monotonic()

    def send(self, message: object) -> None:
        """Send a message; waits while the controller does not read."""
        try:
            with self._sending:
                self._channel.send_all(written(message))
        except OSError as error:
            raise ControllerGone from error

    def receive(self, seconds: float) -> list[Any]:
        """The messages that are in; waits up to `seconds` for the first."""
        self.progress()
        deadline = time.monotonic() + seconds
        found: list[Any] = []
        while True:
            try:
                for body in self._channel.receive():
                    found.append(pickle.loads(body))
            except EOFError as error:
                if not found:
                    raise ControllerGone from error
            self.progress()
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            self._channel.wait(left)

    def first(self) -> Any:
        """The first message, however long it takes; what came with it is received later."""
        try:
            return pickle.loads(self._channel.next())
        except EOFError as error:
            raise ControllerGone from error

    def progress(self) -> None:
        """Count as progress."""
        self._came_round = time.monotonic()

    def beat(self) -> None:
        """Send a heartbeat."""
        self.send(Heartbeat(standing_since(self._came_round)))


def standing_since(came_round: float) -> float:
    """Seconds for which this worker's work has stood still: since its loop came round, at time `came_round`.

    What this process has made since (`progress.made`, such as a micro-batch of a long update) counts as well.
    """
    return min(time.monotonic() - came_round, progress.CURRENT.age)


def environment_of(spec: WorkerSpec) -> dict[str, str]:
    """A worker's environment variables besides the controller's."""
    return {**thread_environment(spec.threads), **spec.environment}


def find_entry(name: str) -> Callable[[Any, Any], None]:
    """The function that `module:function` names."""
    module, _, function = name.partition(":")
    found = vars(importlib.import_module(module))[function]
    assert callable(found)
    return found


def last_words(error: BaseException) -> Failed:
    """The message of a worker that an exception ends: a `StropError` would come again, any other may not.

    Nor may an `EngineLost`: another server may serve.
    """
    said = str(error) if isinstance(error, StropError) else f"{type(error).__name__}: {error}"
    comes_again = isinstance(error, StropError) and not isinstance(error, EngineLost)
    return Failed(said, comes_again)


def run(connection: Any, setup: WorkerSetup) -> None:
    """Run the worker to its end, with the controller's import path and the user's own code, and a file for its stacks.

    Raises:
        Exception: whatever the worker's entry raises.
    """
    sys.path[:] = setup.path
    accept(setup.code)
    if setup.folder is not None:
        register_dump(stacks_path(setup.folder, setup.spec.role))
    find_entry(setup.spec.entry)(connection, pickle.loads(setup.spec.settings))


def _beat_for_ever(connection: SocketConnection) -> None:
    with contextlib.suppress(ControllerGone):
        while True:
            connection.beat()
            time.sleep(HEARTBEAT_SECONDS)
    os._exit(1)  # whatever the main thread does: its results are no longer wanted


def main() -> None:
    """Run one worker to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = SocketConnection(connect_to_parent())
    status = 0
    try:
        setup = connection.first()
        threading.Thread(target=_beat_for_ever, args=(connection,), daemon=True, name="heartbeat").start()
        run(connection, setup)
    except ControllerGone:
        pass  # the normal end
    except Exception as error:  # whatever it is, the controller must hear of it
        status = 1
        traceback.print_exc()
        with contextlib.suppress(ControllerGone):
            connection.send(last_words(error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # no thread of a library may keep a worker that is done


if __name__ == "__main__":
    main()
