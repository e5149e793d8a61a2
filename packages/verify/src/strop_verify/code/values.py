"""Comparing the value that a function returned, as it came out of the sandbox, with the expected one.

The wire form is compared as it is: building sets and dictionaries from keys that a program chose could take for ever.
"""

from __future__ import annotations

import math
from typing import Any

from strop_verify.sandbox.guest.codec import MAX_DEPTH

SEQUENCES = ("list", "tuple", "deque")
MAPPINGS = ("dict", "OrderedDict", "Counter")


def matches(expected: Any, wire: Any, tolerance: float | None = None, depth: int = 0) -> bool:
    """Whether `wire` is the value `expected`, which came from JSON: tuples count as lists, integer keys as texts.

    A handle matches nothing. Numbers are equal as Python has it (1 == 1.0 == True).
    """
    if depth > MAX_DEPTH:
        return False
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
    return tolerance is not None and _close(expected, number, tolerance)


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


def _number(wire: Any) -> int | float | None:
    if isinstance(wire, int | float):
        return wire
    if isinstance(wire, list) and len(wire) == 2 and isinstance(wire[1], str):
        try:
            if wire[0] == "int":
                return int(wire[1], 16)
            if wire[0] == "float":
                return float(wire[1])
        except ValueError:
            return None
    return None


def _close(expected: Any, number: int | float, tolerance: float) -> bool:
    try:
        return math.isclose(expected, number, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an integer beyond the floats
        return False
