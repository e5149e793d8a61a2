"""What tests watch: the notes of a view, a child of their own, and whether something comes to pass."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from strop.base.view import SilentView


class Notes(SilentView):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether it holds within the time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child; its process id."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def alive(pid: int) -> bool:
    """Whether this process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
