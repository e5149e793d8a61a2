"""Verifiers that run the code of others: reasoning-gym's scorers and functions of the user's own."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from strop.base.imports import allow_module
from strop.base.types import Problem, Verdict
from strop.data.generators import ReasoningGym
from strop.verifiers.answer import Answer, ReasoningGymScorer
from strop.verifiers.base import Verifier
from strop.verifiers.reward_function import PythonFunction
from strop_verify.verdict import Status

PROBLEM = Problem("p", "1+1=", "2", extra={"opening": "<think>"})


def test_pieces_are_known_without_their_machinery() -> None:
    """A configuration names verifiers; parsers, processes and the sandbox are imported by the first verdict."""
    code = (
        "import sys; from strop.base.pieces import choices; from strop.verifiers.base import Verifier\n"
        "assert len(choices(Verifier)) > 8; print(*(name for name in sys.modules if name.startswith('strop.')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    others = {name for name in loaded if name.split(".")[1] not in ("base", "verifiers")}
    assert others <= {"strop.data", "strop_verify.extract", "strop.data.templates"}
    assert not {name for name in loaded if "sandbox" in name or "process" in name or name.endswith(".judge")}


def raises(problem: Problem, text: str) -> float:
    raise RuntimeError("out of\norder")


FUNCTIONS: dict[str, Any] = {
    "equal": lambda problem, text: text == "<think>" + problem.reference,
    "half": lambda problem, text: 0.5,
    "numpy_true": lambda problem, text: np.bool_(True),
    "own": lambda problem, text: Verdict(0.0, Status.TIMEOUT, "mine"),
    "above": lambda problem, text: 1.5,
    "nan": lambda problem, text: float("nan"),
    "nothing": lambda problem, text: None,
    "raises": raises,
    "constant": 3,
}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "verifiers_of_my_own"
    made = types.ModuleType(name)
    vars(made).update(FUNCTIONS)
    monkeypatch.setitem(sys.modules, name, made)
    allow_module(name)
    yield name


@pytest.mark.parametrize(
    ("function", "text", "score", "status"),
    [
        ("equal", "2", 1.0, Status.CORRECT),
        ("equal", "3", 0.0, Status.WRONG),
        ("half", "", 0.5, Status.WRONG),
        ("numpy_true", "", 1.0, Status.CORRECT),
        ("own", "", 0.0, Status.TIMEOUT),
        ("above", "", 0.0, Status.ERROR),
        ("nan", "", 0.0, Status.ERROR),
        ("nothing", "", 0.0, Status.ERROR),
        ("raises", "", 0.0, Status.ERROR),
    ],
)
def test_python_function(module: str, function: str, text: str, score: float, status: Status) -> None:
    verdict = PythonFunction(function=f"{module}:{function}")(PROBLEM, text, False)
    assert (verdict.score, verdict.status) == (score, status)
    assert verdict.usable is (status not in (Status.ERROR, Status.TIMEOUT))


def test_an_exception_is_named(module: str) -> None:
    verdict = PythonFunction(function=f"{module}:raises")(PROBLEM, "", False)
    where = rf"{module}:raises: .*test_verifier_pieces.py, line \d+: RuntimeError: out of"
    assert re.fullmatch(where, verdict.detail)


def test_credit_in_parts_is_a_choice(module: str) -> None:
    assert PythonFunction(function=f"{module}:half", partial_credit=False)(PROBLEM, "", False).score == 0.0


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        ("os:system", "--import os"),
        ("equal", "module:function"),
        ("verifiers_of_my_own:absent", "'absent'"),
        ("verifiers_of_my_own:constant", "'constant'"),
    ],
)
def test_functions_that_are_refused(module: str, function: str, complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        PythonFunction(function=function)


def test_pieces_round_trip(module: str) -> None:
    family: TypeAdapter[Verifier] = TypeAdapter(Verifier)
    for piece in (
        Answer(extract="any", require_stop=True),
        ReasoningGymScorer(partial_credit=True),
        PythonFunction(function=f"{module}:half"),
    ):
        assert family.validate_python(piece.model_dump(mode="json")) == piece


@pytest.fixture(scope="module")
def countdown() -> Problem:
    pytest.importorskip("reasoning_gym", reason="extra gym")
    return ReasoningGym(task="countdown", size=2, seed=3).load()[1]


@pytest.mark.parametrize(
    ("answer", "score", "status"),
    [("{}", 1.0, Status.CORRECT), ("1 + 1", 0.0, Status.WRONG), (None, 0.0, Status.UNPARSED)],
)
def test_reasoning_gym_scorer(countdown: Problem, answer: str | None, score: float, status: Status) -> None:
    text = "no idea" if answer is None else f"<answer>{answer.format(countdown.reference)}</answer>"
    verdict = ReasoningGymScorer(extract="answer_tag")(countdown, text, False)
    assert (verdict.score, verdict.status) == (score, status)


def test_reasoning_gym_scorer_accepts_what_the_task_accepts(countdown: Problem) -> None:
    """Another expression of the same value is right: the scorer is the task's own, not an equality."""
    text = f"<answer>({countdown.reference}) * 1 / 1 + 0</answer>"
    scorer = ReasoningGymScorer(partial_credit=True)
    assert 0.0 < scorer(countdown, text, False).score < 1.0  # numbers that were not given
    swapped = " + ".join(reversed(str(countdown.reference).split(" + ")))
    assert swapped != countdown.reference
    assert scorer(countdown, f"\\boxed{{{swapped}}}", False).score == 1.0


def test_reasoning_gym_scorer_refuses_what_is_not_its_own(countdown: Problem) -> None:
    scorer = ReasoningGymScorer()
    assert scorer(Problem("p", "?", "2"), "2", False).status is Status.ERROR
    verdict = scorer(replace(countdown, prompt="another question"), "2", False)
    assert verdict.status is Status.ERROR


def test_a_scorer_that_raises_is_an_error(countdown: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    from strop.data.generators import open_task

    dataset = open_task("countdown", 2, 3, {})

    def score_answer(answer: str, entry: Any) -> float:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(dataset, "score_answer", score_answer)
    verdict = ReasoningGymScorer()(countdown, "2", False)
    assert (verdict.status, verdict.detail) == (Status.ERROR, "ZeroDivisionError in countdown: by zero")
