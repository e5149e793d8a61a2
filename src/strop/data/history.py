"""The history of training problems: visits, pass rates, and filters that use them.

A visit is one group of rollouts of a problem. The history is JSON-able and part of the checkpoint. A run writes it to
`pass_rates.jsonl`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from strop.base.pieces import Piece
from strop.base.types import Problem
from strop.data.source import question_digest

PASS_RATES = "pass_rates.jsonl"


class Visit(NamedTuple):
    """A group of `samples` judged completions of which `passed` are correct, at a step of a stage."""

    step: int
    stage: int
    samples: int
    passed: float

    @property
    def pass_rate(self) -> float:
        """passed / samples."""
        return self.passed / self.samples


class History:
    """Visits by problem index, the problem visited last at the end."""

    def __init__(self) -> None:
        self._visits: dict[int, list[Visit]] = {}

    def add(self, index: int, visit: Visit) -> None:
        """Record a visit; visits without judged completions are ignored."""
        if visit.samples:
            self._visits[index] = [*self._visits.pop(index, ()), visit]

    def visits(self, index: int) -> Sequence[Visit]:
        """The visits of a problem, oldest first."""
        return self._visits.get(index, ())

    def latest(self, first: Iterable[int]) -> Iterator[tuple[int, Visit]]:
        """The last visit of each visited problem: those of `first`, then the others, the latest first."""
        for index in dict.fromkeys([*first, *reversed(self._visits)]):
            if index in self._visits:
                yield index, self._visits[index][-1]

    def __len__(self) -> int:
        return len(self._visits)

    def state(self) -> dict[str, list[list[float]]]:
        """JSON-able."""
        return {str(index): [list(visit) for visit in visits] for index, visits in self._visits.items()}

    def load(self, state: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        """Restore from `state`."""
        self._visits = {int(index): [Visit(*visit) for visit in visits] for index, visits in state.items()}

    def lines(self, problems: Sequence[Problem]) -> Iterable[str]:
        """One JSON line per visited problem: id, question, attempts, pass rates and visits."""
        for index in sorted(self._visits):
            visits = self._visits[index]
            attempts = sum(visit.samples for visit in visits)
            row = {
                "question": question_digest(problems[index]),
                "id": problems[index].id,
                "pass_rate": sum(visit.passed for visit in visits) / attempts,
                "last_pass_rate": visits[-1].pass_rate,
                "attempts": attempts,
                "visits": [visit._asdict() for visit in visits],
            }
            yield json.dumps(row)


class ProblemFilter(Piece):
    """Selects the problems of a new training stage by their visits so far."""

    @abstractmethod
    def __call__(self, visits: Sequence[Visit], stage: int) -> bool:
        """Whether a problem with these visits is kept in stage `stage`."""


class DropSolved(ProblemFilter):
    """Drops problems solved in every attempt of the previous stage (Skywork-OR1, online filtering)."""

    def __call__(self, visits: Sequence[Visit], stage: int) -> bool:
        before = [visit for visit in visits if visit.stage == stage - 1]
        return not before or any(visit.passed < visit.samples for visit in before)


class PassRateBetween(ProblemFilter):
    """Keeps problems whose pass rate over all attempts is in [low, high]; `unseen` decides on unvisited ones.

    `low = 0.01, high = 0.99` drops problems that were never or always solved.
    """

    low: Annotated[float, Field(ge=0, le=1)] = 0.0
    high: Annotated[float, Field(ge=0, le=1)] = 1.0
    unseen: Literal["keep", "drop"] = "keep"

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}; exchange them")
        return self

    def __call__(self, visits: Sequence[Visit], stage: int) -> bool:
        attempts = sum(visit.samples for visit in visits)
        if attempts == 0:
            return self.unseen == "keep"
        return self.low * attempts <= sum(visit.passed for visit in visits) <= self.high * attempts


class HardOnly(ProblemFilter):
    """Keeps visited problems with a pass rate below `below`.

    Open-Reasoner-Zero's mining for the annealing stage: fewer than 4 of 64 correct, `below = 0.0625`.
    """

    below: Annotated[float, Field(gt=0, le=1)] = 4 / 64

    def __call__(self, visits: Sequence[Visit], stage: int) -> bool:
        attempts = sum(visit.samples for visit in visits)
        return attempts > 0 and sum(visit.passed for visit in visits) < self.below * attempts
