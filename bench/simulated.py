"""A generator and a learner that only wait: what orchestration costs, with nothing computed.

The engine's tokens follow from the request's seed and from the weights, so that a run is what it is: a wrong version, a
group lost or trained twice, or half-loaded weights change every number after it. One engine step sleeps for one token,
however many sequences run, as the decoding of a large model is bound by memory. Nothing here imports torch before the
trainer's side is asked for, so that a worker starts in a moment.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from strop.base.types import Completion, FinishReason, FloatArray, Group, InputError, IntArray, VersionSpan
from strop.engines.protocol import Capabilities, Health, KvMode, Request, WeightSource
from strop.orchestration.fleet import serve
from strop.orchestration.messages import StoredWeights
from strop.orchestration.workers import ControllerConnection

TENSORS = 100


@dataclass(frozen=True)
class Simulation:
    """What a simulated generator is like.

    Attributes:
        slots: sequences that run at once.
        token_seconds: of one engine step.
        tokens: of a usual completion.
        straggler_share, straggler_factor: how many completions are how much longer.
    """

    slots: int = 16
    token_seconds: float = 0.0
    tokens: int = 5
    straggler_share: float = 0.0
    straggler_factor: int = 30

    def length(self, seed: int, index: int) -> int:
        """Tokens of sample `index` of a request: they follow from its seed."""
        straggles = _number(seed, index, "straggles") / 2**32 < self.straggler_share
        return self.tokens * (self.straggler_factor if straggles else 1)


def _number(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "big")


def sampled_token(seed: int, index: int, place: int, weight: float) -> int:
    """The token at `place` of sample `index` of a request with this seed, under a weight."""
    return _number(seed, index, place, weight) % 250


@dataclass
class _Running:
    request: Request
    index: int
    length: int
    token_ids: list[int]
    versions: list[int]


class SimulatedEngine:
    """An `Engine` whose weights are one number in a hundred tensors."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.value = float("nan")
        self._version = -1
        self._waiting: deque[_Running] = deque()
        self._running: list[_Running] = []
        self._aborted: list[Completion] = []
        self._next = time.perf_counter()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(max_tokens=1 << 20)

    @property
    def weight_version(self) -> int:
        return self._version

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + len(self._running) + len(self._aborted)

    def submit(self, request: Request) -> None:
        if self._version < 0:
            raise InputError(f"request {request.id}: there are no weights yet")
        for index in range(request.n):
            length = min(self.simulation.length(request.seed, index), request.sampling.max_new_tokens)
            self._waiting.append(_Running(request, index, length, [], []))

    def step(self) -> list[Completion]:
        self._sleep()
        while self._waiting and len(self._running) < self.simulation.slots:
            self._running.append(self._waiting.popleft())
        for sequence in self._running:
            place = len(sequence.token_ids)
            sequence.token_ids.append(sampled_token(sequence.request.seed, sequence.index, place, self.value))
            sequence.versions.append(self._version)
        done = [s for s in self._running if len(s.token_ids) == s.length]
        self._running = [s for s in self._running if len(s.token_ids) < s.length]
        found, self._aborted = [*self._aborted, *(_completion(s, "stop") for s in done)], []
        return found

    def _sleep(self) -> None:
        """Until a token's time after the step before; what an overslept step took too long the next makes up for."""
        now = time.perf_counter()
        self._next = max(self._next, now - 5 * self.simulation.token_seconds) + self.simulation.token_seconds
        if self._next > now:
            time.sleep(self._next - now)

    def cancel(self, request_id: str) -> None:
        for queue in (self._running, self._waiting):
            for sequence in [s for s in queue if s.request.id == request_id]:
                queue.remove(sequence)
                self._aborted.append(_completion(sequence, "abort"))

    def update_weights(self, source: WeightSource, version: int, kv: KvMode = "keep") -> None:
        given: dict[str, Any] = dict(source)
        values = {float(value) for tensor in given.values() for value in tensor}
        if len(given) != TENSORS or len(values) != 1:
            raise InputError(f"weights of version {version} are mixed: {len(given)} tensors with values {values}")
        self.value, self._version = values.pop(), version

    def verify_weights(self, probe_ids: IntArray) -> FloatArray:
        return np.full(len(probe_ids) - 1, -self.value, np.float32)

    def health(self) -> Health:
        return Health(True, "ok", len(self._running), len(self._waiting))

    def close(self) -> None:
        self._running.clear()
        self._waiting.clear()


def _completion(sequence: _Running, reason: FinishReason) -> Completion:
    spans: list[VersionSpan] = []
    for place, version in enumerate(sequence.versions):
        if spans and spans[-1].version == version:
            spans[-1] = VersionSpan(version, spans[-1].start, place + 1)
        else:
            spans.append(VersionSpan(version, place, place + 1))
    length = len(sequence.token_ids)
    return Completion(
        request_id=sequence.request.id,
        index=sequence.index,
        prompt_ids=sequence.request.prompt_ids,
        token_ids=np.array(sequence.token_ids, np.int32),
        logprobs=np.full(length, -1.0, np.float32),
        versions=tuple(spans),
        injected=np.zeros(length, np.bool_),
        text=" ".join(map(str, sequence.token_ids[:8])),  # what is said of texts would only cost time
        finish_reason=reason,
    )


def load(stored: StoredWeights) -> Any:
    """The arrays of a stored version by name, without torch (the simulated engine needs none) and without a hash."""
    from safetensors.numpy import load_file

    return dict(load_file(stored.path))


def main(line: ControllerConnection, settings: Simulation) -> None:
    """The entry of a simulated generator."""
    serve(line, SimulatedEngine(settings), load)


class SimulatedLearner:
    """Its one weight changes with everything it is given; `trained` and `curve` say what that was."""

    def __init__(self, token_seconds: float = 0.0) -> None:
        self.token_seconds = token_seconds
        self.value = 1.0
        self.trained: list[int] = []
        self.curve: list[float] = []
        self.before: Callable[[int], None] = lambda step: None

    def probe(self, token_ids: IntArray) -> FloatArray:
        """What every token's log-prob is under the present weight."""
        return np.full(len(token_ids) - 1, -self.value, np.float32)

    def enter(self, config: Any, updates: int) -> None:
        pass

    def learn(self, groups: Sequence[Group], survivors: Collection[int], step: int, states: Mapping[str, Any]) -> Any:
        from strop.training.samples import TrainResult, make_candidates

        self.before(step + 1)
        begin = time.perf_counter()
        candidates = make_candidates(groups, survivors, "none")
        digest = hashlib.blake2b(str(step).encode(), digest_size=4)
        tokens = 0
        for group in groups:
            self.trained.append(group.ticket)
            for rollout in group.rollouts:
                digest.update(rollout.completion.token_ids.tobytes())
                tokens += len(rollout.completion.token_ids)
        self.value = 1.0 + int.from_bytes(digest.digest(), "big") / 2**32 + 100 * (step + 1)
        self.value = float(np.float32(self.value))
        self.curve.append(self.value)
        time.sleep(max(begin + tokens * self.token_seconds - time.perf_counter(), 0.0))
        return TrainResult(tuple(sample for c in candidates for sample in c.samples), {})

    def weights(self) -> list[tuple[str, Any]]:
        """A hundred tensors of the one number."""
        import torch

        return [(f"tensor{number}", torch.full((16,), self.value)) for number in range(TENSORS)]
