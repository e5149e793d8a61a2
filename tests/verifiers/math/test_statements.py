"""What rows and questions say of the form of an answer, and answers that are decided neither way."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from strop.base.types import Problem
from strop.data.columns import Columns
from strop.verifiers.answer import Answer
from strop.verifiers.combined import AnyOf
from strop.verifiers.coverage import Coverage
from strop.verifiers.math_verifier import MathVerifier
from strop_verify.math import MathSettings
from strop_verify.math.settings import stated_settings
from strop_verify.math.verifier import verify_here
from strop_verify.verdict import Status

OLYMPIAD = {"id": 1, "question": "Find all $q$.", "is_multiple_answer": True, "unit": None, "error": None}
INTEGRAL = r"\int_0^1 x\,dx"  # left to be done, so nothing is proved


def outcome(reference: str, answer: str, question: str = "", **form: Any) -> Status:
    settings = stated_settings(MathSettings(), question, form)
    return verify_here(reference, rf"\boxed{{{answer}}}", settings).status


@pytest.mark.parametrize(
    ("reference", "answer", "question", "form", "right"),
    [
        ("1, 2", "2, 1", "Find all solutions.", {}, True),
        ("1, 2", "2, 1", "Order them from least to greatest", {}, False),
        ("1, 2", "2, 1", "Find $x$ and $y$, respectively.", {}, False),
        ("1, 2", "2, 1", "Find all, in increasing order.", {"is_multiple_answer": True}, True),
        ("4.2", "4.25", "", {"error": "1e-1"}, True), ("4.2", "4.35", "", {"error": "1e-1"}, False),
        ("4.2", "4.25", "", {}, False), ("4.2", "4.25", "", {"error": "a lot"}, False),
        ("1, 2", "1.05, 2.15", "", {"error": "0.1,0.2"}, True), ("1, 2", "2.15, 1.05", "", {"error": "0.1,0.2"}, True),
        ("1, 2", "1.15, 2.05", "", {"error": "0.1,0.2"}, False), ("1", "1.05", "", {"error": "0.1,0.2"}, False),
        ("$2, 5$", "2, 5", "", {"answer_type": "Tuple"}, True), ("$2, 5$", "5, 2", "", {"answer_type": "Tuple"}, False),
        ("5", "5 km", "", {"unit": "km"}, True), ("5", "5000 m", "", {"unit": "$km$"}, True),
        ("5", "5", "", {"unit": "km"}, True), ("5", "5 m", "", {"unit": "km"}, False),
        ("30", r"30^\circ", "", {"unit": r"^{\circ}"}, True),
        ("30", r"30\text{ rad}", "", {"unit": r"^{\circ}"}, False),
        ("5", r"5\text{ wombats}", "", {"unit": "heaps"}, True),
        ("(0,1)", "0<x<1", "Give it in interval notation.", {}, True), ("(0,1)", "0<x<1", "", {}, False),
        ("x^2", "x^2+C", "Find an antiderivative of $2x$.", {}, True), ("x^2", "x^2+C", "", {}, False),
        ("x^2", "x^2+x+C", "Find an antiderivative of $2x$.", {}, False),
        (r"\sqrt{\frac ab}", r"\frac{\sqrt{ab}}{b}", "Let $a, b > 0$.", {}, True),
        (r"\sqrt{\frac ab}", r"\frac{\sqrt{ab}}{b}", "for positive real numbers $a$ and $b$", {}, True),
        (r"\sqrt{\frac ab}", r"\frac{\sqrt{ab}}{b}", "", {}, False),
        ("x", "|x|", "Let $x > 0$.", {}, True), ("x", "|x|", "Let $x > 0.5y$.", {}, False),
    ],
)  # fmt: skip
def test_what_is_said_of_an_answer(reference: str, answer: str, question: str, form: Any, right: bool) -> None:
    assert (outcome(reference, answer, question, **form) is Status.CORRECT) is right


def test_a_row_of_olympiadbench() -> None:
    fields = Columns().fields({**OLYMPIAD, "final_answer": ["$1$", "$-2$"]}, "math")
    assert (fields.reference, fields.extra) == ("$1$, $-2$", {"answer_form": {"is_multiple_answer": True}})
    row = {**OLYMPIAD, "is_multiple_answer": False, "final_answer": ["4.2"], "error": "1e-1"}
    single = Columns().fields(row, "math")
    assert (single.reference, single.extra["answer_form"]["error"]) == ("4.2", "1e-1")
    beside = {"prompt": "How long?", "reward_model": {"ground_truth": "5"}, "extra_info": {"unit": "m", "index": 3}}
    assert Columns().fields(beside, "math").extra == {"answer_form": {"unit": "m"}}


def judged(verifier: MathVerifier, reference: str, answer: str) -> Any:
    return verifier.judge(Problem("p", "?", reference), rf"\boxed{{{answer}}}", False)


def test_an_undecided_answer_is_left_out_or_wrong_or_asked() -> None:
    left_out = judged(MathVerifier(), INTEGRAL, "1/2")
    assert (left_out.status, left_out.usable, left_out.failed) == (Status.UNDECIDED, False, False)
    wrong = judged(MathVerifier(undecided="wrong"), INTEGRAL, "1/2")
    assert (wrong.status, wrong.usable, wrong.undecided) == (Status.WRONG, True, left_out.undecided)
    asks = MathVerifier(undecided="ask", second=Answer())
    asked = judged(asks, INTEGRAL, "1/2")
    assert (asked.status, asked.undecided) == (Status.WRONG, left_out.undecided) and left_out.undecided
    assert judged(asks, "1/2", "0.5") == judged(MathVerifier(), "1/2", "0.5")
    assert AnyOf(members=(Answer(), MathVerifier())).judge(
        Problem("p", "?", INTEGRAL), r"\boxed{1/2}", False
    ).status is Status.UNDECIDED  # fmt: skip


def test_who_is_asked_is_named() -> None:
    for fields in ({"undecided": "ask"}, {"second": Answer()}):
        with pytest.raises(ValidationError, match="belong together"):
            MathVerifier(**fields)


def test_words_are_no_number() -> None:
    assert judged(MathVerifier(), "42", r"\text{I do not know}").status is Status.WRONG


def test_references_that_are_compared_only_as_texts() -> None:
    found = Coverage(MathVerifier())
    for reference in ("5", r"\frac12", "(0,1]", "x^2+C", r"\text{the mitochondria}", INTEGRAL, "2x + 3 = 7", "(B)"):
        found.add(Problem("p", "?", reference))
    assert found.lines == [
        r"1 of 8 references, such as \text{the mitochondria}: words are compared as words",
        rf"1 of 8 references, such as {INTEGRAL}: what is left to be computed is met only by the same operation",
    ]
