"""Tests by standard input and output: a fresh process, real pipes and a real `__main__` for every test."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from strop_verify.code.outcome import Outcome, ProgramSettings, Tally, outcome_of
from strop_verify.code.tests import Tests
from strop_verify.sandbox.limits import Kind
from strop_verify.sandbox.pool import Slot
from strop_verify.sandbox.process import finish

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
    if tolerance is None:
        return False
    one, other = float(expected), float(written)
    finite = math.isfinite(one) and math.isfinite(other)
    return finite and math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def run_stdio(slot: Slot, program: str, tests: Tests, settings: ProgramSettings, tally: Tally) -> None:
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
