"""The math verifier through its public surface: every rule by value, statuses, references, its cases file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.base.types import Problem, Verdict
from strop.verifiers.math_verifier import MathVerifier
from strop_verify.math import MathSettings
from strop_verify.math.verifier import verify_here
from strop_verify.verdict import Status

CASES = [json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text().splitlines()]


def judged(gold: object, response: str, **fields: object) -> Verdict:
    verifier = MathVerifier.model_validate({"extract": "any", **fields})
    return verifier(Problem("p", "", gold), response)


def boxed(gold: object, answer: str, **fields: object) -> Verdict:
    return judged(gold, rf"So it is $\boxed{{{answer}}}$.", **fields)


def differing(cases: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The cases whose verdict is not the one that they expect."""
    verdicts = [
        verify_here(case["gold"], case["response"], MathSettings(extract="any", gold_form=case.get("form", "bare")))
        for case in cases
    ]
    return [
        (case["gold"], case["response"])
        for case, verdict in zip(cases, verdicts, strict=True)
        if verdict.passed != case["expected"] or verdict.failed
    ]


def test_every_case_of_the_file() -> None:
    assert len(CASES) > 300
    assert differing(CASES) == []


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("3", "2=3"), ("4", "5-1=5=4"), ("55", r"\sum_{k=1}^{10} k"), ("24", r"\prod_{k=1}^{4} k"),
        (r"\frac{1}{2}", r"\int_0^1 x \, dx"), ("1", r"\lim_{x \to 0} \frac{\sin x}{x}"), (r"\{1, 2\}", "(1, 2)"),
        ("(1, 2)", r"\{1, 2\}"),
    ],
)  # fmt: skip
def test_hedges_are_refused_by_their_shape(gold: str, answer: str) -> None:
    assert boxed(gold, answer).status is Status.WRONG


def test_a_derivation_is_no_hedge() -> None:
    assert boxed("11", "x = 5 + 5 + 1 = 11").score == 1.0
    assert boxed("10", r"\sum_{k=1}^{4} k = 10").score == 1.0
    assert boxed("10", r"\binom{5}{2} = 10").score == 1.0


def test_several_answers_for_one_are_wrong() -> None:
    assert judged("3", "x = 2 or x = 3").status is Status.WRONG
    assert judged("3", r"\boxed{2} or \boxed{3}").status is Status.WRONG
    assert boxed("3", r"3 \text{ or } 4").status is Status.WRONG
    assert judged("2,3", "x = 2 or x = 3", extract="any").status is not Status.ERROR


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("2516_8", "2516_{8}", True),
        ("2516_8", "2516", True),  # the question has fixed the base
        ("2516_8", "1358", False),
        ("2516_8", "1358_{10}", False),  # equal in value, in another base
        ("1358", "2516_8", False),
        ("1358", "1358_{10}", True),
    ],
)
def test_number_bases(gold: str, answer: str, same: bool) -> None:
    assert (boxed(gold, answer).score == 1.0) is same


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("1234567", "1,234,567", True),
        ("1234567", "1{,}234{,}567", True),
        ("1234567", r"1\,234\,567", True),
        ("1234567", "1 234 567", True),
        ("123", "1,23", False),
        ("04", "0,4", False),
        ("(1,234)", "1234", False),
        ("3.5", "3,5", True),  # a decimal comma: a list of two could not be right
        ("35", "3,5", False),
    ],
)
def test_only_true_groups_of_thousands_are_closed_up(gold: str, answer: str, same: bool) -> None:
    assert (boxed(gold, answer).score == 1.0) is same


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (r"\boxed{1} so \boxed{2}", Status.CORRECT),
        (r"<think>\boxed{1}</think>\boxed{2}", Status.CORRECT),
        (r"<think>it is \boxed{2}", Status.UNPARSED),
        (r"\fbox{2}", Status.CORRECT),
        ("2", Status.UNPARSED),
        ("<answer>2</answer>", Status.UNPARSED),
        (r"\boxed{}", Status.UNPARSED),
        (r"\boxed{2", Status.UNPARSED),
    ],
)
def test_the_default_extraction_is_the_last_box_after_the_thinking(text: str, status: Status) -> None:
    assert MathVerifier()(Problem("p", "", "2"), text, False).status is status


