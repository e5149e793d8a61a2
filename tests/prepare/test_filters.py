"""Steps that look at one problem at a time, by value."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from strop.base.imports import allow_module
from strop.base.types import Problem, StropError, Verdict
from strop.prepare import (
    AnswersAgree,
    Dropped,
    EnglishOnly,
    FilterStep,
    IllustrativeTests,
    LinksAndFigures,
    NoTrivialPrompts,
    ReferenceSolutions,
    StandardTests,
    Verifiable,
)
from strop.prepare.filters import count_tests
from strop.verifiers.answer import Answer
from strop.verifiers.reward_function import PythonFunction
from strop_verify.code.tests import standard_tests
from strop_verify.verdict import Status

allow_module(__name__)


def reason(step: FilterStep, prompt: str, reference: Any = "1", domain: str = "math", **extra: Any) -> str | None:
    """Why the step drops the problem; None where it keeps it."""
    found = step(Problem("p", prompt, reference, domain, "s", extra))
    return found.reason if isinstance(found, Dropped) else None


@pytest.mark.parametrize(
    ("prompt", "reference", "extra", "expected"),
    [
        ("Prove that there are infinitely many primes.", "1", {}, "asks for a proof"),
        ("Let n be odd. Show that 8 divides n^2 - 1.", "1", {}, "asks for a proof"),
        ("Find x.", "4", {"question_type": "proof"}, "asks for a proof"),
        ("It can be shown that x exists. Find x.", "4", {}, None),
        ("Prove that x = 4 has a solution and find it.", "4", {}, None),
        ("Find x.", "notfound", {}, "no answer"),
        ("Find x.", " Proof. ", {}, "no answer"),
        ("Is it?", "no", {}, None),
        ("Find x.", ["4", "5"], {}, "the verifier cannot judge the answer"),
        ("Sort it.", {"scored_by": "x"}, {"task": "sort", "index": 0}, None),
        ("Add.", {"inputs": ["1"] * 4, "outputs": ["1"] * 4}, {}, "fewer than 5 tests"),
        ("Add.", {"inputs": ["1"] * 5, "outputs": ["1"] * 5}, {}, None),
        ("Add.", {"inputs": [], "outputs": []}, {}, "code without tests"),
        ("Write f(x).", {"asserts": ["assert f(tree([3])) == 1"] * 5}, {}, "the verifier cannot judge the answer"),
        ("Write f(x).", {"asserts": ["assert f(3) == ("] * 5}, {}, "the verifier cannot judge the answer"),
        ("Write f(x).", {"asserts": ["assert f(3) == 1"] * 5}, {}, None),
    ],
)
def test_what_cannot_be_verified(prompt: str, reference: Any, extra: dict[str, Any], expected: str | None) -> None:
    assert reason(Verifiable(), prompt, reference, **extra) == expected


def test_code_without_a_reference_of_tests_is_dropped() -> None:
    assert reason(Verifiable(), "Add.", "see solution", domain="code") == "code without tests"


@pytest.mark.parametrize(
    ("solution", "expected"),
    [
        (r"so \boxed{42}", None),
        ("therefore\n#### 42", None),
        (r"so \boxed{41}", "answer and solution disagree"),
        ("no number here", "no answer found in the solution"),
        (None, None),
    ],
)
def test_answers_are_read_again_from_solutions(solution: str | None, expected: str | None) -> None:
    extra = {} if solution is None else {"solution": solution}
    assert reason(AnswersAgree(), "q", "42", **extra) == expected


def test_options_for_missing_and_unreadable_solutions() -> None:
    assert reason(AnswersAgree(missing="drop"), "q", "42") == "no solution to compare with"
    assert reason(AnswersAgree(unreadable="keep"), "q", "42", solution="words") is None
    assert reason(AnswersAgree(verifier=Answer(extract="boxed")), "q", ["4"], solution=r"\boxed{4}") is not None


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("See https://aops.com for 3 more.", "has a link"),
        ("Visit www.example.org with 2 friends.", "has a link"),
        ("What is ![](a.png) shown?", "has an image"),
        (r"\includegraphics{circle} Find r.", "has an image"),
        ("[asy] draw((0,0)--(1,1)); [/asy] Find x.", "has a drawing"),
        ("In the figure, ABC is a triangle.", "needs a figure"),
        ("The graph shown has 3 roots.", "needs a figure"),
        (r"Tangent circles, as shown. Find \[x\](a) line (b) circle", "needs a figure"),
        ("He buys 3 action figures; find the cost.", None),
        ("Draw 2 cards from the deck.", None),
        (r"described by \[z = c.\](a) line (b) circle (c) 4", None),
    ],
)
def test_links_and_figures(prompt: str, expected: str | None) -> None:
    assert reason(LinksAndFigures(), prompt) == expected


@pytest.mark.parametrize(
    ("prompt", "english"),
    [
        ("Natalia sold clips to 48 of her friends. How many clips did she sell?", True),
        (r"Compute $\int_0^1 \alpha x\,dx$.", True),
        ("3+5-2=", True),
        ("小明有5个苹果，吃了2个，还剩几个？", False),
        ("Сколько яблок у Пети, если у него было 5?", False),
        ("¿Cuántas manzanas tiene la niña si come 3 de las 7 que hay en la mesa?", False),
        ("Combien de pommes est-ce que le garçon a dans son panier pour les 3 jours?", False),
        ("Wie viele Äpfel hat der Bauer, wenn er 3 von 7 Äpfeln isst und die anderen im Korb sind?", False),
        ("José and Zoë have 3 piñatas. How many candies does José have?", True),
    ],
)
def test_languages(prompt: str, english: bool) -> None:
    assert reason(EnglishOnly(), prompt) == (None if english else "not in English")


@pytest.mark.parametrize(
    ("given", "function", "expected"),
    [
        ('{"inputs": ["1\\n"], "outputs": ["2\\n"]}', None, {"inputs": ["1\n"], "outputs": ["2\n"]}),
        ({"inputs": [["1", "2"]], "outputs": [["3"]]}, None, {"inputs": ["1\n2"], "outputs": ["3"]}),
        ({"input": ["1"], "output": ["2"]}, None, {"inputs": ["1"], "outputs": ["2"]}),
        ([{"input": "1", "output": "2", "testtype": "stdin"}], None, {"inputs": ["1"], "outputs": ["2"]}),
        (
            {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]},
            None,
            {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]},
        ),
        ([{"input": "1\n[2, 3]", "output": "[5]"}], "f", {"fn_name": "f", "inputs": [[1, [2, 3]]], "outputs": [[5]]}),
        (["assert f(1) == 2"], None, {"asserts": ["assert f(1) == 2"]}),
        (
            {
                "test_code": "def check(candidate):\n    assert candidate(nums = [1]) == 2\n",
                "entry_point": "Solution().f",
            },
            None,
            {"asserts": ["assert Solution().f(nums=[1]) == 2"]},
        ),
    ],
)
def test_tests_have_one_form(given: Any, function: str | None, expected: dict[str, Any]) -> None:
    assert standard_tests(given, function) == expected
    assert count_tests(expected) == 1


@pytest.mark.parametrize(
    "given", ["not json", 7, {"inputs": ["1"], "outputs": []}, {"inputs": "x", "outputs": "y"}, [{"input": "1"}],
              {"test_code": "print(1)", "entry_point": "f"}]
)  # fmt: skip
def test_tests_of_no_known_form_are_dropped(given: Any) -> None:
    assert reason(StandardTests(), "q", given, domain="code") == "tests of an unknown form"


def test_tests_that_the_statement_shows_are_removed() -> None:
    statement = "Add two numbers.\nInput\n10 20\nOutput\n30\n"
    tests = {"inputs": ["10 20\n", "7 8\n", "1 1\n"], "outputs": ["30\n", "15\n", "2\n"]}
    problem = Problem("p", statement, tests, "code", "s", {"examples": [{"input": "7 8", "output": "15"}]})
    found = IllustrativeTests()(problem)
    assert isinstance(found, Problem)
    assert found.reference == {"inputs": ["1 1\n"], "outputs": ["2\n"]}
    only = {"inputs": ["10 20\n"], "outputs": ["30\n"]}
    assert reason(IllustrativeTests(), statement, only) == "only tests that the statement shows"


def run_program(problem: Problem, text: str) -> Verdict:
    """A verifier for tests here: runs the program on each input."""
    code = text.partition("```python\n")[2].rpartition("\n```")[0]
    if "broken sandbox" in code:
        return Verdict(0.0, Status.ERROR, "the sandbox did not start")
    for given, wanted in zip(problem.reference["inputs"], problem.reference["outputs"], strict=True):
        done = subprocess.run([sys.executable, "-Sc", code], input=given, capture_output=True, text=True, timeout=20)
        if done.stdout.split() != wanted.split():
            return Verdict(0.0, Status.WRONG, f"on {given!r}")
    return Verdict(1.0, Status.CORRECT)


RUNNER = PythonFunction(function=f"{__name__}:run_program")
ADD = "print(sum(map(int, input().split())))"


def test_tests_are_checked_by_running_the_reference_solution() -> None:
    right = {"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}
    wrong = {"inputs": ["1 2", "3 4"], "outputs": ["3", "8"]}
    step = ReferenceSolutions(verifier=RUNNER)
    assert reason(step, "Add.", right, solutions=[ADD]) is None
    assert reason(step, "Add.", right, solutions=["print(0)", ADD]) is None
    assert reason(step, "Add.", wrong, solutions=[ADD]) == "the reference solution fails the tests"
    assert reason(step, "Add.", right) == "no reference solution"
    assert reason(step, "What is 1 + 1?", "2") is None


def test_a_sandbox_that_fails_is_no_verdict_on_the_tests() -> None:
    step = ReferenceSolutions(verifier=RUNNER)
    with pytest.raises(StropError, match="the sandbox did not start"):
        reason(step, "Add.", {"inputs": ["1"], "outputs": ["1"]}, solutions=["broken sandbox"])


@pytest.mark.parametrize(
    "text",
    ["ok" + " " * 30_000 + "x!" * 9, ".  " * 20_000, "$" * 30_000, "{" * 30_000, "[asy" * 9_000, "the figure " * 5_000],
)
def test_every_filter_is_linear(text: str) -> None:
    steps = (Verifiable(), LinksAndFigures(), EnglishOnly(), NoTrivialPrompts(), IllustrativeTests(), StandardTests())
    began = time.process_time()
    for step in steps:
        reason(step, f"{text} 1", "a reference")
    assert time.process_time() - began < 2
