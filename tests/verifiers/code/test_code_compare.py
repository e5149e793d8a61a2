"""Comparing outputs and values in the trusted process: right, and quick whatever a program wrote."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop_verify.code.runners import difference, matches
from strop_verify.sandbox.guest.wire import encode


@pytest.mark.parametrize(
    ("expected", "written", "same"),
    [
        ("1\n2", "1\n2\n", True),
        ("1\r\n2\r\n", "1\n2", True),
        ("5", "  5  ", True),
        ("", "\n", True),
        ("1\n2", "1\n\n2", False),
        ("a b", "a  b", False),
        ("1 2", "1   2.0", True),
        ("1.50", "1.5", True),
        ("1e3", "1000", True),
        ("50000000000000000", "50000000000000001", False),
        ("0.1", "0.10000000000000000001", False),
        ("YES", "yes", False),
        ("x 1.0", "x 1", False),
        ("nan", "NaN", False),
        ("nan", "nan", True),
        ("1000", "1_000", False),
        ("3", "٣", False),
        ("1\n2", "2\n1", False),
        ("1", "", False),
        ("-0", "0", True),
    ],
)
def test_outputs(expected: str, written: str, same: bool) -> None:
    assert (difference(expected, written) == "") is same


def test_tolerance_and_tokens_are_options() -> None:
    assert difference("x 0.3", "x 0.30000000001", tolerance=1e-6) == ""
    assert difference("0.3", "0.31", tolerance=1e-6) != ""
    assert difference("1000000", "1000001", tolerance=1e-6) != ""
    assert difference("1000000", "1000001.0", tolerance=1e-6) == ""
    assert difference("1e999", "1e998", tolerance=1e-6) != ""
    assert difference("1 2 x", "1\n2.0\nx\n", tokens=True) == ""
    assert difference("1 2", "1 2 3", tokens=True) != ""
    assert difference("1 2 3", "1 2\n4") == "2 lines for 1"


@given(st.text(alphabet="ab 12.\n\r\t", max_size=30))
def test_an_output_is_the_same_as_itself(text: str) -> None:
    assert difference(text, text) == ""
    assert difference(text, text + "\n") == ""
    assert difference(text.replace("\n", "\r\n"), text) == ""


@pytest.mark.parametrize("written", ["1" * 10**6, "1e999999999", "1 " * 10**6, "\n" * 10**6, "-" * 10**6, "." * 10**6])
def test_comparing_is_quick(written: str) -> None:
    began = time.thread_time()
    assert difference("1" * 10**6 + "2", written) != ""
    assert difference("17", written, tolerance=1e-9) != ""
    assert time.thread_time() - began < 3.0


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


def refuse(value: Any) -> Any:
    raise AssertionError(value)


@given(json_values, json_values)
def test_values_match_when_python_says_equal(one: Any, other: Any) -> None:
    assert matches(one, encode(one, refuse))
    assert matches(one, encode(other, refuse)) is (one == other)


def test_tuples_count_as_lists_and_handles_as_nothing() -> None:
    assert matches([1, [2]], ["tuple", [1, ["tuple", [2]]]])
    for wire in (["handle", 0, None, "int"], ["back", 0], ["list"], ["dict", [[1]]], ["dict", [["a", 1], ["a", 1]]], 3):
        assert not matches([3], wire)
        assert not matches({"a": 1, "b": 1}, wire)
        assert not matches(None, wire)


def test_chosen_keys_cost_nothing() -> None:
    """Integers that all have the same hash; a dictionary of them would take minutes to build."""
    wire = ["dict", [[["int", hex(k * (2**61 - 1))], 0] for k in range(200_000)]]
    began = time.thread_time()
    assert not matches({"a": 1}, wire)
    assert not matches([1], ["set", wire[1]])
    assert time.thread_time() - began < 1.0
