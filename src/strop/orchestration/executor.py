"""The protocol of executors, which generate completions. The loop submits, polls, cancels and publishes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from strop.base.types import Completion, FloatArray, IntArray
from strop.engines.protocol import Request

PROBE_TOLERANCE = 0.1  # nats a token, mean; bfloat16 against float32 stays well below, stale weights do not


@dataclass(frozen=True)
class Lost:
    """A request whose generator died before all of its completions were in; it must be submitted again."""

    request_id: str
    reason: str


@dataclass(frozen=True)
class Quarantined:
    """A request that killed several generators; it must not be submitted again."""

    request_id: str
    reason: str


Event: TypeAlias = Completion | Lost | Quarantined


@dataclass(frozen=True)
class Publication:
    """Weights handed to every generator.

    Attributes:
        seconds: how long it took.
        probed: log-probs [L - 1] of the probe by generator, to be compared with the trainer's.
        idle: share of the time since the publication before in which generators had nothing to do; None where they
            take turns with the trainer, so that there is no such time.
    """

    version: int
    seconds: float
    probed: Mapping[int, FloatArray]
    idle: float | None = None


class Executor(Protocol):
    """Runs generators. Every completion of a request is reported once, by `poll`."""

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not yet reported."""
        ...

    def start(self, folder: Path) -> None:
        """Start for the run in `folder`. Generators serve after the first `publish`."""
        ...

    def submit(self, request: Request, ticket: int, attempt: int = 0) -> None:
        """Queue a request with the generator that follows from its group's ticket and attempt, and nothing else."""
        ...

    def cancel(self, request_id: str) -> None:
        """Give a request up. Its running samples may be reported as aborted; an unknown id is ignored."""
        ...

    def poll(self, patience: float) -> list[Event]:
        """The events since the last call; may wait up to `patience` seconds where there are none.

        Raises:
            StropError: the generators cannot go on.
        """
        ...

    def publish(self, version: int, probe: IntArray) -> Publication:
        """Bring the trainer's current parameters to every generator as `version`, commit or nothing.

        Args:
            probe: tokens [L], L > 1, whose log-probs every generator computes under the new weights.

        Raises:
            StropError: there is no room for them, or the generators cannot go on.
        """
        ...

    def close(self) -> None:
        """End every generator; may be called twice."""
        ...
