"""Runs under way, wherever they are made: what is asked of them, and how far they are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

Outcome = Literal["finished", "failed", "stopped", "lost", "unplaced"]


class Job(NamedTuple):
    """A run to make: its name, its folder, its configuration as plain data, and where what it says is written."""

    label: str
    folder: Path
    config: Mapping[str, Any]
    log: Path
    imports: Sequence[str] = ()


class Ended(NamedTuple):
    """How a run ended.

    Attributes:
        outcome: `stopped`: it was asked to, and can go on; `lost`: what it ran on is gone, it can go on elsewhere;
            `unplaced`: it was not begun, for there is no room for it now.
        error: one line; None where all went well.
    """

    outcome: Outcome
    error: str | None
    seconds: float


class Steps:
    """Follows the metrics.jsonl of a run as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.step = 0
        self.pass_rate: float | None = None

    def look(self) -> bool:
        """Read what is new; whether a step was done since."""
        before = self.step
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = self.step = 0  # a resumed run has cut off what came after its checkpoint
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return False
        whole = text[: text.rfind(b"\n") + 1]
        try:
            rows = [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            # Cut off and written beyond where we had read, so that we begin in the middle of a line: read all again.
            self._offset = self.step = 0
            return False
        self._offset += len(whole)
        for row in rows:
            self.step = max(self.step, int(row["step"]))  # an evaluation beside training comes late
            self.pass_rate = row.get("evaluation/pass_rate", self.pass_rate)
        return self.step != before


class Running(Protocol):
    """A run under way."""

    steps: Steps
    log: Path

    def poll(self) -> Ended | None:
        """How it ended; None while it runs."""
        ...

    def ask(self) -> None:
        """Ask it to save its last finished step and end; may be called again."""
        ...

    def close(self) -> None:
        """End it at once where it still runs, and let go of what it holds."""
        ...


class Place(Protocol):
    """Where runs are made."""

    def start(self, job: Job, slot: int) -> Running:
        """Begin a run, in place `slot` of those side by side (from 0), and return without waiting for it."""
        ...

    def close(self) -> None:
        """Let go of the place; its runs are closed before."""
        ...
