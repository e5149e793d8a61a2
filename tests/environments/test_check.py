"""Checking environments, and problems that an environment makes."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from tests.environments.players import Chatty
from typer.testing import CliRunner

from strop.base.types import InputError, Problem, Status, Verdict
from strop.cli.commands import app
from strop.environments.base import Environment
from strop.environments.calculator import Calculator
from strop.environments.check import check, environment_named
from strop.environments.session import SEED, Reply, Session
from strop.environments.source import FromEnvironment

PROBLEM = Problem("p", "3+5=", "8")


class Odd(Environment):
    how: str

    def open(self) -> Session:
        return _Odd(self.how)


class _Odd(Session):
    def __init__(self, how: str) -> None:
        self._how = how

    async def reset(self, problem: Problem, seed: int) -> str:
        return f"Room {seed % 100}."

    def step(self, reply: str) -> Reply | Verdict:
        if self._how == "chance":
            return Reply(({"role": "user", "content": str(random.random())},))
        if self._how == "raise":
            raise KeyError("door")
        return Verdict(2.0, Status.CORRECT)


def test_good_environments_pass() -> None:
    found = check(Calculator(), PROBLEM)
    assert found.complaints == () and found.sessions == 4 and found.turns >= 4
    assert check(Chatty(), PROBLEM, seeds=8).ends.keys() <= {"correct", "wrong"}


@pytest.mark.parametrize(
    ("how", "complaint"), [("chance", "otherwise the second time"), ("raise", "KeyError"), ("score", "a score of 2.0")]
)
def test_bad_ones_are_told_apart(how: str, complaint: str) -> None:
    found = check(Odd(how=how), PROBLEM)
    assert len(found.complaints) == 4 and all(complaint in line for line in found.complaints)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_class.py").write_text(
        "class Odd:\n    def reset(self, **row): ...\n"
        "    def get_reward(self): return 3\n    def go(self, n: int): return n\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    good = CliRunner().invoke(app, ["env", "check", "Calculator", "--json"])
    assert good.exit_code == 0 and json.loads(good.stdout)["complaints"] == []
    bad = CliRunner().invoke(app, ["env", "check", "odd_class:Odd"])
    assert bad.exit_code == 1 and "must lie in [0, 1]" in bad.stdout
    shown = CliRunner().invoke(app, ["env", "check", "Calculator"])
    assert ["left to the run's verifier", "4"] in [re.split(r"  +", line.strip()) for line in shown.stdout.splitlines()]
    assert json.loads(good.stdout)["ends"] == {"unjudged": 4}
    assert ["failed", "4"] in [re.split(r"  +", line.strip()) for line in bad.stdout.splitlines()]
    with pytest.raises(InputError, match="Calculater"):
        environment_named("Calculater")


def test_what_an_environment_says_first_becomes_the_prompt() -> None:
    problems = list(FromEnvironment(environment=Odd(how="raise"), count=100, instruction="Go.").problems())
    assert 50 < len(problems) < 100 and len({problem.question for problem in problems}) == len(problems)
    assert all(one.prompt == f"Go.\nRoom {one.extra[SEED] % 100}." for one in problems)
    again = list(FromEnvironment(environment=Odd(how="raise"), count=100, instruction="Go.").problems())
    assert problems == again
    held_out = FromEnvironment(environment=Odd(how="raise"), count=9, part="held_out").problems()
    assert {one.extra[SEED] for one in held_out}.isdisjoint(one.extra[SEED] for one in problems)
    with pytest.raises(InputError, match="its reset says nothing"):
        list(FromEnvironment(environment=Calculator(), count=1).problems())
