"""What of a run moved last. The parts of the loop say it; the watchdog and `strop status` ask.

    progress.made("a completion")

There is one record a process, as there is one run: whoever makes something need not be handed it.
"""

from __future__ import annotations

import time


class Progress:
    """The latest thing that was made, and when. Assignments are atomic: any thread may call `made`."""

    def __init__(self) -> None:
        self._latest = ("the start", time.monotonic())

    def made(self, what: str) -> None:
        """Something was made: tokens, a completion, a verdict, an update, a publication, a line of output."""
        self._latest = (what, time.monotonic())

    def excuse(self, seconds: float) -> None:
        """Time that passed while the whole process stood still does not count."""
        what, at = self._latest
        self._latest = (what, min(at + seconds, time.monotonic()))

    @property
    def what(self) -> str:
        """What was made last."""
        return self._latest[0]

    @property
    def age(self) -> float:
        """Seconds since."""
        return time.monotonic() - self._latest[1]


CURRENT = Progress()


def made(what: str) -> None:
    """Tell the process's own record; see `Progress.made`."""
    CURRENT.made(what)
