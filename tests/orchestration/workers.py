"""Entries of workers for tests: what a worker may do well or badly, without a model; and what is heard of them."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from strop.base.types import StropError
from strop.orchestration.processes import SocketConnection
from strop.orchestration.workers import ControllerConnection, WorkerHandle, WorkerLauncher


def hear(launcher: WorkerLauncher, handle: WorkerHandle) -> list[Any]:
    """The next messages; none where the worker has died instead."""
    deadline = time.monotonic() + 60.0
    while not (found := handle.receive()) and handle.death is None:
        assert time.monotonic() < deadline, "nothing was heard of the worker"
        launcher.wait([handle], 1.0)
    return found


def echo(connection: ControllerConnection, settings: Any) -> None:
    """Send back what comes; some words do harm."""
    connection.send(("settings", settings, os.environ.get("OMP_NUM_THREADS")))
    while True:
        for message in connection.receive(1.0):
            if message == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif message == "refuse":
                raise StropError("this can never work")
            elif message == "crash":
                raise ZeroDivisionError("once")
            elif message == "hang":
                time.sleep(3600)
            elif message == "many":
                for number in range(50):
                    connection.send((number, b"x" * 100_000))
                os.kill(os.getpid(), signal.SIGKILL)
            elif message == "surroundings":
                connection.send((dict(os.environ), os.readlink("/proc/self/fd/0")))
            elif message == "leave":
                os.write(2, b"a line\n" + b"z" * 400)
                os._exit(3)
            elif message == "slowly":
                connection.send("begun")
                time.sleep(0.3)
                connection.send("done")
            elif message == "nonsense":
                assert isinstance(connection, SocketConnection)
                connection._channel.send_all(b"???")
                while True:
                    connection.send(b"x" * 10_000)
            else:
                connection.send(message)
