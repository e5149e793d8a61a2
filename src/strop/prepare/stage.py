"""The steps of a preparation, and the stage that a step reads from and writes to.

A step goes through the problems in order. It keeps each problem, changed or not, or drops it with a reason. A
`FilterStep` decides on one problem at a time; other steps define `run` and may read the problems several times.
"""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from strop.base.files import writing
from strop.base.pieces import Piece
from strop.base.types import Problem
from strop.base.view import View
from strop.data.problem_table import ProblemWriter, count_rows, read_problems

DROPPED_COLUMNS = ("step", "reason", "detail", "duplicate_of", "duplicate_text")
SECONDS_BETWEEN_TICKS = 0.2
_CAPITALS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Dropped(NamedTuple):
    """Why a problem is dropped: reports count `reason`, and `detail` describes this problem.

    `duplicate_of` and `duplicate_text` are the id and the text of the problem or benchmark question that it repeats.
    """

    reason: str
    detail: str = ""
    duplicate_of: str = ""
    duplicate_text: str = ""


class Stage:
    """A running step: its input, its outputs (kept, dropped, held out) and its figures for the report.

    Attributes:
        folder: the step's own folder; a journal in it survives a kill.
        total: the number of problems that come in.
        counts: further figures for the report, filled by the step.
        hint: why the step may have kept so few; printed if it kept none.
    """

    def __init__(self, name: str, source: Path, folder: Path, view: View, seed: int) -> None:
        self.name, self.folder, self.view, self.seed = name, folder, view, seed
        self.total = count_rows(source)
        self.reasons: Counter[str] = Counter()
        self.counts: dict[str, Any] = {}
        self.hint = ""
        self._source = source
        self._kept = ProblemWriter(folder / "problems.parquet")
        self._dropped = ProblemWriter(folder / "dropped.parquet", DROPPED_COLUMNS)
        self._held_out: ProblemWriter | None = None
        self._ticked = 0.0

    @property
    def kept(self) -> int:
        """How many problems were kept so far."""
        return self._kept.count

    @property
    def dropped(self) -> int:
        """How many were dropped so far."""
        return self._dropped.count

    @property
    def held_out(self) -> int:
        """How many were put into the validation set."""
        return 0 if self._held_out is None else self._held_out.count

    def problems(self, title: str | None = None, ticking: bool = True) -> Iterator[Problem]:
        """The problems in order, with a progress bar called `title` (by default the step's name).

        With `ticking=False` the caller reports progress by `tick`.
        """
        self.view.stage(self.name if title is None else title, self.total, "problems")
        for done, problem in enumerate(read_problems(self._source), start=1):
            yield problem
            if ticking:
                self.tick(done)

    def tick(self, done: int) -> None:
        """Report that `done` problems are finished; the display is updated at most five times a second."""
        now = time.monotonic()
        if done == self.total or now - self._ticked >= SECONDS_BETWEEN_TICKS:
            self._ticked = now
            self.view.advance(done, {})

    def keep(self, problem: Problem) -> None:
        """Keep a problem."""
        self._kept.write(problem)

    def drop(self, problem: Problem, dropped: Dropped) -> None:
        """Drop a problem."""
        self.reasons[dropped.reason] += 1
        self._dropped.write(problem, {"step": self.name, **dropped._asdict()})

    def hold_out(self, problem: Problem) -> None:
        """Put a problem into the validation set."""
        if self._held_out is None:
            self._held_out = ProblemWriter(self.folder / "validation.parquet")
        self._held_out.write(problem)

    def close(self) -> None:
        """Finish the files."""
        with writing(self.folder):
            for writer in (self._kept, self._dropped, self._held_out):
                if writer is not None:
                    writer.__exit__()


class Step(Piece):
    """A step of the preparation. Subclasses define `run`."""

    def title(self) -> str:
        """The step's name in reports: `LinksAndFigures` is `links and figures`."""
        return _CAPITALS.sub(" ", type(self).__name__).lower()

    def identity(self) -> dict[str, Any]:
        """The settings that its result depends on; when they change, the step runs again."""
        return self.model_dump(mode="json")

    def inputs(self) -> str:
        """A stamp of the files that the step reads; when it changes, the step runs again (`Source.stamp`)."""
        return ""

    @abstractmethod
    def run(self, stage: Stage) -> None:
        """Keep or drop every problem of `stage.problems()`."""


class FilterStep(Step):
    """A step that looks at one problem at a time. Subclasses define `__call__`."""

    @abstractmethod
    def __call__(self, problem: Problem) -> Problem | Dropped:
        """The problem, changed or not, or why it is dropped."""

    def run(self, stage: Stage) -> None:
        """Every problem in turn."""
        settle(stage, ((problem, self(problem)) for problem in stage.problems()))


def settle(stage: Stage, decisions: Iterable[tuple[Problem, Problem | Dropped]]) -> None:
    """Keep or drop each problem as decided, and count the changed ones."""
    changed = 0
    for problem, found in decisions:
        if isinstance(found, Dropped):
            stage.drop(problem, found)
        else:
            changed += found is not problem
            stage.keep(found)
    if changed:
        stage.counts["changed"] = changed
