"""The executor of one process: an engine next to the trainer, stepped by the loop itself.

With max_lag > 0 generation and training still take turns, so nothing is gained in time; what is trained on is as stale
as on a cluster: completions are in flight while weights change, and each token carries the version that sampled it.
"""

from __future__ import annotations

import time
from pathlib import Path

from strop.base import progress
from strop.base.interrupt import breakable
from strop.base.types import IntArray
from strop.engines.protocol import Engine, KvMode, OpenRequests, Request
from strop.model.policy import Policy
from strop.orchestration.executor import Event, Publication

_STEPS_PER_POLL = 16


class InProcess:
    """Publication is nearly free where the engine computes with the very tensors the optimizer changes."""

    def __init__(self, engine: Engine, policy: Policy, kv: KvMode = "keep") -> None:
        self.engine = engine
        self._policy = policy
        self._kv: KvMode = kv
        self._open = OpenRequests()

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not yet reported."""
        return self.engine.unfinished

    def start(self, folder: Path) -> None:
        """Nothing to start."""

    def submit(self, request: Request, ticket: int, attempt: int = 0) -> None:
        """Queue a request with the engine."""
        self.engine.submit(request)
        self._open.begin(request)

    def cancel(self, request_id: str) -> None:
        """Let the engine forget a request, where it still has it."""
        if request_id in self._open:
            self.engine.cancel(request_id)

    def poll(self, patience: float) -> list[Event]:
        """Sample a few tokens for every running sequence; the completions that finished."""
        found: list[Event] = []
        for _ in range(_STEPS_PER_POLL):
            if not self.engine.unfinished:
                break
            with breakable():  # of a large model on a CPU one step takes seconds
                completions = self.engine.step()
            self._open.reported(completions)
            found += completions
            progress.made("tokens")
        return found

    def publish(self, version: int, probe: IntArray) -> Publication:
        """Give the engine the policy's parameters; where it shares them only their version is new."""
        begin = time.perf_counter()
        self.engine.update_weights(self._policy.weights().items(), version, self._kv)
        return Publication(version, time.perf_counter() - begin, {0: self.engine.verify_weights(probe)})

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()
