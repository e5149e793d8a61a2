"""An engine that says what a script tells it to, for evaluations whose result is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from strop.base.types import Completion, FinishReason, FloatArray, InputError, IntArray, VersionSpan
from strop.data.dataset import Dataset
from strop.engines.protocol import Capabilities, Engine, Health, KvMode, Request, Sampling, WeightSource
from strop.environments.responder import Play
from strop.evaluation.evaluate import ProblemSet, Progress, measure_set
from strop.evaluation.result import EvaluationResult
from strop.verifiers.base import Verifier
from strop.verifiers.judges import OpenJudges
from strop.verifiers.protocol import InlineJudge, Responder

Script = Callable[[Request, int], tuple[str, FinishReason]]


class ScriptedEngine:
    """Reports one completion a step, the latest request first, as the text `script(request, index)`."""

    def __init__(self, script: Script, stalls: bool = False) -> None:
        self._script = script
        self._stalls = stalls
        self._queue: list[tuple[Request, int]] = []
        self.requests: dict[str, Request] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(max_tokens=1000)

    @property
    def weight_version(self) -> int:
        return 7

    @property
    def unfinished(self) -> int:
        return len(self._queue)

    def submit(self, request: Request) -> None:
        if len(request.prompt_ids) > 100:
            raise InputError(f"request {request.id} is too long")
        self.requests[request.id] = request
        self._queue += [(request, index) for index in range(request.n)]

    def step(self) -> list[Completion]:
        if self._stalls or not self._queue:
            return []
        request, index = self._queue.pop()
        text, reason = self._script(request, index)
        size = len(text)
        return [
            Completion(
                request_id=request.id,
                index=index,
                prompt_ids=request.prompt_ids,
                token_ids=np.zeros(size, dtype=np.int32),
                logprobs=np.zeros(size, dtype=np.float32),
                versions=(VersionSpan(7, 0, size),),
                injected=np.zeros(size, dtype=np.bool_),
                text=text,
                finish_reason=reason,
            )
        ]

    def cancel(self, request_id: str) -> None:
        if all(request.id != request_id for request, _ in self._queue):
            raise InputError(f"cancel: no unfinished request {request_id!r}")
        self._queue = [(request, index) for request, index in self._queue if request.id != request_id]

    def update_weights(self, source: WeightSource, version: int, kv: KvMode = "keep") -> None:
        raise NotImplementedError

    def verify_weights(self, probe_ids: IntArray) -> FloatArray:
        raise NotImplementedError

    def health(self) -> Health:
        return Health(ok=True, detail="scripted", running=0, waiting=len(self._queue))

    def close(self) -> None:
        self._queue = []


class _Given:
    """Judges, of which a test gives the only one."""

    def __init__(self, judge: Responder) -> None:
        self._judge = judge

    def of(self, verifier: Verifier, play: Play | None = None) -> Responder:
        return self._judge


def evaluate(
    engine: Engine, dataset: Dataset, samples: int, sampling: Sampling, verifier: Verifier, seed: int = 0,
    progress: Progress | None = None, judge: Responder | None = None, stall_seconds: float = 60.0,
) -> EvaluationResult:  # fmt: skip
    """The result of a set, judged by `judge` or else in this process."""
    asked = ProblemSet(dataset.name, dataset, samples, sampling, verifier, seed)
    judges = cast(OpenJudges, _Given(judge if judge is not None else InlineJudge(verifier)))
    return measure_set(engine, asked, judges, progress, stall_seconds=stall_seconds)
