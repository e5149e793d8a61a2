"""The last progress of a run. The parts of the loop report it; the watchdog and `strop status` read it.

    progress.made("a completion")
    progress.part("micro-batches", 3, 8)            # of something long, whose listener shows it

There is one record a process, as there is one run: code that makes something need not be handed it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str, int, int], None]


class Progress:
    """The latest thing that was made, and when. Assignments are atomic: any thread may call `made`."""

    def __init__(self) -> None:
        self._latest = ("the start", time.monotonic())
        self._listener: Listener | None = None
        self.count = 0  # how often something was made

    def made(self, what: str) -> None:
        """Something was made: tokens, a completion, a verdict, an update, a publication, a line of output."""
        self._latest = (what, time.monotonic())
        self.count += 1

    def part(self, name: str, done: int, total: int) -> None:
        """`done` of `total` parts of something long are made; listeners are called.

        The same number again counts as progress too: call it only where something moves.
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
        """Time that passed while the whole process stood still does not count."""
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


def made(what: str) -> None:
    """Tell the process's own record; see `Progress.made`."""
    CURRENT.made(what)


def part(name: str, done: int, total: int) -> None:
    """Tell the process's own record; see `Progress.part`."""
    CURRENT.part(name, done, total)
