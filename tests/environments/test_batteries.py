"""The environments that strop brings: what they say, and that they keep to themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from strop.base.types import InputError, Problem, Verdict
from strop.environments.base import Environment, Outcome, Reply, Session
from strop.environments.games import GuessingGame, Retry
from strop.environments.tools import Bm25, PythonTool, Search
from strop.verifiers.answer import Answer
from strop_verify.verdict import Status


def begun(environment: Environment, reference: object = "8", seed: int = 0) -> Session:
    session = environment.open()
    session.reset(Problem("p", "3+5=", reference), seed)
    return session


def said(outcome: object) -> str:
    assert isinstance(outcome, Reply)
    return "|".join(message["content"] for message in outcome.messages)


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_every_environment_is_found_by_its_name() -> None:
    family: TypeAdapter[Environment] = TypeAdapter(Environment)
    for name in ("OneTurn", "Calculator", "PythonTool", "GuessingGame"):
        found = family.validate_python({"piece": name})
        assert found.piece_name() == name and family.validate_json(found.model_dump_json()) == found
    with pytest.raises(ValueError, match="Calculator"):
        family.validate_python({"piece": "Calculater"})


def test_python_keeps_what_was_defined_and_shows_the_last_value() -> None:
    session = begun(PythonTool(allow_unsafe=True, seconds=20))
    assert said(session.step(call("python", code="def f(x):\n    return x + 1\nprint('made')"))) == "made"
    assert said(session.step(call("python", code="y = f(41)\ny"))) == "42"
    assert said(session.step(call("python", code="y + z"))) == "NameError: name 'z' is not defined"
    assert said(session.step(call("python", code="raise SystemExit(3)"))) == "SystemExit: 3"
    assert said(session.step(call("python", code="y *= 2\nprint(y)"))) == "84"
    assert "SyntaxError" in said(session.step(call("python", code="y =")))
    other = begun(PythonTool(allow_unsafe=True, seconds=20))
    assert said(other.step(call("python", code="y"))) == "NameError: name 'y' is not defined"


def test_python_runs_earlier_calls_again_to_the_same_state() -> None:
    """Random numbers go on where they were, files are written once, what failed half way did its first half."""
    tool = PythonTool(allow_unsafe=True, seconds=20)
    session = begun(tool)
    first = said(session.step(call("python", code="import random\na = random.random()\na")))
    assert said(session.step(call("python", code="a"))) == first
    second = said(session.step(call("python", code="random.random()")))
    again = begun(tool)
    code = "import random\nprint(random.random())\nprint(random.random())"
    assert said(again.step(call("python", code=code))).split() == [first, second]
    assert said(session.step(call("python", code="open('log', 'a').write('x')"))) == "1"
    assert "ZeroDivisionError" in said(session.step(call("python", code="b = 1\n1 / 0\nb = 2")))
    assert said(session.step(call("python", code="b, open('log').read()"))) == "(1, 'x')"


def test_python_that_takes_too_long_is_told_so_and_forgotten() -> None:
    session = begun(PythonTool(allow_unsafe=True, seconds=2))
    assert "timeout" in said(session.step(call("python", code="while True: pass")))
    assert said(session.step(call("python", code="1 + 1"))) == "2"


def test_search_ranks_by_bm25(tmp_path: Path) -> None:
    corpus = tmp_path / "facts.jsonl"
    facts = [("Rust", "A language with a borrow checker."), ("Python", "A language with blocks."), ("Cat", "Purrs.")]
    corpus.write_text("\n".join(json.dumps({"title": title, "text": text}) for title, text in facts))
    session = begun(Search(corpus=str(corpus), passages=1))
    assert said(session.step(call("search", query="language, blocks?"))) == "[1] Python: A language with blocks."
    assert said(session.step(call("search", query="zebra"))) == "nothing found"
    with pytest.raises(InputError, match="environment.corpus="):
        begun(Search(corpus=str(tmp_path / "none.txt")))


def test_bm25_by_value() -> None:
    index = Bm25(["a b", "a a c c", "d"])
    # idf(a) = ln(1 + 1.5 / 2.5); mean length 7 / 3; "a a c c": 2 · 2.2 / (2 + 1.2 (0.25 + 0.75 · 4 · 3 / 7))
    assert index.best("a", 3) == ["a b", "a a c c"] or index.best("a", 3) == ["a a c c", "a b"]
    weights = dict(index._weights["a"])
    assert weights[1] == pytest.approx(2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 4 * 3 / 7)))
    assert weights[0] == pytest.approx(1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 * 3 / 7)))


def test_retry_complains_until_it_is_right_or_the_tries_are_spent() -> None:
    session = begun(Retry(verifier=Answer(extract="boxed"), complaint="No: {detail}"))
    assert said(session.step("\\boxed{9}")).startswith("No: ")
    right = session.step("\\boxed{8}")
    assert isinstance(right, Verdict) and right.status is Status.CORRECT
    session = begun(Retry(verifier=Answer(extract="boxed"), max_turns=2))
    outcomes: list[Outcome] = [session.step("9") for _ in range(2)]  # type: ignore[misc]
    assert isinstance(outcomes[0], Reply) and isinstance(outcomes[1], Verdict) and outcomes[1].score == 0


def test_the_guessing_game() -> None:
    session = begun(GuessingGame(), reference="42")
    replies = [said(session.step(reply)) for reply in ("hm", "I say 7", "7? no, 50")]
    assert replies == ["Say a number.", "higher", "lower"]
    assert session.step("42") == Verdict(1.0, Status.CORRECT)
    assert session.end("4") == Verdict(0.0, Status.WRONG, "not guessed")
