"""Runs under way, wherever they are made: what is asked of them, and how far they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from strop.lab.ablation.processes import Steps

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
