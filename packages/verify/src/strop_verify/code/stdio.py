"""Tests by standard input and output: a fresh process, real pipes and a real `__main__` for every test."""

from __future__ import annotations

from strop_verify.code.compare import difference
from strop_verify.code.outcome import Outcome, Settings, Tally, outcome_of
from strop_verify.code.tests import Tests
from strop_verify.sandbox.limits import Kind
from strop_verify.sandbox.pool import Slot
from strop_verify.sandbox.process import finish


def run_stdio(slot: Slot, program: str, tests: Tests, settings: Settings, tally: Tally) -> None:
    """Run every test; the output is compared here, and the program must end well besides."""
    for place, (given, expected) in enumerate(zip(tests.inputs, tests.outputs, strict=True)):
        seconds = tally.seconds
        if seconds <= 0:
            tally.out_of_time(place)
            return
        with slot.process("main", program, given.encode("utf-8", "surrogatepass"), seconds) as process:
            run = finish(process, seconds)
        if run.ending.kind is not Kind.ENDED:
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
