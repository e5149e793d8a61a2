"""Three ways of testing a program, and the outcome of its tests.

- Standard input and output: a fresh process, real pipes and a real `__main__` for every test.
- Calls of a function: one process for all tests, asked one call at a time; the values are compared here.
- Assertions: tester and solution in two sandboxes, joined by two pipes; only the tester reports to us.
"""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from strop_verify.code.tests import Tests
from strop_verify.sandbox.guest.wire import MAX_DEPTH, CodecError, decode, encode
from strop_verify.sandbox.limits import Ending, Limits, Outcome
from strop_verify.sandbox.pool import Slot
from strop_verify.sandbox.process import WATCH_SECONDS, SandboxProcess, finish, pump, send

MOST_SECONDS = 300.0


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
        tolerance: numbers may differ by so much, absolutely or relatively, but not integers; None for not at all.
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
        """Wall clock that the next test may take; 0 or less if no time is left."""
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
        """Test `place` (from 0) was not passed. A failure of the sandbox replaces an earlier failure."""
        if self._first is None or outcome is Outcome.SANDBOX_ERROR:
            which = f"test {place + 1} of {self._total}" if self._total > 1 else ""
            self._first = (outcome, ": ".join(part for part in (which, detail) if part))

    def out_of_time(self, place: int) -> None:
        """No time was left for test `place`."""
        self.failed(place, Outcome.TIMEOUT, f"no time left of {self._limit:g} s for all tests")

    def result(self) -> CodeResult:
        """The result of all tests."""
        if self._first is None and self._passed == self._total:
            return CodeResult(Outcome.PASS, "", self._passed, self._total)
        outcome, detail = self._first or (Outcome.SANDBOX_ERROR, "not every test was run")
        return CodeResult(outcome, detail, self._passed, self._total)


def outcome_of(ending: Ending) -> tuple[Outcome, str]:
    """The outcome for a program that ended before it had answered."""
    if ending.outcome is Outcome.ENDED:
        return Outcome.RUNTIME_ERROR, "it ended before the tests did"
    return ending.outcome, ending.detail


# ---------------------------------------------------------------------- standard input and output


_INTEGERS = re.compile(r"[+-]?[0-9]+ [+-]?[0-9]+")  # they are counted, not measured: no tolerance applies
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")


def difference(expected: str, written: str, tolerance: float | None = None, tokens: bool = False) -> str:
    """ "" where the outputs are the same, else the first difference in words.

    Line by line, blanks around the lines and around the whole left out; two lines are the same when they are equal as
    texts, or when all their words are numbers and equal as decimals.

    Args:
        expected: the right output.
        written: the program's.
        tolerance: numbers may differ by so much, absolutely or relatively; None for not at all.
        tokens: compare word by word, however they are spread over lines.
    """
    if tokens:
        return _line_difference(" ".join(expected.split()), " ".join(written.split()), tolerance, mixed=True)
    wanted, got = (text.strip().split("\n") for text in (expected, written))
    if len(wanted) != len(got):
        return f"{len(got)} lines for {len(wanted)}"
    for number, (one, other) in enumerate(zip(wanted, got, strict=True), start=1):
        found = _line_difference(one.strip(), other.strip(), tolerance, mixed=tolerance is not None)
        if found:
            return f"line {number}: {found}"
    return ""


def _line_difference(expected: str, written: str, tolerance: float | None, mixed: bool) -> str:
    """The difference of two lines; with `mixed` some words may be equal as texts and others as numbers."""
    if expected == written:
        return ""
    wanted, got = expected.split(), written.split()
    if len(wanted) == len(got) and all(
        (mixed and one == other) or _same_number(one, other, tolerance) for one, other in zip(wanted, got, strict=True)
    ):
        return ""
    return f"{_short(written)} for {_short(expected)}"


