"""Checking the tests of code problems by running the reference solution (Skywork-OR1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny

from strop.base.types import Problem, StropError, Verdict
from strop.prepare.stage import Dropped, FilterStep
from strop.verifiers.base import Verifier
from strop_verify.code.tests import StandardTests


def count_tests(reference: Any) -> int:
    """How many tests a reference has; 0 where it has none."""
    if not isinstance(reference, Mapping):
        return 0
    return len(reference.get("asserts") or reference.get("inputs") or ())


def select_tests(reference: StandardTests, places: Sequence[int]) -> StandardTests:
    """The same reference with the tests at `places` only."""
    lists = ("asserts",) if "asserts" in reference else ("inputs", "outputs")
    return {**reference, **{name: [reference[name][place] for place in places] for name in lists}}


def is_code(reference: Any) -> bool:
    """Whether a reference is tests."""
    return isinstance(reference, Mapping) and ("asserts" in reference or "inputs" in reference)


class ReferenceSolutions(FilterStep):
    """Runs the reference solution of each code problem against its tests; tests that it fails are wrong.

    Fields:
        verifier: runs programs in a sandbox and compares what they give with the tests.
        solutions: where in `extra` the solutions stand (a text or a list of texts, Python).
        attempts: how many of the solutions are tried; one that passes all tests is enough.
        failing: `drop`: a problem none of whose solutions passes every test is dropped (Skywork-OR1); `prune`: the
            tests that the best solution fails are removed, and the problem is dropped when fewer than `min_tests` are
            left.
        missing: whether code problems without a solution are kept.
    """

    verifier: SerializeAsAny[Verifier]
    solutions: str = "solutions"
    attempts: Annotated[int, Field(ge=1)] = 3
    failing: Literal["drop", "prune"] = "drop"
    min_tests: Annotated[int, Field(ge=1)] = 5
    missing: Literal["keep", "drop"] = "drop"

    def __call__(self, problem: Problem) -> Problem | Dropped:
        """The problem with tests that its solution passes, or why there are none.

        Raises:
            StropError: the verifier itself failed, so that nothing can be said of the tests.
        """
        if not is_code(problem.reference):
            return problem
        codes = self._codes(problem)
        if not codes:
            return problem if self.missing == "keep" else Dropped("no reference solution")
        details = []
        for code in codes:
            verdict = self._verdict(problem, problem.reference, code)
            if verdict.passed:
                return problem
            details.append(verdict.detail)
        if self.failing == "drop":
            return Dropped("the reference solution fails the tests", details[0])
        return self._pruned(problem, codes)

    def _codes(self, problem: Problem) -> list[str]:
        value = problem.extra.get(self.solutions)
        found = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        return [code for code in found if isinstance(code, str) and code.strip()][: self.attempts]

    def _pruned(self, problem: Problem, codes: list[str]) -> Problem | Dropped:
        best: list[int] = []
        for code in codes:
            passed = list(self._passed(problem, code))
            best = max(best, passed, key=len)
        if len(best) < self.min_tests:
            total = count_tests(problem.reference)
            return Dropped(
                f"the reference solution passes fewer than {self.min_tests} tests", f"{len(best)} of {total}"
            )
        return replace(problem, reference=select_tests(dict(problem.reference), best))

    def _passed(self, problem: Problem, code: str) -> Iterator[int]:
        for place in range(count_tests(problem.reference)):
            single = select_tests(dict(problem.reference), [place])
            if self._verdict(problem, single, code).passed:
                yield place

    def _verdict(self, problem: Problem, reference: Any, code: str) -> Verdict:
        verdict = self.verifier(replace(problem, reference=reference), f"```python\n{code.strip()}\n```", False)
        if not verdict.usable:
            raise StropError(
                f"problem {problem.id!r}: the verifier failed ({verdict.detail}); its tests cannot be checked"
            )
        return verdict
