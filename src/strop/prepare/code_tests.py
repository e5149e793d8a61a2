"""Counting and choosing tests of programs in the form of `verifiers.code.forms`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strop_verify.code.forms import StandardTests


def count_tests(reference: Any) -> int:
    """How many tests a reference has; 0 where it has none."""
    if not isinstance(reference, Mapping):
        return 0
    return len(reference.get("asserts") or reference.get("inputs") or ())


def select_tests(reference: StandardTests, places: Sequence[int]) -> StandardTests:
    """The same reference with the tests at `places` only."""
    lists = ("asserts",) if "asserts" in reference else ("inputs", "outputs")
    return {**reference, **{name: [reference[name][place] for place in places] for name in lists}}


def is_code(reference: Any) -> bool:
    """Whether a reference is tests."""
    return isinstance(reference, Mapping) and ("asserts" in reference or "inputs" in reference)
