"""The protocol between an ablation's scheduler and a runner: start a job, poll it, ask it to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

Outcome = Literal["finished", "failed", "stopped", "lost"]


class RunJob(NamedTuple):
    """A run to make: its name, its folder, its configuration as plain data, and where what it says is written."""

    label: str
    folder: Path
    config: Mapping[str, Any]
    log: Path
    imports: Sequence[str] = ()


class Ended(NamedTuple):
    """How a job ended.

    Attributes:
        outcome: `stopped`: it was asked to, and can go on; `lost`: what it ran on is gone, it can go on elsewhere.
        error: one line; None where all went well.
    """

    outcome: Outcome
    error: str | None = None


class Running(Protocol):
    """A job under way."""

    def poll(self) -> Ended | None:
        """How it ended; None while it runs, or waits for room to run.

        Raises:
            StropError: it can never run here.
        """
        ...

    def stop(self) -> None:
        """Ask it to save its last finished step and end; may be called again."""
        ...

    def close(self) -> None:
        """End it at once where it still runs, and let go of what it holds."""
        ...


class Runner(Protocol):
    """Starts runs."""

    def start(self, job: RunJob, slot: int) -> Running:
        """Begin a job, in place `slot` of those side by side (from 0), and return without waiting for it."""
        ...

    def close(self) -> None:
        """Let go of the runner; its jobs are closed before."""
        ...