def _same_number(expected: str, written: str, tolerance: float | None) -> bool:
    if _NUMBER.fullmatch(expected) is None or _NUMBER.fullmatch(written) is None:
        return False
    if Decimal(expected) == Decimal(written):
        return True
    if tolerance is None or _INTEGERS.fullmatch(f"{expected} {written}"):
        return False
    one, other = float(expected), float(written)
    finite = math.isfinite(one) and math.isfinite(other)
    return finite and math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def run_stdio(slot: Slot, program: str, tests: Tests, settings: ProgramSettings, tally: Tally) -> None:
    """Run every test; the output is compared here, and the program must also end with status 0."""
    for place, (given, expected) in enumerate(zip(tests.inputs, tests.outputs, strict=True)):
        seconds = tally.seconds
        if seconds <= 0:
            tally.out_of_time(place)
            return
        with slot.process("main", program, given.encode("utf-8", "surrogatepass"), seconds) as process:
            run = finish(process, seconds)
        if run.ending.outcome is not Outcome.ENDED:
            tally.failed(place, *outcome_of(run.ending))
        else:
            written = run.stdout.decode("utf-8", "replace")
            found = difference(expected, written, settings.tolerance, settings.tokens)
            if found:
                tally.failed(place, Outcome.WRONG, found)
            else:
                tally.passed()
        if tally.over:
            return


# ---------------------------------------------------------------------- calls


SEQUENCES = ("list", "tuple", "deque")
MAPPINGS = ("dict", "OrderedDict", "Counter")
NUMBERS = ("int", "float", "Fraction", "Decimal", "complex")
MOST_DIGITS = 1000  # of fractions and decimals, whose arithmetic is slow


def matches(expected: Any, wire: Any, tolerance: float | None = None, depth: int = 0) -> bool:
    """Whether `wire` is the value `expected`, which came from JSON: tuples and arrays are lists, integer keys texts.

    A handle matches nothing. Numbers are equal as Python has it (1 == 1.0 == True).
    """
    if depth > MAX_DEPTH:
        return False
    if isinstance(wire, list) and len(wire) == 3 and wire[0] == "array":
        wire = wire[2]
    if isinstance(expected, list | tuple):
        items = _items(wire, SEQUENCES)
        return (
            items is not None
            and len(items) == len(expected)
            and all(matches(one, other, tolerance, depth + 1) for one, other in zip(expected, items, strict=True))
        )
    if isinstance(expected, dict):
        return _matches_mapping(expected, wire, tolerance, depth)
    if expected is None or isinstance(expected, str):
        return type(expected) is type(wire) and bool(expected == wire)
    number = _number(wire)
    if number is None:
        return False
    if expected == number:
        return True
    if tolerance is None or (isinstance(expected, int) and isinstance(number, int)):
        return False
    return _close(expected, number, tolerance)


def _matches_mapping(expected: dict[str, Any], wire: Any, tolerance: float | None, depth: int) -> bool:
    pairs = _items(wire, MAPPINGS)
    if pairs is None or len(pairs) != len(expected):
        return False
    seen = set()
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            return False
        key = pair[0]
        name = str(key) if type(key) is int else key  # JSON has no other keys than texts
        if not isinstance(name, str) or name not in expected or name in seen:
            return False
        if not matches(expected[name], pair[1], tolerance, depth + 1):
            return False
        seen.add(name)
    return True


def _items(wire: Any, tags: tuple[str, ...]) -> list[Any] | None:
    tagged = isinstance(wire, list) and len(wire) == 2 and wire[0] in tags and isinstance(wire[1], list)
    return wire[1] if tagged else None


def _number(wire: Any) -> Any:
    """The number of a wire form, also a fraction, decimal or complex one; None for anything else."""
    if isinstance(wire, int | float):
        return wire
    tag, *parts = wire if isinstance(wire, list) and wire else [""]
    short = all(isinstance(part, int | float) or (isinstance(part, str) and len(part) < MOST_DIGITS) for part in parts)
    if tag not in NUMBERS or not (short or tag == "int"):
        return None
    try:
        found = decode(wire, _refuse)
    except CodecError:
        return None
    return None if isinstance(found, Decimal) and not found.is_finite() else found


def _close(expected: Any, number: Any, tolerance: float) -> bool:
    try:
        return math.isclose(expected, number, rel_tol=tolerance, abs_tol=tolerance)
    except (OverflowError, TypeError):  # an integer beyond the floats; a complex number
        return False


Failure = tuple[Outcome, str]


