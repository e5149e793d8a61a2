"""Classes in TRL's shape, used as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from strop.base.imports import allow_module
from strop.base.types import Problem, Verdict
from strop.environments.base import Reply
from strop.environments.tools import OutsideClass
from strop_verify.verdict import Status

CLASS = '''
class Counter:
    """Reach the target by adding."""

    def reset(self, reference, steps=1):
        self.target, self.total, self.closed = int(reference), 0, False

    def add(self, amount: int, twice: bool = False) -> str:
        """Adds to the total.

        Args:
            amount: how much.
            twice (bool): add it again.
        """
        if amount < 0:
            raise ValueError("only upwards")
        self.total += amount * (1 + twice)
        return f"total {self.total}"

    def get_reward(self) -> float:
        return float(self.total == self.target)

    def _secret(self) -> int:
        return self.target


class Bare:
    def reset(self, **row): ...
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "outside_counter.py").write_text(CLASS)
    monkeypatch.syspath_prepend(str(tmp_path))
    allow_module("outside_counter")
    return "outside_counter"


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_public_methods_are_tools(module: str) -> None:
    [tool] = OutsideClass(cls=f"{module}:Counter").tools
    assert (tool.name, tool.description) == ("add", "Adds to the total.")
    assert tool.parameters["properties"] == {
        "amount": {"type": "integer", "description": "how much."},
        "twice": {"type": "boolean", "description": "add it again."},
    }
    assert tool.parameters["required"] == ["amount"]


def test_a_trajectory_ends_with_the_reward(module: str) -> None:
    session = OutsideClass(cls=f"{module}:Counter").open()
    session.reset(Problem("p", "Reach 7.", "7", extra={"steps": 3, "unknown": 1}), 5)
    replies = [session.step(call("add", amount=n)) for n in (3, -1)]
    assert [reply.messages[0]["content"] for reply in replies if isinstance(reply, Reply)] == [
        "total 3", "error: only upwards",
    ]  # fmt: skip
    assert isinstance(session.step(call("add", amount=2, twice=True)), Reply)
    assert session.step("done") == Verdict(1.0, Status.CORRECT)
    assert session.end("") == Verdict(1.0, Status.CORRECT)


def test_what_cannot_be_played_is_refused(module: str) -> None:
    for name, reason in (("Bare", "Bare"), ("None", "None"), ("", "module:Class")):
        with pytest.raises(ValidationError, match=reason):
            OutsideClass(cls=f"{module}:{name}")
    with pytest.raises(ValidationError, match="--import"):
        OutsideClass(cls="another_module:Counter")
