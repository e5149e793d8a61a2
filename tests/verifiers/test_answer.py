"""`Answer`: equal numbers and texts, and what it calls unparsed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strop.base.types import Problem
from strop.verifiers.answer import Answer
from strop_verify.extract import Where, as_number, canonical, normalise
from strop_verify.verdict import Status


def problem(reference: Any, **extra: Any) -> Problem:
    return Problem("p", "?", reference, extra=extra)


@pytest.mark.parametrize(
    "reference", [r"\boxed{1,250}", r"Add: \boxed{7} and \boxed{1250}.", "1000 + 250\n#### 1,250"]
)
def test_a_worked_solution_states_its_answer(reference: str) -> None:
    """As open-r1 and GSM8K write references, where the column is named by hand."""
    right, wrong = (Answer()(problem(reference), rf"\boxed{{{answer}}}") for answer in (1250, 7))
    assert (right.status, wrong.status) == (Status.CORRECT, Status.WRONG)
    assert "Add" not in wrong.detail


@pytest.mark.parametrize(
    ("written", "reference", "same"),
    [
        ("42", "42", True),
        ("42.", "42", True),
        ("+42", "42", True),
        ("007", "7", True),
        ("1,250", "1250", True),
        ("1{,}250", "1250", True),
        (r"1,\!250", "1250", True),
        ("1,25", "125", False),
        ("12,50", "1250", False),
        ("0,111", "111", False),
        ("1,2345", "12345", False),
        ("42.50", "42.5", True),
        (".5", "0.5", True),
        ("-0", "0", True),
        ("\N{MINUS SIGN}3", "-3", True),
        ("$5$", "5", True),
        (r"\$5", "5", True),
        ("1e3", "1000", False),
        ("4 2", "42", False),
        ("0.1", "0.10000000000000000001", False),
        ("x + 1", "x  +\n1", True),
        ("x+1", "x + 1", False),
        ("Paris", "paris", False),
        ("Paris.", "Paris", True),
        ("5", "V", False),
        ("٤٢", "42", False),  # digits, but no number as we write them
    ],
)
def test_same_answer(written: str, reference: str, same: bool) -> None:
    assert (canonical(written) == canonical(reference)) is same
    assert (canonical(reference) == canonical(written)) is same


numbers = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=3)


@given(number=numbers, other=numbers, zeros=st.integers(0, 3), grouped=st.booleans(), plus=st.booleans())
def test_numbers_are_equal_as_decimals(number: Decimal, other: Decimal, zeros: int, grouped: bool, plus: bool) -> None:
    written = f"{number:,f}" if grouped else f"{number:f}"
    if plus and number >= 0 and not written.startswith("-"):
        written = "+" + ("0" * zeros if not grouped else "") + written
    written += "0" * zeros
    assert as_number(normalise(written)) == number
    assert canonical(written) == canonical(f"{number:f}")
    assert (canonical(written) == canonical(f"{other:f}")) is (number == other)


@given(st.text(max_size=30))
@example("0.\x1f")  # white space beyond ASCII's usual four
def test_the_canonical_form_is_stable(text: str) -> None:
    assert canonical(canonical(text)) == canonical(text)


@pytest.mark.parametrize(
    ("reference", "boxed", "status"),
    [
        ("8", "8", Status.CORRECT),
        (8, "8.0", Status.CORRECT),
        (27.0, "27", Status.CORRECT),
        (1e-7, "0.0000001", Status.CORRECT),
        (0.1, "0.1", Status.CORRECT),
        (8, "9", Status.WRONG),
        ("x", "y", Status.WRONG),
        ([8], "8", Status.ERROR),
        (True, "1", Status.ERROR),
    ],
)
def test_verdicts(reference: Any, boxed: str, status: Status) -> None:
    verdict = Answer()(problem(reference), rf"so \boxed{{{boxed}}}", False)
    assert verdict.status is status
    assert verdict.score == (1.0 if status is Status.CORRECT else 0.0)


def test_no_answer_is_unparsed() -> None:
    assert Answer()(problem("8"), "so 8", False).status is Status.UNPARSED
    assert Answer(extract="last_number")(problem("8"), "so 8", False).status is Status.CORRECT


@pytest.mark.parametrize("extract", ["boxed", "any"])
@pytest.mark.parametrize("text", [r"\boxed{}", r"it is 8: \boxed{ }", r"\boxed{8} or \boxed{}"])
def test_an_empty_box_is_no_answer_and_has_no_vote(extract: Where, text: str) -> None:
    assert Answer()(problem("."), r"\boxed{}", False).score == 0.0
    verifier = Answer(extract=extract)
    assert verifier(problem("8"), text, False).status is Status.UNPARSED
    assert verifier.answer(problem("8"), text) is None


def test_an_empty_box_inside_an_answer_tag_is_no_answer() -> None:
    assert Answer(extract="answer_tag")(problem("8"), r"<answer>\boxed{}</answer>", False).status is Status.UNPARSED


def test_a_think_block_opened_by_the_prompt_must_be_closed() -> None:
    opened = problem("8", opening="<think>")
    assert Answer()(opened, r"3+5 \boxed{8}", False).status is Status.UNPARSED
    assert Answer()(opened, r"3+5</think> \boxed{8}", False).status is Status.CORRECT
    assert Answer().answer(opened, r"3+5 \boxed{8}") is None
    assert Answer()(problem("8"), r"3+5 \boxed{8}", False).status is Status.CORRECT


def test_a_truncated_response_is_judged_as_it_is_unless_told_otherwise() -> None:
    assert Answer()(problem("8"), r"\boxed{8} and", True).score == 1.0
    verdict = Answer(require_stop=True)(problem("8"), r"\boxed{8} and", True)
    assert (verdict.score, verdict.status, verdict.detail) == (0.0, Status.UNPARSED, "truncated")


def test_answers_of_a_majority_vote_are_canonical() -> None:
    assert Answer().answer(problem("8"), r"\boxed{+1,250.0}") == "1250"
    assert Answer().answer(problem("8"), "nothing") is None