class Conversation:
    """A solution that answers calls."""

    def __init__(self, process: SandboxProcess, requests: int) -> None:
        self._process, self._requests = process, requests

    def answer(self, request: list[Any] | None, seconds: float) -> list[Any] | Failure:
        """The next message of the solution, or how it failed; without a request it is the one after loading."""
        if request is not None:
            send(self._process, self._requests, request)
        asked = time.monotonic()
        while not self._process.messages and not self._process.finished:
            # The clock stands still until the sandbox is ready.
            begun = self._process.began if request is None else asked
            left = WATCH_SECONDS if begun is None else begun + seconds - time.monotonic()
            if left <= 0:
                self._process.end(Outcome.TIMEOUT, f"more than {seconds:g} s")
            pump([self._process], max(left, 0.001))
        if self._process.messages:
            return self._process.messages.popleft()
        return outcome_of(self._process.ending)


@contextmanager
def conversation(slot: Slot, program: str, seconds: float) -> Iterator[Conversation]:
    """A sandbox process in which the solution waits for calls."""
    request_in, request_out = os.pipe()
    answer_in, answer_out = os.pipe()
    os.set_blocking(request_out, False)
    try:
        channels = (request_in, answer_out)
        with slot.process("solution", program, b"", seconds, channels, report=answer_in) as process:
            os.close(request_in)
            os.close(answer_out)
            request_in = answer_out = -1
            yield Conversation(process, request_out)
    finally:
        for descriptor in (request_in, answer_out, request_out):
            if descriptor >= 0:
                os.close(descriptor)


def run_calls(slot: Slot, program: str, tests: Tests, settings: ProgramSettings, tally: Tally) -> None:
    """Call the function with every test's arguments; after a call that ended the process the rest get a new one."""
    place = 0
    while place < len(tests) and not tally.over:
        if tally.seconds <= 0:
            tally.out_of_time(place)
            return
        with conversation(slot, program, settings.total(len(tests))) as solution:
            place = _run_some(solution, tests, settings, tally, place)


def _run_some(solution: Conversation, tests: Tests, settings: ProgramSettings, tally: Tally, place: int) -> int:
    """Tests from `place` on until one ends the process; the place of the next."""
    loaded = solution.answer(None, tally.seconds)
    failure = _failure(loaded, "loaded")
    if failure is not None:
        for left in range(place, len(tests)):
            tally.failed(left, *failure)
        return len(tests)
    while place < len(tests) and not tally.over:
        if tally.seconds <= 0:
            tally.out_of_time(place)
            return len(tests)
        reply = solution.answer(_request(tests, place), tally.seconds)
        failure = _failure(reply, "value")
        if failure is not None:
            tally.failed(place, *failure)
        elif matches(tests.outputs[place], reply[1], settings.tolerance):
            tally.passed()
        else:
            tally.failed(place, Outcome.WRONG, f"{shown(reply[1])} for {shown(tests.outputs[place])}")
        place += 1
        if isinstance(reply, tuple):
            return place
    return place


def _request(tests: Tests, place: int) -> list[Any]:
    return ["entry", tests.function, [encode(value, _refuse) for value in tests.inputs[place]]]


def _failure(reply: list[Any] | Failure, wanted: str) -> Failure | None:
    """What went wrong, where `reply` is not the `wanted` message."""
    if isinstance(reply, tuple):
        return reply
    if reply and reply[0] == wanted and (wanted == "loaded" or len(reply) >= 2):
        return None
    if len(reply) >= 4 and reply[0] == "raise":
        outcome = Outcome.MEMORY if reply[1] == "MemoryError" else Outcome.RUNTIME_ERROR
        name, text = (part if isinstance(part, str) else shown(part) for part in (reply[1], reply[3]))
        return outcome, f"{name}: {text}"[:300]
    return Outcome.KILLED, "an answer of no known kind"


def shown(value: Any) -> str:
    """A value for a message, however deep or long it is."""
    text = reprlib.repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _refuse(value: Any) -> list[Any]:
    raise CodecError(f"an argument of type {type(value).__name__}")  # tests come from JSON and hold none


# ---------------------------------------------------------------------- assertions


SETTLE_SECONDS = 0.5


