"""Filters that ask a verifier: many questions at once, where the verifier runs in processes of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import SerializeAsAny

from strop.base.types import Problem, Verdict
from strop.prepare.stage import Dropped, FilterStep, Stage, settle
from strop.verifiers.base import Verifier
from strop.verifiers.math import MathVerifier
from strop.verifiers.processes import ProcessPool, Result
from strop.verifiers.wire import read_verdict

AHEAD = 256  # problems that are asked about before the first of them is answered


class Refuses(NamedTuple):
    """Asks whether the verifier could judge the problem at all."""


class Judge(NamedTuple):
    """Asks for the verdict on `text` as a response."""

    text: str


Question = Refuses | Judge
Answer = Verdict | str | None  # of `Judge` a verdict; of `Refuses` why not, or None


class AskingStep(FilterStep):
    """A filter that settles most problems by itself (`ask`), and others by what the verifier says (`decide`).

    Fields:
        verifier: the one that a run on these problems will use, or one that reads at least what that one reads.
    """

    verifier: SerializeAsAny[Verifier] = MathVerifier(extract="any")

    @abstractmethod
    def ask(self, problem: Problem) -> Problem | Dropped | Question:
        """The decision, or the question on which it depends."""

    @abstractmethod
    def decide(self, problem: Problem, answer: Answer) -> Problem | Dropped:
        """The decision once the question is answered."""

    def __call__(self, problem: Problem) -> Problem | Dropped:
        """The problem, or why it is dropped."""
        asked = self.ask(problem)
        if isinstance(asked, Refuses):
            return self.decide(problem, self.verifier.refuses(problem))
        if isinstance(asked, Judge):
            return self.decide(problem, self.verifier(problem, asked.text, False))
        return asked

    def run(self, stage: Stage) -> None:
        """Every problem in order; a verifier in processes works on several at once."""
        if self.verifier.isolated() is None:
            super().run(stage)
            return
        pool = ProcessPool(self.verifier)
        try:
            settle(stage, self._decisions(stage.problems(), pool))
        finally:
            pool.close()

    def _decisions(
        self, problems: Iterator[Problem], pool: ProcessPool
    ) -> Iterator[tuple[Problem, Problem | Dropped]]:
        """Each problem with its decision, in order."""
        waiting: deque[tuple[Problem, Problem | Dropped | Question, int]] = deque()
        results: dict[int, Result] = {}
        for problem in problems:
            waiting.append((problem, *self._begin(problem, pool)))
            if len(waiting) >= AHEAD:
                yield self._finish(waiting.popleft(), pool, results)
        while waiting:
            yield self._finish(waiting.popleft(), pool, results)

    def _begin(self, problem: Problem, pool: ProcessPool) -> tuple[Problem | Dropped | Question, int]:
        asked = self.ask(problem)
        if not isinstance(asked, Refuses | Judge):
            return asked, -1
        if isinstance(asked, Refuses):
            return asked, pool.submit("refuses", problem)
        return asked, pool.submit("judge", problem, asked.text, False)

    def _finish(
        self, entry: tuple[Problem, Problem | Dropped | Question, int], pool: ProcessPool, results: dict[int, Result]
    ) -> tuple[Problem, Problem | Dropped]:
        problem, asked, number = entry
        if not isinstance(asked, Refuses | Judge):
            return problem, asked
        while number not in results:
            results.update(pool.receive(None))
        result = results.pop(number)
        answer: Answer = result["refusal"] if isinstance(asked, Refuses) else read_verdict(result)
        return problem, self.decide(problem, answer)
