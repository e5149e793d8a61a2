"""Executors: where requests are generated. The loop submits, polls and publishes; it knows no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from strop.engines.base import Request
from strop.types import Completion, FloatArray, IntArray


@dataclass(frozen=True)
class Lost:
    """A request whose generator died before all of its completions were in; it must be submitted again."""

    request_id: str
    reason: str


@dataclass(frozen=True)
class Publication:
    """Weights handed to every generator: how long it took, in seconds."""

    version: int
    seconds: float


class Executor(Protocol):
    """Runs generators. Every completion of a request is reported once, by `poll`."""

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not yet reported."""
        ...

    def submit(self, request: Request) -> None:
        """Queue a request with some generator."""
        ...

    def poll(self) -> list[Completion | Lost]:
        """What finished since the last call; waits a moment where nothing did."""
        ...

    def publish(self, version: int) -> Publication:
        """Bring the trainer's current parameters to every generator as `version`."""
        ...

    def probe(self, token_ids: IntArray) -> list[FloatArray]:
        """Each generator's log-probs [L - 1] of `token_ids` [L], to be held against the trainer's."""
        ...

    def close(self) -> None:
        """End every generator."""
        ...