class Pipes:
    """The pipes between the two sandboxes, and the one of the report."""

    def __init__(self) -> None:
        self.request_in, self.request_out = os.pipe()
        self.answer_in, self.answer_out = os.pipe()
        self.report_in, self.report_out = os.pipe()
        self._theirs = [self.request_in, self.request_out, self.answer_in, self.answer_out, self.report_out]

    def close_copies(self) -> None:
        """Close our copies, so that each sandbox sees the other's end; the report is read by the tester's process."""
        for descriptor in self._theirs:
            os.close(descriptor)
        self._theirs = []


def run_asserts(slot: Slot, program: str, tests: Tests, settings: ProgramSettings, tally: Tally) -> None:
    """Run the snippets in the tester's sandbox; a test is passed when the tester says so, and by nothing else."""
    seconds = settings.total(len(tests))
    source = json.dumps([tests.inputs, settings.stop])
    pipes = Pipes()
    report: int | None = pipes.report_in
    try:
        with slot.process(
            "solution", program, b"", seconds, channels=(pipes.request_in, pipes.answer_out)
        ) as solution:
            channels = (pipes.answer_in, pipes.request_out, pipes.report_out)
            report = None  # from here on the tester's process closes it
            with slot.process("tester", source, b"", seconds, channels, report=pipes.report_in, place=1) as tester:
                pipes.close_copies()
                _follow(tester, solution, tests.inputs, tally)
    finally:
        pipes.close_copies()
        if report is not None:
            os.close(report)


def _follow(tester: SandboxProcess, solution: SandboxProcess, snippets: Sequence[Any], tally: Tally) -> None:
    place, begun, judged, total = 0, time.monotonic(), 0, len(snippets)
    limit = tally.seconds
    while not tally.over:
        while tester.messages:
            message = tester.messages.popleft()
            if message[0] == "begin":
                place, begun, limit = message[1], time.monotonic(), tally.seconds
            else:
                judged += 1
                _note(message, solution, snippets, tally)
        if judged >= total or tester.finished:
            break
        left = WATCH_SECONDS
        if tester.began is not None and solution.began is not None:
            left = max(begun, tester.began, solution.began) + limit - time.monotonic()
            if left <= 0:
                solution.end(Outcome.TIMEOUT, f"more than {max(limit, 0.0):g} s")
                tester.end(Outcome.TIMEOUT, "")
                tally.failed(place, Outcome.TIMEOUT, f"more than {max(limit, 0.0):g} s")
                return
        pump([tester, solution], max(left, 0.001))
    if judged < total and not tally.over:
        _fail_unreported(tester, solution, place, tally)


def _note(message: list[Any], solution: SandboxProcess, snippets: Sequence[Any], tally: Tally) -> None:
    kind, place, *rest = message
    if kind == "pass":
        tally.passed()
    elif kind == "broken":
        tally.failed(place, Outcome.SANDBOX_ERROR, f"the test is no Python: {rest[0]}")
    else:
        ended = _ended(solution)
        if ended is not None:
            tally.failed(place, *ended)
            return
        outcome = Outcome.WRONG if rest[0].startswith("AssertionError") else Outcome.RUNTIME_ERROR
        if rest[0].startswith("MemoryError"):
            outcome = Outcome.MEMORY
        said = rest[0]
        if said == "AssertionError: ":  # which says nothing: the test does
            said += str(snippets[place]).strip().partition("\n")[0][:200]
        tally.failed(place, outcome, said)


def _ended(solution: SandboxProcess) -> tuple[Outcome, str] | None:
    """How the solution ended, where it has."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while solution.dying and not solution.finished and time.monotonic() < deadline:
        pump([solution], WATCH_SECONDS)
    if not solution.finished or solution.ending.outcome is Outcome.ENDED:
        return None
    return outcome_of(solution.ending)


def _fail_unreported(tester: SandboxProcess, solution: SandboxProcess, place: int, tally: Tally) -> None:
    """Count test `place` as failed, during which the tester ended without a report."""
    for process in (solution, tester):
        if process.finished and process.ending.outcome is not Outcome.ENDED:
            outcome, detail = outcome_of(process.ending)
            if process is tester and outcome is not Outcome.SANDBOX_ERROR:
                outcome, detail = Outcome.KILLED, f"the tests ended early: {detail}"  # driven to it by the solution
            tally.failed(place, outcome, detail)
            return
    tally.failed(place, Outcome.KILLED, "the tests ended early")
