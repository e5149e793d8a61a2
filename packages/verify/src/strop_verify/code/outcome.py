"""The outcome of a program's tests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum

from strop_verify.sandbox.limits import Ending, Kind, Limits

MOST_SECONDS = 300.0


class Outcome(StrEnum):
    """The program causes all but `pass` and `sandbox_error`, and is worth nothing; the sandbox causes the latter."""

    PASS = "pass"
    WRONG = "wrong"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    RUNTIME_ERROR = "runtime_error"
    SYNTAX_ERROR = "syntax_error"
    KILLED = "killed"
    SANDBOX_ERROR = "sandbox_error"


@dataclass(frozen=True)
class CodeResult:
    """The outcome (that of the first test that was not passed), why, and how many of `total` tests were passed."""

    outcome: Outcome
    detail: str
    passed: int
    total: int
    milliseconds: float = 0.0


@dataclass(frozen=True)
class ProgramSettings:
    """How programs are tested.

    Attributes:
        limits: what each process may use.
        test_seconds: wall clock of one test.
        total_seconds: wall clock of all tests together; None is min(7 n + 5, 300) for n tests.
        tolerance: numbers may differ by so much, absolutely or relatively; None for not at all.
        tokens: compare outputs word by word.
        stop: end at the first test that is not passed.
    """

    limits: Limits = field(default_factory=Limits)
    test_seconds: float = 6.0
    total_seconds: float | None = None
    tolerance: float | None = None
    tokens: bool = False
    stop: bool = True

    def total(self, tests: int) -> float:
        """Seconds for all of `tests` tests."""
        return min(7.0 * tests + 5.0, MOST_SECONDS) if self.total_seconds is None else self.total_seconds


class Tally:
    """Counts tests and keeps the first failure."""

    def __init__(self, settings: ProgramSettings, total: int) -> None:
        self._settings, self._total = settings, total
        self._began = time.monotonic()
        self._limit = settings.total(total)
        self._passed = 0
        self._first: tuple[Outcome, str] | None = None

    @property
    def seconds(self) -> float:
        """Wall clock that the next test may take; 0 or less where none is left."""
        return min(self._settings.test_seconds, self._limit - (time.monotonic() - self._began))

    @property
    def over(self) -> bool:
        """Whether the rest need not be run."""
        return self._first is not None and (
            self._settings.stop or self._first[0] in (Outcome.SANDBOX_ERROR, Outcome.SYNTAX_ERROR)
        )

    def passed(self) -> None:
        """One more test was passed."""
        self._passed += 1

    def failed(self, place: int, outcome: Outcome, detail: str) -> None:
        """Test `place` (from 0) was not; a failure of ours outweighs whatever came before."""
        if self._first is None or outcome is Outcome.SANDBOX_ERROR:
            which = f"test {place + 1} of {self._total}" if self._total > 1 else ""
            self._first = (outcome, ": ".join(part for part in (which, detail) if part))

    def out_of_time(self, place: int) -> None:
        """No time was left for test `place`."""
        self.failed(place, Outcome.TIMEOUT, f"no time left of {self._limit:g} s for all tests")

    def result(self) -> CodeResult:
        """The result of all tests."""
        spent = (time.monotonic() - self._began) * 1000
        if self._first is None and self._passed == self._total:
            return CodeResult(Outcome.PASS, "", self._passed, self._total, spent)
        outcome, detail = self._first or (Outcome.SANDBOX_ERROR, "not every test was run")
        return CodeResult(outcome, detail, self._passed, self._total, spent)


def outcome_of(ending: Ending) -> tuple[Outcome, str]:
    """The outcome for a program that ended before it had answered."""
    if ending.kind is Kind.ENDED:
        return Outcome.RUNTIME_ERROR, "it ended before the tests did"
    return Outcome(ending.kind.value), ending.detail
