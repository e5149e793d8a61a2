"""Evaluations during training: when each is due, and the results that have come in.

    validation.begin(step, learner)                       # the sets that are due after it
    for at, row in validation.collect(): ...              # lines for metrics.jsonl, perhaps of an earlier step
    validation.retention(settings)                        # what must not be removed before its pass rate is known
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.base.files import read_json, write_json
from strop.evaluation.benchmarks import HELD_OUT
from strop.evaluation.evaluate import PREFIX, ProblemSet, by_problem, gain, metrics
from strop.evaluation.result import EvaluationResult
from strop.orchestration.evaluator import Evaluator, MeasuredVersion, Weights
from strop.training.checkpoint import Retention
from strop.training.compute import ComputeMeter
from strop.training.settings import CheckpointSettings

Row = dict[str, float | None]
NO_GAIN: Row = {f"{PREFIX}/gain": None}  # not comparable with the evaluation before training


class Validation:
    """The evaluations of a run.

    Args:
        sets: the problem sets to measure.
        evaluator: runs the evaluations.
        steps: steps of the run.
        compute: adds up their compute.
        results: receives the results on the held-out problems, by step.
        untrained: the file with the untrained model's pass rate on each held-out problem and the terms of that
            evaluation; later steps on the same terms are compared with it, those of a resumed run too.
        note: called with a line for each set with samples that could not be judged, and where no gain can be computed.
    """

    def __init__(
        self,
        sets: Sequence[ProblemSet],
        evaluator: Evaluator,
        steps: int,
        compute: ComputeMeter,
        results: dict[int, EvaluationResult],
        untrained: Path,
        note: Callable[[str], None],
    ) -> None:
        self.held_out: dict[int, float] = {}  # pass rates by step
        self._sets = {each.name: each for each in sets}
        self._evaluator = evaluator
        self._steps = steps
        self._compute = compute
        self._results = results
        self._untrained = untrained
        self._note = note
        self._known: set[int] = set()
        self._since = 0  # the step after which held-out problems are measured by the present settings

    # ------------------------------------------------------------------ evaluations

    def due(self, step: int) -> tuple[str, ...]:
        """The sets to measure after `step` (0: before training), unless that has been done or is under way."""
        if step in self._known or step in self._evaluator.outstanding:
            return ()
        return tuple(name for name, each in self._sets.items() if each.due(step, self._steps))

    def begin(self, step: int, weights: Weights) -> None:
        """Begin to measure `weights`, those after `step`, on the sets that are due."""
        names = self.due(step)
        if names:
            self._evaluator.begin(step, names, weights)

    def collect(self, patience: float = 0.0) -> list[tuple[int, Row]]:
        """The finished metrics by step; waits up to `patience` seconds if something is outstanding."""
        return [(measured.step, self._row(measured)) for measured in self._evaluator.poll(patience)]

    @property
    def outstanding(self) -> tuple[int, ...]:
        """Steps with an evaluation that has begun and is not collected."""
        return tuple(self._evaluator.outstanding)

    @property
    def has_room(self) -> bool:
        """Whether one more evaluation may begin now."""
        return self._evaluator.has_room

    def _row(self, measured: MeasuredVersion) -> Row:
        self._known.add(measured.step)
        row: Row = {}
        for name, result in measured.results.items():
            row |= metrics(result, self._sets[name])
            failed = result.failed(name, {})
            if failed:
                self._note(f"evaluation of step {measured.step}: {failed}")
        found = measured.results.get(HELD_OUT)
        if found is not None:
            self._results[measured.step] = found
            self.held_out[measured.step] = found.pass_rate
            if measured.step == 0:
                write_json(self._untrained, {"terms": self._terms(), "pass_rates": by_problem(found)})
            elif self._untrained.exists():
                row |= gain(read_json(self._untrained)["pass_rates"], found) if self._compares() else NO_GAIN
        return row | {f"{PREFIX}/seconds": measured.seconds} | self._compute.evaluated(measured.device_seconds)

    def _compares(self) -> bool:
        """Whether the untrained model was measured on the terms that hold for held-out problems now."""
        return bool(read_json(self._untrained).get("terms") == self._terms())

    # ------------------------------------------------------------------ the best step

    def best_step(self) -> int | None:
        """The earliest step with the highest held-out pass rate.

        The untrained model does not compete, nor do steps that were measured on other terms.
        """
        return self._best(step for step in self.held_out if step > self._since)

    def _best(self, steps: Iterable[int]) -> int | None:
        return max(steps, key=lambda step: (self.held_out[step], -step), default=None)

    def may_be_best(self, step: int) -> bool:
        """Whether `step` is the best so far, or may turn out to be."""
        held_out = self._sets.get(HELD_OUT)
        awaited = held_out is not None and held_out.due(step, self._steps) and step in self.outstanding
        return step > 0 and (awaited or step == self.best_step())

    def retention(self, settings: CheckpointSettings) -> Retention:
        """Which checkpoints stay; those of outstanding evaluations in any case, and the best of the terms before."""
        rates = {step: rate if step > self._since else None for step, rate in self.held_out.items()}
        before = self._best(step for step in self.held_out if 0 < step <= self._since) if settings.keep_best else None
        pinned = self.outstanding if before is None else (*self.outstanding, before)
        return Retention(last=settings.keep, best=int(settings.keep_best), metrics=rates, pinned=pinned)

    # ------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """JSON-able: pass rates, the terms of the last of them, and steps with an unfinished evaluation."""
        terms = {"terms": self._terms(), "terms_since": self._since}
        return {"held_out": self.held_out, **terms, "owed": list(self.outstanding)}

    def _terms(self) -> dict[str, Any] | None:
        return self._sets[HELD_OUT].terms if HELD_OUT in self._sets else None

    def load(self, state: Mapping[str, Any], rows: Iterable[Mapping[str, float | None]], step: int) -> tuple[int, ...]:
        """Restore a `state()` and add the later results: `rows` of metrics.jsonl up to `step`.

        Returns:
            The earlier steps with an unfinished evaluation.
        """
        if HELD_OUT in self._sets and self._untrained.exists() and not self._compares():
            self._note(
                "held-out problems are measured otherwise than before training (sampling, verifier or environment): "
                "later pass rates are of something else, and no gain since step 0 is shown"
            )
        self._since = state.get("terms_since", 0) if state.get("terms") in (None, self._terms()) else step
        self.held_out = {int(at): rate for at, rate in state["held_out"].items()}
        self._known = set(self.held_out)
        for row in rows:
            at = int(row["step"] or 0)
            if at > step or not any(name.startswith(f"{PREFIX}/") for name in row):
                continue
            self._known.add(at)
            self._compute.evaluated_before(row.get("compute/evaluator_seconds"))
            rate = row.get(f"{PREFIX}/pass_rate")
            if rate is not None:
                self.held_out[at] = rate
        return tuple(at for at in state.get("owed", ()) if at < step and self.due(at))
