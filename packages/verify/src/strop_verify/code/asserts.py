"""Tests by assertions: tester and solution in two sandboxes, joined by two pipes; only the tester reports to us."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

from strop_verify.code.outcome import Outcome, ProgramSettings, Tally, outcome_of
from strop_verify.code.tests import Tests
from strop_verify.sandbox.limits import Kind
from strop_verify.sandbox.pool import Slot
from strop_verify.sandbox.process import WATCH_SECONDS, SandboxProcess, pump

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
                solution.end(Kind.TIMEOUT, f"more than {max(limit, 0.0):g} s")
                tester.end(Kind.TIMEOUT, "")
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
    if not solution.finished or solution.ending.kind is Kind.ENDED:
        return None
    return outcome_of(solution.ending)


def _fail_unreported(tester: SandboxProcess, solution: SandboxProcess, place: int, tally: Tally) -> None:
    """Count test `place` as failed, during which the tester ended without a report."""
    for process in (solution, tester):
        if process.finished and process.ending.kind is not Kind.ENDED:
            outcome, detail = outcome_of(process.ending)
            if process is tester and outcome is not Outcome.SANDBOX_ERROR:
                outcome, detail = Outcome.KILLED, f"the tests ended early: {detail}"  # driven to it by the solution
            tally.failed(place, outcome, detail)
            return
    tally.failed(place, Outcome.KILLED, "the tests ended early")
