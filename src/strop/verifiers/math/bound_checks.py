"""What is refused before it is parsed: an answer can be short and still name more work than any machine can do.

Where something passes that these checks cannot foresee, the worker that judges it is killed from outside.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from strop.verifiers.math.bounds import Bounds
from strop.verifiers.math.normalise import closing

_EXPRESSION = re.compile(r"[\d.\s+\-*/^()×÷]+")
_DIGITS = re.compile(r"\d+")
_DIGITS_AT_END = re.compile(r"(\d+)\s*$")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_NUMBERS = re.compile(r"\d[\d,]*")
_FACTORIAL = re.compile(r"!(?:\s*!)*(?!=)")
_BINOMIAL = re.compile(r"\\[dt]?binom|\\choose|\\[Cc]omb")
_POWER = re.compile(r"\^|\*\*")
_NEXT_POWER = re.compile(r"\s*(?:\^|\*\*)")
_ATOM = re.compile(r"\s*(\d+|-\s*\d+|\\?[A-Za-z]+|.)", re.DOTALL)
_SUM = re.compile(r"\\(?:sum|prod)")
_LIMITS = re.compile(r"\\(?:sum|prod)\s*(?:\\limits\s*)?_\{[^{}=]*=?\s*(-?\d+)\s*\}\s*\^\s*(?:\{\s*(\d+)\s*\}|(\d+))")
_HUGE = 1e300
_LONGEST = 280  # digits that a float can hold
_STOREYS = 4  # of a tower of powers
_FACTORIAL_IN_EXPONENT = 8
_NESTED_FACTORIAL = 6  # (6!)! has 1747 digits
_REPEATED = 1000  # of a number with several `!`


def _too_deep(text: str, bounds: Bounds) -> str | None:
    round_depth = brace_depth = 0
    for character in text:
        if character in "([":
            round_depth += 1
            if round_depth > bounds.parentheses:
                return f"more than {bounds.parentheses} nested parentheses"
        elif character in ")]":
            round_depth = max(round_depth - 1, 0)
        elif character == "{":
            brace_depth += 1
            if brace_depth > bounds.braces:
                return f"more than {bounds.braces} nested braces"
        elif character == "}":
            brace_depth = max(brace_depth - 1, 0)
    return None


def _too_many_digits(text: str, bounds: Bounds) -> str | None:
    longest = max((len(run.group()) for run in _DIGITS.finditer(text)), default=0)
    return f"a number of {longest} digits" if longest > bounds.digits else None


def _too_high(text: str, bounds: Bounds) -> str | None:
    """A literal exponent that is too large, or a tower: the value of an exponent is bounded like a literal."""
    for power in _POWER.finditer(text):
        exponent = _argument(text, power.end())
        size = _HUGE if exponent is None else _size(exponent)
        if size > bounds.exponent:
            return "too large an exponent"
        base = _group_before(text, power.start())
        if base is not None:  # powers of powers multiply
            inner = max((_size(_argument(base, each.end()) or "") for each in _POWER.finditer(base)), default=0.0)
            if size * inner > bounds.exponent:
                return "too large a power of powers"
    return None


def _argument(text: str, begin: int) -> str | None:
    """What follows a `^`: a group, or digits and what is raised over them in turn; None for a tower of many storeys."""
    return _argument_to(text, begin)[0]


def _argument_to(text: str, begin: int, height: int = 0) -> tuple[str | None, int]:
    """The argument of a `^`, and where it ends."""
    if height > _STOREYS:
        return None, len(text)
    match = _ATOM.match(text, begin)
    if match is None:
        return "", len(text)
    inner, after = match.group(1), match.end()
    if inner in "{(":
        end = closing(text, match.start(1))
        inner, after = text[match.end() : end], len(text) if end is None else end + 1
    following = _NEXT_POWER.match(text, after)
    if following is None:
        return inner, after
    above, after = _argument_to(text, following.end(), height + 1)
    return (None if above is None else f"{inner}^{{{above}}}"), after


def _group_before(text: str, end: int) -> str | None:
    """The bracketed group that ends right before `end`, without its brackets; None where there is no group."""
    place = end - 1
    while place >= 0 and text[place].isspace():
        place -= 1
    if place < 0 or text[place] not in ")}]":
        return None
    closer = text[place]
    opener = {")": "(", "}": "{", "]": "["}[closer]
    depth = 0
    for begin in range(place, -1, -1):
        if text[begin] == closer:
            depth += 1
        elif text[begin] == opener:
            depth -= 1
            if depth == 0:
                return text[begin + 1 : place]
    return text[:place]


def _numbers(text: str) -> list[float]:
    return [float(run.group().replace(",", "")[:_LONGEST]) for run in _NUMBERS.finditer(text)]


@lru_cache(maxsize=512)
def _size(expression: str) -> float:
    """An upper guess of the value of an expression: its largest number, or the largest power of one in it."""
    numbers = _numbers(expression)
    if not numbers:
        return 0.0
    largest = max(numbers)
    if "!" in expression and largest > _FACTORIAL_IN_EXPONENT:
        return _HUGE
    power = _POWER.search(expression)
    while power is not None:
        argument, end = _argument_to(expression, power.end())
        if argument is None:
            return _HUGE
        digits = _DIGITS_AT_END.search(expression, max(power.start() - _LONGEST, 0), power.start())
        group = _group_before(expression, power.start())
        base = float(digits.group(1)) if digits is not None else max(_numbers(group or ""), default=1.0)
        exponent = _size(argument)
        if base > 1 and exponent * math.log10(base) > 300:
            return _HUGE
        largest = max(largest, exponent, base**exponent)
        power = _POWER.search(expression, end)  # the powers in the argument are in its size: each depth is seen once
    return largest


def _too_large_factorial(text: str, bounds: Bounds) -> str | None:
    for mark in _FACTORIAL.finditer(text):
        group = _group_before(text, mark.start())
        if group is None:
            digits = _DIGITS_AT_END.search(text, max(mark.start() - _LONGEST, 0), mark.start())
            value = float(digits.group(1)) if digits is not None else 0.0
            large = value > bounds.factorial or (mark.group().count("!") > 1 and value > _REPEATED)
        elif "!" in group:
            large = max(_numbers(group), default=0.0) > _NESTED_FACTORIAL
        elif _POWER.search(group):
            large = _size(group) > bounds.factorial
        else:
            large = math.prod(max(number, 1.0) for number in _numbers(group)[:20]) > bounds.factorial
        if large:
            return "too large a factorial"
    return None


def _too_large_binomial(text: str, bounds: Bounds) -> str | None:
    match = _BINOMIAL.search(text)
    if match is None:
        return None
    near = text[max(match.start() - 40, 0) : match.end() + 120]
    if max(_numbers(text), default=0.0) > bounds.binomial or _size(near) > bounds.binomial:
        return "too large a binomial coefficient"
    return None


def _too_long_sum(text: str, bounds: Bounds) -> str | None:
    if not _SUM.search(text):
        return None
    for match in _LIMITS.finditer(text):
        first, last = match.group(1), match.group(2) or match.group(3)
        if len(last) > 12 or len(first) > 12 or int(last) - int(first) > bounds.terms:
            return "a sum of too many terms"
    if max(_numbers(text), default=0.0) > bounds.terms or any(
        _size(_argument(text, power.end()) or "") > bounds.terms for power in _POWER.finditer(text)
    ):
        return "a sum over too large numbers"
    return None


# A sum is looked at before exponents: its upper limit is written like one.
_CHECKS = (_too_deep, _too_many_digits, _too_long_sum, _too_high, _too_large_factorial, _too_large_binomial)


def broken_bound(text: str, bounds: Bounds) -> str | None:
    """Which bound an answer breaks, or None."""
    if len(text) > bounds.characters:
        return f"beyond the bounds: {len(text)} characters"
    for check in _CHECKS:
        reason = check(text, bounds)
        if reason is not None:
            return f"beyond the bounds: {reason}"
    if len(_PLUS_MINUS.findall(text)) > bounds.signs:
        return "beyond the bounds: too many ±"
    return None


def broken_bound_in_prose(text: str, bounds: Bounds) -> str | None:
    """Which bound a text breaks in which math-verify is to look for an answer: its search backtracks over sums."""
    run = max((match.end() - match.start() for match in _EXPRESSION.finditer(text)), default=0)
    if run > bounds.expression:
        return f"beyond the bounds: an expression of {run} characters"
    return broken_bound(text, bounds)
