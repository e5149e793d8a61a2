"""What this process is doing, and how far it is: for the heartbeat, the live view, the watchdog and `strop status`.

    progress.made("a completion")
    progress.part("micro-batches", 3, 8)                     # of something long
    with progress.doing("loading the model"):
        ...
    with progress.heartbeat():                               # around a whole command: it is never silent for long
        ...

Each process has one record, as it has one run, so that it need not be passed around.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from strop.base.text import duration

SILENCE = 10.0  # seconds without output that a command never exceeds
_KNOWN_FROM = 0.1  # the share of something long from which its pace is known


class PartlyDone(NamedTuple):
    """`done` of `total` parts of something long, `first` of which were done when it began to be counted.

    With `at_most`, it may end before the total.
    """

    name: str
    done: int
    total: int
    at_most: bool
    first: int
    began: float

    @property
    def text(self) -> str:
        """Name and numbers, such as `micro-batches 3/8`."""
        return f"{self.name} {self.done:,}{' of at most ' if self.at_most else '/'}{self.total:,}"

    @property
    def left(self) -> float | None:
        """Seconds left at the pace so far; None as long as too few are done."""
        done, age = self.done - self.first, time.monotonic() - self.began
        if done <= 0 or (done < _KNOWN_FROM * (self.total - self.first) and not self.at_most):
            return None
        return (self.total - self.done) * age / done


class Progress:
    """The latest thing that was made, what is being done, and the last output.

    Every attribute is replaced as a whole, so any thread may write and read.
    """

    def __init__(self) -> None:
        now = time.monotonic()
        self._latest = ("the start", now)
        self._doing: tuple[str, float] | None = None
        self._parts: dict[str, PartlyDone] = {}
        self._shown = now
        self.count = 0  # how often something was made
        self.show: Callable[[str], None] = to_stderr  # what the heartbeat calls

    def made(self, what: str) -> None:
        """Record that something was made: tokens, a completion, a verdict, an update, a line of output."""
        self._latest = (what, time.monotonic())
        self.count += 1

    def part(self, name: str, done: int, total: int, at_most: bool = False) -> None:
        """Record that `done` of `total` parts of something long are made; the last one ends it.

        The same number again counts as progress too, so call it only when something moves.
        """
        self.made(f"{name} {done} of {total}")
        before = self._parts.get(name)
        if before is None or before.done > done:
            before = PartlyDone(name, done, total, at_most, done, time.monotonic())
        parts = self._parts | {name: before._replace(done=done, total=total)}
        self._parts = {other: part for other, part in parts.items() if other != name or done < total}

    @property
    def parts(self) -> tuple[PartlyDone, ...]:
        """What is partly done; the latest to begin is the last."""
        return tuple(self._parts.values())

    def over(self) -> None:
        """Forget what is partly done: something else begins."""
        self._parts = {}

    @contextmanager
    def doing(self, name: str) -> Iterator[None]:
        """Inside, the process is doing this, such as `loading the model`; the parts are its own."""
        before = self._doing, self._parts
        self.made(f"the start of {name}")
        self._doing, self._parts = (name, time.monotonic()), {}
        try:
            yield
        finally:
            self._doing, self._parts = before

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

    # ------------------------------------------------------------------ for people

    @property
    def text(self) -> str:
        """What is being done, how far it is, for how long and what is left, in a few words; empty if not known."""
        doing, parts = self._doing, self.parts
        if doing is None and not parts:
            return ""
        named = [] if doing is None else [doing[0]]
        began = min([part.began for part in parts] if doing is None else [doing[1]])
        said = f"{', '.join([*named, *(part.text for part in parts)])} for {duration(time.monotonic() - began)}"
        left = [(part.left, part.at_most) for part in parts if part.left is not None]
        return f"{said}, {'at most ' * left[-1][1]}{duration(left[-1][0])} left" if left else said

    def shown(self) -> None:
        """Record that there was output."""
        self._shown = time.monotonic()

    @property
    def silence(self) -> float:
        """Seconds since there was output."""
        return time.monotonic() - self._shown

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Inside, the heartbeat shows nothing: something else draws, or the command waits for requests."""
        before, self.show = self.show, lambda text: None
        try:
            yield
        finally:
            self.show = before
            self.shown()


def to_stderr(text: str) -> None:
    """Print to standard error, where no view shows progress."""
    with contextlib.suppress(OSError, ValueError):  # it may be closed
        print(f"strop: {text}", file=sys.stderr, flush=True)


CURRENT = Progress()
made, part, doing = CURRENT.made, CURRENT.part, CURRENT.doing


@contextmanager
def heartbeat() -> Iterator[None]:
    """Inside, a thread shows what is being done whenever there was no output for most of `SILENCE` seconds."""
    done, progress = threading.Event(), CURRENT
    patience = 0.6 * SILENCE  # the thread may come late: to read a tokenizer's JSON holds the interpreter for seconds
    progress.shown()

    def beat() -> None:
        while not done.wait(max(patience - progress.silence, patience / 100)):
            if progress.silence >= patience:
                said = "still at work" if progress.count else "starting"
                progress.show(progress.text or f"{said}, nothing new for {duration(progress.age)}")
                progress.shown()

    thread = threading.Thread(target=beat, name="strop-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
