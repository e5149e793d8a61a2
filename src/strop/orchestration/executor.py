"""The protocol `Executor`, by which the loop generates, and the executor of one process.

`fleet.Fleet` is the executor of worker processes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from strop.base.interrupt import breakable
from strop.base.types import Completion, FloatArray, IntArray
from strop.engines.protocol import Engine, KvMode, Request

if TYPE_CHECKING:
    from strop.model.policy import Policy


PROBE_TOLERANCE = 0.1  # nats a token, mean; bfloat16 against float32 stays well below, stale weights do not


@dataclass(frozen=True)
class Lost:
    """A request whose generator died before all completions arrived; it must be submitted again."""

    request_id: str
    reason: str


Event: TypeAlias = Completion | Lost


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
        """Queue a request. Its generator depends only on the ticket and the attempt of its group."""
        ...

    def cancel(self, request_id: str) -> None:
        """Cancel a request. Its running samples may be reported as aborted; an unknown id is ignored."""
        ...

    def poll(self, patience: float) -> list[Event]:
        """The events since the last call; waits up to `patience` seconds if there are none.

        Raises:
            StropError: the generators cannot go on.
        """
        ...

    def publish(self, version: int, probe: IntArray) -> Publication:
        """Bring the trainer's current parameters to every generator as `version`, all or nothing.

        Args:
            probe: tokens [L], L > 1, whose log-probs every generator computes under the new weights.

        Raises:
            StropError: there is no room for them, or the generators cannot go on.
        """
        ...

    def close(self) -> None:
        """End every generator; may be called twice."""
        ...


_STEPS_PER_POLL = 16


class InProcess:
    """The executor of one process: an engine next to the trainer, stepped by the loop itself.

    With max_lag > 0 generation and training still take turns, so no time is gained; what is trained on is as stale as
    on a cluster: completions are in flight while weights change, and each token carries the version that sampled it.
    Publication is nearly free where the engine computes with the very tensors the optimizer changes.
    """

    def __init__(self, engine: Engine, policy: Policy, kv: KvMode = "keep") -> None:
        self.engine = engine
        self._policy = policy
        self._kv: KvMode = kv

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not yet reported."""
        return self.engine.unfinished

    def start(self, folder: Path) -> None:
        """Nothing to start."""

    def submit(self, request: Request, ticket: int, attempt: int = 0) -> None:
        """Queue a request with the engine."""
        self.engine.submit(request)

    def cancel(self, request_id: str) -> None:
        """Cancel a request, if the engine still has it."""
        self.engine.cancel(request_id)

    def poll(self, patience: float) -> list[Event]:
        """Sample a few tokens for every running sequence; the completions that finished."""
        found: list[Event] = []
        for _ in range(_STEPS_PER_POLL):
            if not self.engine.unfinished:
                break
            with breakable():  # of a large model on a CPU one step takes seconds
                completions = self.engine.step()
            found += completions
        return found

    def publish(self, version: int, probe: IntArray) -> Publication:
        """Give the engine the policy's parameters; where it shares them only their version is new."""
        begin = time.perf_counter()
        self.engine.update_weights(self._policy.weights().items(), version, self._kv)
        return Publication(version, time.perf_counter() - begin, {0: self.engine.verify_weights(probe)})

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()
