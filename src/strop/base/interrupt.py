"""Ctrl-C that loses nothing: the first asks for a clean end, the second ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_interrupt(ask: Callable[[], None]) -> Iterator[None]:
    """Inside, the first SIGINT or SIGTERM calls `ask`; a further one raises `KeyboardInterrupt`.

    Outside the main thread, which alone receives signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        ask()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
