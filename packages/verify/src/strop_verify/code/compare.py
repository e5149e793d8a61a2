"""Comparing what a program wrote with what is expected, in time linear in its length."""

from __future__ import annotations

import math
import re
from decimal import Decimal

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
