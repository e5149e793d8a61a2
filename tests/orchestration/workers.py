"""Entries of workers for tests: what a worker may do well or badly, without a model."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from strop.orchestration.link import Line
from strop.types import StropError


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
            else:
                line.send(message)