def test_answer_tags_with_and_without_a_box() -> None:
    for text, fields, status in (
        ("<answer>2</answer>", {}, Status.CORRECT),
        (r"<answer>so \boxed{2}</answer>", {}, Status.CORRECT),
        ("<answer>2</answer>", {"box_required": True}, Status.UNPARSED),
        (r"\boxed{2}", {}, Status.UNPARSED),
    ):
        assert judged("2", text, extract="answer_tag", **fields).status is status


def test_a_think_block_that_the_prompt_opened_and_nothing_closed_scores_nothing() -> None:
    problem = Problem("p", "", "2", extra={"opening": "<think>"})
    verdict = MathVerifier()(problem, r"it is \boxed{2}", True)
    assert (verdict.score, verdict.status) == (0.0, Status.UNPARSED)


def test_boxes_belong_together_unless_words_revise() -> None:
    assert judged("2,3", r"$x=\boxed{2}$ or $x=\boxed{3}$").score == 1.0
    assert judged("3", r"\boxed{2}, but finally \boxed{3}").score == 1.0
    assert judged("2,3", r"\boxed{2}, but finally \boxed{3}").score == 0.0


def test_settings_of_the_comparison() -> None:
    assert boxed("0.3333", r"\frac{1}{3}").score == 0.0
    assert boxed("0.3333", r"\frac{1}{3}", precision=4).score == 1.0
    assert boxed("f(x)", "f(y)").score == 0.0
    assert boxed("f(x)", "f(y)", strict=False).score == 1.0
    assert boxed("(0, 5)", "0 < x < 5").score == 0.0
    assert boxed("(0, 5)", "0 < x < 5", allow_set_relation_comp=True).score == 1.0
    assert boxed("0 < x < 5", "(0, 5)").score == 1.0


def test_a_raw_reference_is_found_in_its_own_text() -> None:
    raw = "Hence $x = 3$, and the final answer is $\\frac{1}{2}$. I hope it is correct."
    assert boxed(raw, "0.5", gold_form="raw").score == 1.0
    assert boxed(r"so \boxed{1} and \boxed{-2}.", "-2, 1", gold_form="raw").score == 1.0


def test_functions_are_compared_where_they_are_real() -> None:
    assert boxed(r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}").score == 1.0
    assert boxed("|x|", "x").score == 0.0
    assert boxed("|x|", r"\sqrt{x^2}").score == 1.0


@pytest.mark.parametrize("reference", [["3"], True, None, {"a": 1}])
def test_references_that_are_no_answers(reference: object) -> None:
    verdict = MathVerifier()(Problem("p", "", reference), r"\boxed{3}")
    assert (verdict.score, verdict.status) == (0.0, Status.ERROR)
    assert MathVerifier().refuses(Problem("p", "", reference)) is not None


def test_numbers_are_references_too() -> None:
    assert boxed(3, "3").score == 1.0
    assert boxed(0.5, r"\frac12").score == 1.0


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("", "is empty"),
        (r"\frac{1}{", "cannot be parsed"),
        ("9^{9^{9^9}}", "beyond the bounds"),
        (r"\frac{1}{0}", "has no value"),
    ],
)
def test_references_that_are_refused_when_data_are_loaded(reference: str, complaint: str) -> None:
    assert complaint in (MathVerifier().refuses(Problem("p", "", reference)) or "")


@pytest.mark.parametrize("reference", ["1/2", r"\frac{1}{2}", "x^2+1", "(1, 2]", "B", r"\text{Evelyn}", "2516_8", 7])
def test_references_that_are_taken(reference: object) -> None:
    assert MathVerifier().refuses(Problem("p", "", reference)) is None


