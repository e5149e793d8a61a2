"""Filters that call a verifier: on several problems at once where the verifier runs in processes of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import SerializeAsAny

from strop.base.types import Problem, Verdict
from strop.prepare.stage import Dropped, FilterStep, Stage, settle
from strop.verifiers.base import Verifier
from strop.verifiers.math_verifier import MathVerifier
from strop.verifiers.process_pool import ProcessPool, Result

AHEAD = 256  # problems with a call under way before the result of the first of them is waited for


class RefusesCall(NamedTuple):
    """A call that asks whether the verifier can judge the problem at all."""


class JudgeCall(NamedTuple):
    """A call for the verdict on `text` as a response."""

    text: str


VerifierCall = RefusesCall | JudgeCall
CallResult = Verdict | str | None  # a verdict on a `JudgeCall`; why not, or None, on a `RefusesCall`


class VerifierFilter(FilterStep):
    """A filter that settles most problems by itself (`before_call`), and others by the verifier (`after_call`).

    Fields:
        verifier: the one that a run on these problems will use, or one that reads at least what that one reads.
    """

    verifier: SerializeAsAny[Verifier] = MathVerifier(extract="any")

    @abstractmethod
    def before_call(self, problem: Problem) -> Problem | Dropped | VerifierCall:
        """The decision, or the call on whose result it depends."""

    @abstractmethod
    def after_call(self, problem: Problem, result: CallResult) -> Problem | Dropped:
        """The decision by the result of the call."""

    def __call__(self, problem: Problem) -> Problem | Dropped:
        """The problem, or why it is dropped."""
        begun = self.before_call(problem)
        if isinstance(begun, RefusesCall):
            return self.after_call(problem, self.verifier.refuses(problem))
        if isinstance(begun, JudgeCall):
            return self.after_call(problem, self.verifier(problem, begun.text, False))
        return begun

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
        waiting: deque[tuple[Problem, Problem | Dropped | VerifierCall, int]] = deque()
        results: dict[int, Result] = {}
        for problem in problems:
            waiting.append((problem, *self._begin(problem, pool)))
            if len(waiting) >= AHEAD:
                yield self._finish(waiting.popleft(), pool, results)
        while waiting:
            yield self._finish(waiting.popleft(), pool, results)

    def _begin(self, problem: Problem, pool: ProcessPool) -> tuple[Problem | Dropped | VerifierCall, int]:
        begun = self.before_call(problem)
        if isinstance(begun, RefusesCall):
            return begun, pool.submit("refuses", problem)
        if isinstance(begun, JudgeCall):
            return begun, pool.submit("judge", problem, begun.text, False)
        return begun, -1

    def _finish(
        self, entry: tuple[Problem, Problem | Dropped | VerifierCall, int], pool: ProcessPool,
        results: dict[int, Result],
    ) -> tuple[Problem, Problem | Dropped]:  # fmt: skip
        problem, begun, number = entry
        if not isinstance(begun, RefusesCall | JudgeCall):
            return problem, begun
        while number not in results:
            results.update(pool.receive(None))
        result = results.pop(number)
        return problem, self.after_call(problem, result.refusal if isinstance(begun, RefusesCall) else result.verdict)
