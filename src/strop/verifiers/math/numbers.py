"""Plain numbers among canonical answers: compared exactly or to the asked precision, without any parser."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

_DECIMAL = r"(?:\d{1,60}(?:\.\d{1,60})?|\.\d{1,60})"
_PLAIN = re.compile(rf"([+-]?)({_DECIMAL})(%?)")
_SLASH = re.compile(r"([+-]?)(\d{1,60})/(\d{1,60})")
_FRACTION = re.compile(r"([+-]?)\\frac\{([+-]?)(\d{1,60})\}\{(\d{1,60})\}")
_SCIENTIFIC = re.compile(rf"([+-]?)({_DECIMAL})\\(?:times|cdot)10\^(?:\{{([+-]?\d{{1,3}})\}}|(\d))")
_BASE = re.compile(r"([0-9A-Za-z]{1,200})_\{?(?:\\text\{)?(\d{1,2})\}?\}?")


class Plain(NamedTuple):
    """A number; `inexact` where it was written with a decimal point; `percent` where a percent sign follows it."""

    value: Fraction
    inexact: bool
    percent: bool


class Based(NamedTuple):
    """Digits with the base they are written in: `2516_8`."""

    digits: str
    base: int


def plain_number(text: str) -> Plain | None:
    r"""The number that a canonical answer is: `-1.50`, `28%`, `3/4`, `\\frac{3}{4}`, `6.02\\times10^{23}`; else None.

    What is written with a power of ten is exact: decimal places do not say how near another number must come to it.
    """
    match = _PLAIN.fullmatch(text)
    if match is not None:
        sign, digits, percent = match.groups()
        value = Fraction(digits if digits[0] != "." else f"0{digits}")
        return Plain(-value if sign == "-" else value, "." in digits, bool(percent))
    match = _SLASH.fullmatch(text)
    if match is not None and int(match.group(3)):
        value = Fraction(int(match.group(2)), int(match.group(3)))
        return Plain(-value if match.group(1) == "-" else value, False, False)
    match = _FRACTION.fullmatch(text)
    if match is not None and int(match.group(4)):
        value = Fraction(int(match.group(3)), int(match.group(4)))
        negative = (match.group(1) == "-") != (match.group(2) == "-")
        return Plain(-value if negative else value, False, False)
    match = _SCIENTIFIC.fullmatch(text)
    if match is not None:
        sign, digits, braced, plain = match.groups()
        value = Fraction(digits if digits[0] != "." else f"0{digits}") * Fraction(10) ** int(braced or plain)
        return Plain(-value if sign == "-" else value, False, False)
    return None


def same_number(gold: Plain, given: Plain, precision: int) -> bool:
    """Whether two numbers are equal; rounded to `precision` decimal places where either has a decimal point.

    A percentage also equals the bare number before its sign, and the hundredth: `28%`, `28` and `0.28`.
    """
    if gold.percent == given.percent:
        return _equal(gold.value, given.value, gold.inexact or given.inexact, precision)
    inexact = gold.inexact or given.inexact
    if _equal(gold.value, given.value, inexact, precision):
        return True
    scaled = (
        (gold.value / 100, given.value) if gold.percent else (gold.value, given.value / 100)
    )  # fmt: skip
    return _equal(*scaled, inexact, precision)


def _equal(first: Fraction, second: Fraction, inexact: bool, precision: int) -> bool:
    if inexact:
        return round(first, precision) == round(second, precision)
    return first == second


def based_number(text: str) -> Based | None:
    """Digits with a subscript base of 2 to 36, all of them digits of that base: `2516_8`; None for anything else."""
    match = _BASE.fullmatch(text)
    if match is None:
        return None
    digits, base = match.group(1).upper().lstrip("0") or "0", int(match.group(2))
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits) or not digits[0].isdigit():
        return None
    return Based(digits, base)
