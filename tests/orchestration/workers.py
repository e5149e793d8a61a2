"""Entries of workers for tests: what a worker may do well or badly, without a model."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from strop.base.types import StropError
from strop.orchestration.connection import Line
from strop.orchestration.worker_process import SocketLine


def echo(line: Line, settings: Any) -> None:
    """Send back what comes; some words do harm."""
    line.send(("settings", settings, os.environ.get("OMP_NUM_THREADS")))
    while True:
        for message in line.receive(1.0):
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
                    line.send((number, b"x" * 100_000))
                os.kill(os.getpid(), signal.SIGKILL)
            elif message == "surroundings":
                line.send((dict(os.environ), os.readlink("/proc/self/fd/0")))
            elif message == "leave":
                os.write(2, b"a line\n" + b"z" * 400)
                os._exit(3)
            elif message == "slowly":
                line.send("begun")
                time.sleep(0.3)
                line.send("done")
            elif message == "nonsense":
                assert isinstance(line, SocketLine)
                line._channel.send_all(b"???")
                while True:
                    line.send(b"x" * 10_000)
            else:
                line.send(message)
