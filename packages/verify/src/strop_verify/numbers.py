"""Simple numbers and texts: when two written answers are the same."""

from __future__ import annotations

import re
from decimal import Decimal

NUMBER = r"[+-]?(?:(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
_NUMBER = re.compile(NUMBER)
_SCIENTIFIC = re.compile(r"([+-]?(?:\d{1,100}(?:\.\d{0,100})?|\.\d{1,100}))(?:[eE]([+-]?\d{1,3}))?")
_POWER_OF_TEN = re.compile(r"\s*(?:\\times|\\cdot|\*|×)\s*10\s*\^\s*\{?\s*([+-]?\d{1,3})\s*\}?")
_LONGEST = 300
_EDGES = " $"
# In this order, and whole runs at once, so that what is replaced leaves nothing that would be replaced.
_LATEX = [
    (re.compile(run), text)
    for run, text in ((r"\\+!", ""), (r"\\+\$", "$"), (r"\{+,\}+", ","), ("\N{MINUS SIGN}", "-"))
]


def normalise(text: str) -> str:
    """An answer without what does not count: outer white space, `$`, trailing periods, runs of white space."""
    for written, plain in _LATEX:
        text = written.sub(plain, text)
    spaced = " ".join(text.split())
    return spaced.lstrip(_EDGES).rstrip(_EDGES + ".") or spaced


def as_number(text: str) -> Decimal | None:
    """The number that a normalised answer is, or None: `+1,250.50` is 1250.5, `1,25` and `1e3` are none."""
    return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def measured_number(text: str | None) -> Decimal | None:
    r"""The number that an answer is: written plainly, as `1.5e3` or as `1.5 \times 10^{3}`; None where it is none."""
    if text is None or len(text) > _LONGEST:
        return None
    plain = _POWER_OF_TEN.sub(r"e\1", normalise(text))
    number = as_number(plain)
    return Decimal(plain) if number is None and _SCIENTIFIC.fullmatch(plain) else number


def canonical(text: str) -> str:
    """One text for all ways of writing the same answer: `007.50` and `7.5` both give `7.5`."""
    plain = normalise(text)
    number = as_number(plain)
    if number is None:
        return plain
    digits = format(number, "f")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return "0" if digits == "-0" else digits


def same_answer(first: str, second: str) -> bool:
    """Whether two answers are the same number, or else the same text."""
    return canonical(first) == canonical(second)
