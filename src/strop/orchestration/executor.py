"""The protocol `Executor`, by which the loop generates, and the executor of one process.

`fleet.Fleet` is the executor of worker processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from strop.base.interrupt import breakable
from strop.base.types import Completion, FloatArray, IntArray, StropError
from strop.engines.protocol import Engine, KvMode, Request

if TYPE_CHECKING:
    from strop.model.policy import Policy
    from strop.orchestration.weight_store import Publish


# Nats a token, mean. Of Gemma 3 270M bfloat16 is 0.05 to 0.20 from float32 over 24 probes, and 0.41 and more where one
# matrix of a layer is missing.
PROBE_TOLERANCE = 0.3  # at the first publication
QUANTISED_TOLERANCE = 0.5  # likewise, where generators quantise the weights
LEAST_TOLERANCE = 0.05  # after it, however small the gap was then
_TIMES_THE_FIRST = 5.0  # from probe to probe the gap of bfloat16 differs by up to 3.7 times
_FEW = 8  # sampled tokens: rounding may move a single one by more than a nat


class WeightMismatch(StropError):
    """After a publication a generator does not compute what the trainer computes."""


@dataclass(frozen=True, eq=False)
class Probe:
    """Tokens whose log-probs show whether a generator has the trainer's weights.

    Attributes:
        token_ids: [L], L > 1.
        sampled: how many of them, at the end, a generator drew.
        expected: [L - 1], the trainer's log-probs.
    """

    token_ids: IntArray
    sampled: int
    expected: FloatArray

    def gap(self, found: FloatArray) -> float:
        """Mean difference in nats a token: of the prompt's tokens or of the sampled ones, whichever is larger.

        Fewer than `_FEW` sampled tokens are taken for as many.
        """
        apart, drawn = np.abs(found - self.expected), len(found) - self.sampled
        prompt = apart[:drawn].mean() if drawn else 0.0
        return float(max(prompt, apart[drawn:].sum() / max(self.sampled, _FEW)))


class ProbeCheck:
    """Holds generators against the trainer: at the first publication to a fixed bound, then to five times that gap.

    How far they are apart with the same weights depends on the model and the engine (types, kernels, experts), so the
    gap of the first publication is what later ones are measured by. Where the weights are `quantised`, `note` receives
    that bound.
    """

    def __init__(self, quantised: bool = False, note: Callable[[str], None] = lambda line: None) -> None:
        self._quantised, self._note = quantised, note
        self._first: int | None = None
        self._gap = 0.0  # the largest of the first version

    @property
    def bound(self) -> float:
        """Nats a token that a generator may differ by after the first publication."""
        return max(LEAST_TOLERANCE, _TIMES_THE_FIRST * self._gap)

    def __call__(self, generator: int, version: int, probe: Probe, found: FloatArray) -> None:
        """Check a generator's log-probs [L - 1] of the probe under `version`.

        Raises:
            WeightMismatch: they are too far from the trainer's.
        """
        gap = probe.gap(found)
        first = self._first in (None, version)
        bound = (QUANTISED_TOLERANCE if self._quantised else PROBE_TOLERANCE) if first else self.bound
        if not gap <= bound:
            raise WeightMismatch(
                f"generator {generator} differs from the trainer by {gap:.3g} nats a token with version {version}, and "
                f"{bound:.3g} are allowed; its weights are not the trainer's"
            )
        if first:
            self._first, self._gap = version, max(self._gap, gap)
            if self._quantised:
                self._note(
                    f"generator {generator} quantises: it differs from the trainer by {gap:.3g} nats a token; from now "
                    f"on more than {self.bound:.3g} ends the run"
                )


@dataclass(frozen=True)
class Lost:
    """A request whose generator died before all completions arrived; it must be submitted again."""

    request_id: str
    reason: str


Event: TypeAlias = Completion | Lost


@dataclass(frozen=True)
class Publication:
    """Weights on their way to every generator.

    Attributes:
        seconds: for how long the trainer was held.
        idle: share of the time since the publication before in which generators had nothing to do; None where they
            take turns with the trainer, so that there is no such time.
    """

    version: int
    seconds: float
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
        """Queue a request. Its generator depends only on the ticket and the attempt of its group.

        No token of it is drawn with weights older than those published last.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """Cancel a request. Its running samples may be reported as aborted; an unknown id is ignored."""
        ...

    def poll(self, patience: float) -> list[Event]:
        """The events since the last call; waits up to `patience` seconds if there are none.

        Raises:
            StropError: the generators cannot go on.
            WeightMismatch: a generator has other weights than the trainer published.
        """
        ...

    def publish(self, version: int, probe: Probe, source: Publish | None = None) -> Publication:
        """Store the trainer's current parameters as `version`; each generator takes them when it can, all or nothing.

        The first publication returns once all generators have them.

        Args:
            version: greater than the one before.
            probe: what every generator computes under the new weights, before anything that it draws with them is
                reported.
            source: writes the weights, where they are not those that the trainer has now. An executor of the trainer's
                own process ignores it.

        Raises:
            StropError: there is no room for them, or the generators cannot go on.
            WeightMismatch: as in `poll`.
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

    def __init__(self, engine: Engine, policy: Policy, check: ProbeCheck, kv: KvMode = "keep") -> None:
        self.engine = engine
        self._policy = policy
        self._check = check
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

    def publish(self, version: int, probe: Probe, source: Publish | None = None) -> Publication:
        """Give the engine the policy's parameters; where it shares them only their version is new."""
        begin = time.perf_counter()
        self.engine.update_weights(self._policy.weights().items(), version, self._kv)
        self._check(0, version, probe, self.engine.verify_weights(probe.token_ids))
        return Publication(version, time.perf_counter() - begin)

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()
