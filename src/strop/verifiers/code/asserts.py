"""Tests by assertions: tester and solution in two rooms, joined by two pipes; only the tester reports to us."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from strop.verifiers.code.outcome import Outcome, Settings, Tally, outcome_of
from strop.verifiers.code.tests import Tests
from strop.verifiers.sandbox.limits import Kind
from strop.verifiers.sandbox.pool import Slot
from strop.verifiers.sandbox.process import WATCH_SECONDS, Room, pump

SETTLE_SECONDS = 0.5


class Pipes:
    """The pipes between the two rooms, and the one of the report."""

    def __init__(self) -> None:
        self.request_in, self.request_out = os.pipe()
        self.answer_in, self.answer_out = os.pipe()
        self.report_in, self.report_out = os.pipe()
        self._theirs = [self.request_in, self.request_out, self.answer_in, self.answer_out, self.report_out]

    def let_go(self) -> None:
        """Close our copies, so that each room sees the other's end; the report is read by the tester's room."""
        for descriptor in self._theirs:
            os.close(descriptor)
        self._theirs = []


def run_asserts(slot: Slot, program: str, tests: Tests, settings: Settings, tally: Tally) -> None:
    """Run the snippets in the tester's room; a test is passed when the tester says so, and by nothing else."""
    seconds = settings.total(len(tests))
    source = json.dumps([tests.inputs, settings.stop])
    pipes = Pipes()
    report: int | None = pipes.report_in
    try:
        with slot.room(
            "solution", program, b"", seconds, channels=(pipes.request_in, pipes.answer_out)
        ) as solution:
            channels = (pipes.answer_in, pipes.request_out, pipes.report_out)
            report = None  # from here on the tester's room owns it
            with slot.room("tester", source, b"", seconds, channels, report=pipes.report_in, place=1) as tester:
                pipes.let_go()
                _follow(tester, solution, len(tests), tally)
    finally:
        pipes.let_go()
        if report is not None:
            os.close(report)


def _follow(tester: Room, solution: Room, total: int, tally: Tally) -> None:
    place, begun, judged = 0, time.monotonic(), 0
    limit = tally.seconds
    while not tally.over:
        while tester.messages:
            message = tester.messages.popleft()
            if message[0] == "begin":
                place, begun, limit = message[1], time.monotonic(), tally.seconds
            else:
                judged += 1
                _note(message, solution, tally)
        if judged >= total or tester.finished:
            break
        left = WATCH_SECONDS
        if tester.began is not None and solution.began is not None:
            left = max(begun, tester.began, solution.began) + limit - time.monotonic()
            if left <= 0:
                solution.end(Kind.TIMEOUT, f"more than {max(limit, 0.0):g} s")
                tester.end(Kind.TIMEOUT, "")
                tally.failed(place, Outcome.TIMEOUT, f"more than {max(limit, 0.0):g} s")
                return
        pump([tester, solution], max(left, 0.001))
    if judged < total and not tally.over:
        _explain(tester, solution, place, tally)


def _note(message: list[Any], solution: Room, tally: Tally) -> None:
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
        tally.failed(place, outcome, rest[0])


def _ended(solution: Room) -> tuple[Outcome, str] | None:
    """What became of the solution where it did not live to be asked again."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while solution.dying and not solution.finished and time.monotonic() < deadline:
        pump([solution], WATCH_SECONDS)
    if not solution.finished or solution.ending.kind is Kind.ENDED:
        return None
    return outcome_of(solution.ending)


def _explain(tester: Room, solution: Room, place: int, tally: Tally) -> None:
    """The tester ended without a result."""
    for room in (solution, tester):
        if room.finished and room.ending.kind not in (Kind.ENDED,):
            outcome, detail = outcome_of(room.ending)
            if room is tester and outcome is not Outcome.SANDBOX_ERROR:
                outcome, detail = Outcome.KILLED, f"the tests ended early: {detail}"  # driven to it by the solution
            tally.failed(place, outcome, detail)
            return
    tally.failed(place, Outcome.KILLED, "the tests ended early")