def test_a_reference_without_a_value_is_the_verifiers_failure() -> None:
    assert boxed(r"\frac{1}{0}", "3").status is Status.ERROR


def test_equal_answers_have_equal_canonical_texts() -> None:
    problem, verifier = Problem("p", "", "1"), MathVerifier(extract="any")
    texts = (r"\boxed{\dfrac{1}{2}}", r"\boxed{\frac12}", r"so \boxed{ \frac{1}{2} }.", r"\boxed{\tfrac{1}{2}}")
    assert {verifier.answer(problem, text) for text in (*texts, r"\boxed{0.50}")} == {"1/2"}
    words = (r"\boxed{\text{Monday}}", r"\boxed{ \textbf{Monday} }.")
    assert {verifier.answer(problem, text) for text in words} == {"Monday"}
    assert verifier.answer(problem, "") is None


pieces_of_answers = st.sampled_from(
    [r"\frac", r"\sqrt", "{", "}", "(", ")", "[", "]", "^", "_", "1", "23", "0.5", "x", "y", "+", "-", "=", ",", r"\pm",
     r"\text{", r"\boxed{", "$", r"\infty", r"\cup", "<", r"\le", "!", r"\sum_{k=1}^{9}", r"\binom", "%", " ", "\\",
     "i", r"\begin{pmatrix}", r"\end{pmatrix}", "&", r"\\", r"\ldots", "or", "|", r"\log", "²",
     "π", "e", ":", ";", "."]
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(gold=st.lists(pieces_of_answers, max_size=8), response=st.lists(pieces_of_answers, max_size=14))
def test_any_text_gets_a_verdict(gold: list[str], response: list[str]) -> None:
    verdict = judged("".join(gold), "".join(response))
    assert verdict.status in set(Status)
    assert verdict.score == (1.0 if verdict.status is Status.CORRECT else 0.0)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_an_answer_is_itself(text: str) -> None:
    verdict = boxed(text, text)
    if text.strip() and not set(text) & set("\\{}") and text.isprintable():
        assert verdict.status is not Status.WRONG


@pytest.mark.slow
@pytest.mark.parametrize("written", ["raw", "raw box", "formula", "display", "both", "parentheses"])
def test_the_cases_do_not_depend_on_how_they_are_written_down(written: str) -> None:
    begin, end = r"The answer is $\boxed{", "}$."
    cases = []
    for case in CASES:
        gold, response = str(case["gold"]), case["response"]
        if not response.startswith(begin) or r"\$" in response or "$" in gold:
            continue
        inner = response.removeprefix(begin).removesuffix(end)
        gold, response = {
            "raw": (f"${gold}$", response),
            "raw box": (rf"so \boxed{{{gold}}}", response),
            "formula": (gold, f"Thus the answer is ${inner}$."),
            "display": (gold, f"$${inner}$$"),
            "both": (f"${gold}$", f"${inner}$"),
            "parentheses": (gold, rf"Final: \({inner}\)"),
        }[written]
        form = "raw" if written in ("raw", "raw box", "both") else "bare"
        cases.append({**case, "gold": gold, "response": response, "form": form})
    assert len(cases) > 250
    assert differing(cases) == []


@pytest.mark.parametrize(
    ("gold", "response", "passed"),
    [
        ("x=3, y=-2", r"So $x=\boxed{3}$ and $y=\boxed{-2}$.", True),
        ("2, 6", r"\boxed{2} \quad \text{and} \quad \boxed{6}", True),
        ("x=3, y=-2", r"So $x=\boxed{3}$ and $y=\boxed{2}$.", False),
        ("12", r"With $x=\boxed{3}$, the area is $\boxed{12}$.", True),
        ("30", r"The answer is \boxed{28} or \boxed{30}.", False),
        ("0.5", r"So it is $\boxed{\frac12}$ or $\boxed{0.5}$.", True),
    ],
)
def test_boxes_are_one_answer_where_several_members_are_asked_for(gold: str, response: str, passed: bool) -> None:
    assert judged(gold, response, extract="boxed").passed is passed
