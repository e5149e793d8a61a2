"""The executor of one process: an engine beside the trainer, stepped by the loop itself.

With max_lag > 0 generation and training still take turns, so nothing is gained in time; what is trained on is as stale
as on a cluster: completions are in flight while weights change, and each token carries the version that sampled it.
"""

from __future__ import annotations

import time

from strop.engines.base import Engine, Request
from strop.orchestration.executor import Lost, Publication
from strop.policy import Policy
from strop.types import Completion, FloatArray, IntArray

_STEPS_PER_POLL = 16


class InProcess:
    """Publication is nearly free where the engine computes with the very tensors the optimizer changes."""

    def __init__(self, engine: Engine, policy: Policy) -> None:
        self.engine = engine
        self._policy = policy

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not yet reported."""
        return self.engine.unfinished

    def submit(self, request: Request) -> None:
        """Queue a request with the engine."""
        self.engine.submit(request)

    def poll(self) -> list[Completion | Lost]:
        """Sample a few tokens for every running sequence; the completions that finished."""
        found: list[Completion | Lost] = []
        for _ in range(_STEPS_PER_POLL):
            if not self.engine.unfinished:
                break
            found += self.engine.step()
        return found

    def publish(self, version: int) -> Publication:
        """Give the engine the policy's parameters; where it shares them only their version is new."""
        begin = time.perf_counter()
        self.engine.update_weights(self._policy.weights().items(), version)
        return Publication(version, time.perf_counter() - begin)

    def probe(self, token_ids: IntArray) -> list[FloatArray]:
        """The engine's log-probs of a probe."""
        return [self.engine.verify_weights(token_ids)]

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()
