"""Handling of Ctrl-C: the first asks for a clean end, the second ends at once.

    with on_interrupt(ask):                 # around a run
        with breakable():                   # around long work that may be discarded: a rollout, a backward pass
            ...
            hold()                          # from here on it may not: parameters will change
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ONCE = signal.SIGHUP  # of a terminal that is closed, which the kernel and the shell both send


class Stopped(BaseException):
    """Raised out of a `breakable` block by the first signal; no `Exception`, which a user's code might catch."""


class _Asked:
    """Whether a signal came, and whether the main thread is in a block that may be left at once."""

    def __init__(self) -> None:
        self.stop = False
        self.breakable = False


_ASKED = _Asked()


@contextmanager
def on_interrupt(ask: Callable[[], None]) -> Iterator[None]:
    """Inside, the first SIGINT, SIGTERM or SIGHUP calls `ask`; a further SIGINT or SIGTERM raises `KeyboardInterrupt`.

    A signal that the process ignores, as SIGHUP under `nohup`, stays ignored. Only the main thread receives
    signals; elsewhere nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if _ASKED.stop:
            if number != ONCE:
                raise KeyboardInterrupt
            return
        _ASKED.stop = True
        ask()
        if _ASKED.breakable:
            raise Stopped

    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _ASKED.stop = False


@contextmanager
def breakable() -> Iterator[None]:
    """A block that the first signal leaves at once by `Stopped`, also one that came before it.

    A signal is met between two operations of Python: within an operation of torch it waits until that is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _ASKED.stop:
        raise Stopped
    _ASKED.breakable = True
    try:
        yield
    finally:
        _ASKED.breakable = False


def hold() -> None:
    """Finish the rest of the `breakable` block: it changes state that the run keeps."""
    if threading.current_thread() is threading.main_thread():
        _ASKED.breakable = False
