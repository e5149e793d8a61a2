"""The environments that strop brings: what they say, and that they keep to themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from strop.base.types import Problem, Verdict
from strop.environments.base import Environment, Reply, Session
from strop.environments.tools import PythonTool
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
    for name in ("Calculator", "PythonTool"):
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


def test_the_environment_of_the_documentation() -> None:
    names: dict[str, Any] = {"__name__": "my_games"}
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    exec(page.split("```python\n")[1].split("```")[0], names)
    session = begun(names["HigherLower"](), reference="42")
    assert [said(session.step(reply)) for reply in ("hm", "7", "50")] == ["Say a number.", "higher", "lower"]
    assert session.step("42") == Verdict(1.0, Status.CORRECT)
    assert session.end("4") == Verdict(0.0, Status.WRONG, "not guessed")
