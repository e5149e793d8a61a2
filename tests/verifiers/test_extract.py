"""Finding answers: the last balanced box after the thinking, answer tags, numbers, in linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop_verify.extract import after_thinking, answer_tag, extract_answer, last_boxed, last_number


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} or \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed{ 7 }", "7"),
        (r"\boxed{3} then \boxed{4", "3"),
        (r"\boxed{ \boxed{5}", "5"),
        (r"\boxed{1+\boxed{2}}", r"1+\boxed{2}"),
        (r"\boxed{\fbox{3}}", "3"),
        (r"\boxed{ \boxed{\fbox{3}} }", "3"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"{ \boxed{5} }}", "5"),
        (r"\boxed{}", ""),
        (r"\boxed 5", None),
        (r"so $\boxed 8$.", "8"),
        (r"\(\boxed -3 \)", "-3"),
        (r"\\boxed{5}", None),  # a line break, then the word boxed
        (r"\unboxed{5}", None),
        ("no box", None),
    ],
)
def test_last_boxed(text: str, found: str | None) -> None:
    assert last_boxed(text) == found


balanced = st.recursive(
    st.text(alphabet="abc123 +-", min_size=1, max_size=5),
    lambda inner: st.tuples(inner, inner, inner).map(lambda parts: f"{parts[0]}{{{parts[1]}}}{parts[2]}"),
    max_leaves=8,
)


@given(
    before=st.text(alphabet=r"ab {}\$", max_size=20), content=balanced, after=st.text(alphabet=r"ab {$", max_size=20)
)
def test_any_balanced_box_is_found(before: str, content: str, after: str) -> None:
    """Whatever stands before it, but a backslash that would make the box a line break, and whatever opens after it."""
    assert last_boxed(f"{before} \\boxed{{{content}}}{after}") == content.strip()


@given(st.text(alphabet=r"\boxedfsanwr</>{}1, .", max_size=80))
def test_nothing_that_is_written_breaks_extraction(text: str) -> None:
    for where in ("boxed", "answer_tag", "any", "last_number"):
        found = extract_answer(text, where)
        assert found is None or found in text


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("no thinking", "no thinking"),
        ("<think>a</think> b", " b"),
        ("a</think> b", " b"),
        ("<think>a</think> b <think> c </think> d", " d"),
        ("<think>a", None),
        ("<think>a</think> b <think> c", None),
        ("", ""),
    ],
)
def test_after_thinking(text: str, rest: str | None) -> None:
    assert after_thinking(text) == rest


def test_a_box_inside_the_thinking_does_not_count() -> None:
    assert extract_answer(r"<think>\boxed{1}</think> so \boxed{2}", "boxed") == "2"
    assert extract_answer(r"<think>\boxed{1}</think> so 2", "boxed") is None
    assert extract_answer(r"<think>\boxed{1}", "any") is None


@pytest.mark.parametrize(
    ("text", "found", "with_box"),
    [
        ("<answer> 7 </answer>", "7", None),
        (r"<answer>it is \boxed{7}</answer>", "7", "7"),
        (r"<answer>\boxed{6}</answer> <answer>7</answer>", "7", None),
        ("<answer>6</answer> <answer>7", "6", None),
        ("<answer><answer>7</answer>", "7", None),
        ("<answer></answer>", None, None),
        ("7</answer>", None, None),
        (r"\boxed{7}", None, None),
    ],
)
def test_answer_tag(text: str, found: str | None, with_box: str | None) -> None:
    assert answer_tag(text) == found
    assert answer_tag(text, box_required=True) == with_box


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It costs $1,234.50, so", "1,234.50"),
        ("3-5", "5"),
        ("x = -5.", "-5"),
        ("x = \N{MINUS SIGN}5", "-5"),
        ("x5 then A1B", None),
        ("12,34", "34"),
        ("1.2.3", "1.2"),
        ("about .5", ".5"),
        ("none", None),
    ],
)
def test_last_number(text: str, found: str | None) -> None:
    assert last_number(text) == found


def test_any_takes_the_first_kind_that_is_there() -> None:
    assert extract_answer(r"<answer>2</answer> \boxed{1} 3", "any") == "1"
    assert extract_answer("<answer>2</answer> 3", "any") == "2"
    assert extract_answer("then 3", "any") == "3"


@pytest.mark.parametrize(
    "piece", [r"\boxed{", r"\boxed{}", "{", "}", "<answer>", "</answer>", "<think>", "1,234", "1", r"\boxed ", "\\"]
)
def test_a_long_response_takes_linear_time(piece: str) -> None:
    began = time.thread_time()
    for where in ("boxed", "answer_tag", "any", "last_number"):
        extract_answer(piece * 20_000, where)
    extract_answer(r"\boxed{" * 10_000 + "1" + "}" * 10_000, "boxed")
    assert time.thread_time() - began < 2.0
