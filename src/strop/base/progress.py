"""The last progress of a run. The parts of the loop report it; the watchdog and `strop status` read it.

    progress.made("a completion")
    progress.part("micro-batches", 3, 8)            # of something long, whose listener shows it

Each process has one record, as it has one run, so that it need not be passed around.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str, int, int], None]


class Progress:
    """The latest thing that was made, and the time. Assignments are atomic, so any thread may call `made`."""

    def __init__(self) -> None:
        self._latest = ("the start", time.monotonic())
        self._listener: Listener | None = None
        self.count = 0  # how often something was made

    def made(self, what: str) -> None:
        """Record that something was made: tokens, a completion, a verdict, an update, a line of output."""
        self._latest = (what, time.monotonic())
        self.count += 1

    def part(self, name: str, done: int, total: int) -> None:
        """Record that `done` of `total` parts of something long are made, and call the listener.

        The same number again counts as progress too, so call it only when something moves.
        """
        self.made(f"{name} {done} of {total}")
        if self._listener is not None:
            self._listener(name, done, total)

    @contextmanager
    def reporting_to(self, listener: Listener) -> Iterator[None]:
        """Inside, `listener` hears of parts, in the thread that makes them."""
        self._listener = listener
        try:
            yield
        finally:
            self._listener = None

    def excuse(self, seconds: float) -> None:
        """Do not count `seconds` in which the whole process was suspended."""
        what, at = self._latest
        self._latest = (what, min(at + seconds, time.monotonic()))

    @property
    def what(self) -> str:
        """The name of the last thing made."""
        return self._latest[0]

    @property
    def age(self) -> float:
        """Seconds since."""
        return time.monotonic() - self._latest[1]


CURRENT = Progress()
made, part = CURRENT.made, CURRENT.part
