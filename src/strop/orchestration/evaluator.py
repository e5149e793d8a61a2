"""Evaluators: who measures the policy while it trains. The run begins an evaluation and collects what came of it.

    evaluator.begin(step, names, weights)      # in this process: measured when it returns
    ...                                        # in a worker: training goes on meanwhile
    for found in evaluator.poll(): ...         # results, in the order of their steps

Both measure the same sets with the same seeds, on engines of the same settings, and come to the same results.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from strop.base.interrupt import breakable
from strop.base.view import SilentView, View
from strop.engines.protocol import Engine
from strop.evaluation.evaluate import ProblemSet, by_name, measure
from strop.evaluation.result import EvaluationResult
from strop.model.policy import Policy
from strop.orchestration.messages import StoredWeights
from strop.orchestration.weight_store import WeightStore
from strop.verifiers.judges import OpenJudges


class Weights(Protocol):
    """A holder of weights to evaluate: a learner, or `WeightsOf` a policy."""

    def weights(self) -> Mapping[str, Tensor]:
        """Every parameter whole, by its name in the model."""
        ...

    def publish(self, store: WeightStore, version: int) -> StoredWeights:
        """Write them into a store."""
        ...


@dataclass(frozen=True, eq=False)
class WeightsOf:
    """The weights that a policy has now."""

    policy: Policy

    def weights(self) -> Mapping[str, Tensor]:
        """The parameters themselves."""
        return self.policy.weights()

    def publish(self, store: WeightStore, version: int) -> StoredWeights:
        """Write them into a store."""
        return store.write(version, self.weights().items())


@dataclass(frozen=True, eq=False)
class MeasuredVersion:
    """The results of evaluating the weights after `step`.

    Attributes:
        results: by the set's name.
        seconds: wall time of the evaluation.
        device_seconds: the same times the devices that it kept busy.
    """

    step: int
    results: Mapping[str, EvaluationResult]
    seconds: float
    device_seconds: float


class Evaluator(Protocol):
    """Measures weights. Each evaluation that was begun is reported once, by `poll`, in the order they were begun."""

    @property
    def outstanding(self) -> Sequence[int]:
        """The steps whose evaluation was begun and not yet polled."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether one more may begin; else it is better to wait, for every one holds weights until it is done."""
        ...

    def start(self, folder: Path, view: View) -> None:
        """The run begins, and `folder` is its folder; `view` shows how far evaluations are."""
        ...

    def begin(self, step: int, names: Sequence[str], weights: Weights) -> None:
        """Measure the sets of these names on `weights` as they are now: those after `step`, whose version is as many.

        Raises:
            StropError: they cannot be stored, or (in this process) measured.
        """
        ...

    def poll(self, patience: float = 0.0) -> list[MeasuredVersion]:
        """The evaluations finished since the last call; may wait up to `patience` seconds where some are outstanding.

        Raises:
            StropError: an evaluation cannot be done, now or ever.
        """
        ...

    def close(self) -> None:
        """End what it runs in; what is outstanding is given up. May be called twice."""
        ...


class InProcessEvaluator:
    """Measures at `begin`, in turn with training.

    Args:
        engine: idle at `begin`; closed by its maker.
        sets: that may be asked for.
        judges: of their verifiers; closed with this.
        devices: that the engine keeps busy.
    """

    def __init__(self, engine: Engine, sets: Sequence[ProblemSet], judges: OpenJudges, devices: int) -> None:
        self.engine = engine
        self._sets = sets
        self._judges = judges
        self._devices = devices
        self._view: View = SilentView()
        self._begun: list[int] = []
        self._done: list[MeasuredVersion] = []

    @property
    def outstanding(self) -> Sequence[int]:
        """Those not polled, and one that failed."""
        return tuple(self._begun)

    @property
    def has_room(self) -> bool:
        """Always."""
        return True

    def start(self, folder: Path, view: View) -> None:
        """Nothing to start."""
        self._view = view

    def begin(self, step: int, names: Sequence[str], weights: Weights) -> None:
        """Measure, and return when it is done."""
        self._begun.append(step)
        begin = time.perf_counter()
        self.engine.update_weights(weights.weights().items(), step)
        with breakable():
            results = measure(self.engine, by_name(self._sets, names), self._judges, self._report)
        seconds = time.perf_counter() - begin
        self._done.append(MeasuredVersion(step, results, seconds, seconds * self._devices))

    def poll(self, patience: float = 0.0) -> list[MeasuredVersion]:
        """The finished evaluations; there is nothing to wait for."""
        found, self._done = self._done, []
        done = {measured.step for measured in found}
        self._begun = [step for step in self._begun if step not in done]
        return found

    def close(self) -> None:
        """Close the judges."""
        self._judges.close()

    def _report(self, name: str, done: int, total: int) -> None:
        self._view.aside("evaluation", done, total)
