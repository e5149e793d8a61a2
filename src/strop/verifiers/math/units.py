r"""What an answer counts or is measured in, taken off its end: `5\text{ cm}^2`, `17 red balls`, `12 km/h` are numbers.

A letter of mathematics is no unit: `2n` and `x + 3t` are not 2 and x + 3, and words that compute, compare or set a
condition (`5 thousand`, `2 if n is even`) stay where they are. Only an answer that is held against a plain value may
have its unit in a bare letter (`5m`, with `lone_letters`). Every expression here is linear in the length of the text.
"""

from __future__ import annotations

import re

_WORDS = (
    "degrees?", "cents?", "dollars?", "euros?", "pounds?", "units?", "meters?", "metres?", "centimeters?",
    "centimetres?", "millimeters?", "millimetres?", "kilometers?", "kilometres?", "inch", "inches", "feet", "foot",
    "yards?", "miles?", "grams?", "kilograms?", "ounces?", "seconds?", "secs?", "minutes?", "mins?", "hours?", "hrs?",
    "days?", "weeks?", "months?", "years?", "liters?", "litres?", "gallons?", "radians?", "joules?", "newtons?",
    "watts?", "people", "persons?", "students?", "ways?", "square", "cubic", "points?", "times", "digits?", "pieces?",
    "coins?", "books?", "apples?", "items?", "cubes?", "tiles?", "cards?", "balls?", "marbles?", "volts?", "amps?",
    "men", "cm", "mm", "km", "kg", "ft", "yd", "lbs?", "oz", "mph", "kph", "kmh", "hz", "usd", "degs?", "rad",
    "sq", "cu", "per", "km/h", "km/hr", "cm/s", "ft/s", "mi/h",
)  # fmt: skip
# Letters and pairs of letters that may as well be names; the last line only after a space.
_LETTERS = ("m", "s", "g", "h", "l", "L", "J", "N", "W", "mg", "ml", "mL", "mi", "in", "pa", "Pa")
_SPACED = ("m", "s", "g", "L", "mg", "ml", "mL", "mi", "in", "m/s", "m/min")
_POWER = r"(?:\s?\^\s?(?:\{\s?[23]\s?\}|[23])|(?<=[a-z])[23])?"
_TAIL = r"[\s.]*"
_UNIT = rf"(?:{'|'.join(sorted(_WORDS, key=len, reverse=True))})(?![A-Za-z]){_POWER}"
SPACE = r"(?:\s|\\[,;: ]|~)"  # also where LaTeX sees one
_AFTER = r"(?<=[\d}%)])"
_WORDS_AT_END = re.compile(rf"{_AFTER}(?:(?:{SPACE}|/){{0,3}}{_UNIT}{_TAIL}){{1,4}}$", re.IGNORECASE)
_SPACED_AT_END = re.compile(rf"(?<=\d){SPACE}{{1,3}}(?:{'|'.join(_SPACED)}){_POWER}{_TAIL}$")
_LETTER = "|".join(sorted(_LETTERS, key=len, reverse=True))
_LETTERS_AT_END = re.compile(
    rf"{_AFTER}{SPACE}{{0,3}}(?:{_LETTER}|\\Omega|\\mu){_POWER}(?:/(?:{_LETTER}|min){_POWER})?{_TAIL}$"
)
_UPRIGHT_AT_END = re.compile(
    r"(?:[/.\s~]|\\[,;:! ]|\\cdot|\\quad|\\qquad){0,6}"
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mbox|hbox|operatorname|rm)"
    r"\s?\{([^{}]{0,80})\}\s?(?:\^\s?(?:\{\s?-?[1-9]\s?\}|[1-9]|\{\s?\\circ\s?\}|\\circ))?[\s.]*$"
)
_UPRIGHT = re.compile(r"[A-Za-z/.\s~()°-]*(?:\^?[23])?[\s.)]*")
_UPRIGHT_LETTERS = re.compile(r"(?:^|[/\s(])(?![msghlLtNnJjWwVAKCFkMG](?![A-Za-z]))[A-Za-z](?![A-Za-z])")
_NUMBER = re.compile(r"[\d})%]\s*$|\\(?:pi|circ|mu)\s*$")
_DEGREES_AT_END = re.compile(r"(?<=\d)\s?\^\s?(?:\{\s?\\circ\s?\}|\\circ)\s?[CF][\s.]*$")
# A number and what it counts: `42 square`, `17 red balls`; not "3 or 4", "2 less than x", "3 xy".
_COUNTED = re.compile(r"([+-]?(?:\d[\d,]*(?:\.\d+)?|\\frac\{\d+\}\{\d+\}|\d+/\d+)%?)((?: [A-Za-z]{2,30}){1,4})")
_KNOWN = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(_WORDS)})(?![A-Za-z])", re.IGNORECASE)
_COMPUTES = re.compile(
    r"\b(?:or|and|to|mod|modulo|not|less|more|fewer|greater|than|if|but|pi|sqrt|sin|cos|tan|log|ln|exp|base|over|plus|minus|"
    r"by|divided|multiplied|squared|cubed|power|root|factorial|choose|dozens?|score|half|halves|thirds?|quarters?|fourths?|"
    r"fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|\w{1,20}redths?|thousandths?|hundreds?|thousands?|millions?|"
    r"billions?|trillions?|for|when|where|whenever|unless|otherwise|except|from|through|until|between|one|two|three|four|"
    r"five|six|seven|eight|nine|ten|zero|negative|about|mixed|percent|percentage|pct|point\s+\w{1,20})\b",
    re.IGNORECASE,
)


def without_units(text: str, lone_letters: bool = False) -> str:
    r"""`text` without the unit at its end; as it is where there is none, or nothing but one.

    Args:
        text: an answer, in LaTeX or plain.
        lone_letters: letters that may as well be names count as units, too (`5m`, `2\sqrt{3}\,m`).
    """
    kept = text
    for _ in range(4):
        shorter = _without_last(kept, lone_letters)
        if shorter == kept or not shorter:
            break
        kept = shorter
    return kept


def _without_last(text: str, lone_letters: bool) -> str:
    upright = _UPRIGHT_AT_END.search(text, max(0, len(text) - 200))
    if upright is not None and _is_unit(upright.group(1)):
        before = text[: upright.start()].rstrip()
        measured = _NUMBER.search(before[-20:]) or _UPRIGHT_AT_END.search(before, max(0, len(before) - 200))
        if before and (measured or _KNOWN.search(upright.group(1))):
            return before
    tail = max(0, len(text) - 80)  # no unit is longer
    for pattern in (_WORDS_AT_END, _SPACED_AT_END, _DEGREES_AT_END, *((_LETTERS_AT_END,) if lone_letters else ())):
        found = pattern.search(text, tail)
        if found is not None and found.start() > 0:
            return text[: found.start()].rstrip()
    return text


def _is_unit(words: str) -> bool:
    return bool(_UPRIGHT.fullmatch(words)) and not _COMPUTES.search(words) and not _UPRIGHT_LETTERS.search(words)


def counted(text: str) -> str | None:
    """The number of a text that is a number and what it counts, and nothing else."""
    match = _COUNTED.fullmatch(text)
    if match is None or _COMPUTES.search(match.group(2)):
        return None
    words = match.group(2).split()
    return match.group(1) if any(len(word) > 3 or _KNOWN.fullmatch(word) for word in words) else None
