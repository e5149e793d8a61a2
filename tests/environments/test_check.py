"""Checking environments, and problems that an environment makes."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.environments.players import Chatty
from typer.testing import CliRunner

from strop.base.types import InputError, Problem, Verdict
from strop.cli import app
from strop.environments.base import SEED, Environment, Reply, Session
from strop.environments.check import check, environment_of, written
from strop.environments.source import FromEnvironment
from strop.environments.tools import Calculator
from strop_verify.verdict import Status

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
    ("how", "complaint"), [("chance", "seed "), ("raise", "KeyError"), ("score", "a score of 2.0")]
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


def test_modules_beside_the_current_folder_are_found(tmp_path: Path) -> None:
    """As an installed `strop` is started, whose path has not the current folder."""
    program, games = tmp_path / "bin" / "strop.py", tmp_path / "games"
    program.parent.mkdir()
    program.write_text("import sys\nsys.path.pop(0)\nfrom strop.cli import main\nmain()\n")
    games.mkdir()
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    (games / "my_games.py").write_text(page.split("```python\n")[1].split("```")[0])
    for name in ("my_games:HigherLower", "my_games.py:HigherLower"):
        command = [sys.executable, str(program), "env", "check", name, "--reference", "7", "--json"]
        done = subprocess.run(command, cwd=games, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["ends"] == {"correct": 4}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("Search", "Search: environment.corpus is missing; give it with --set environment.corpus=…"),
        ("Agent", "Agent: environment.function is missing; give it with --set environment.function=…"),
        ("Retry", "Retry: environment.verifier is missing; give it with --set environment.verifier=…"),
        ("Calculater", "Calculater: no Environment is called 'Calculater'; did you mean 'Calculator'?"),
        ("Calculator --set environment.max_turns=0", "Calculator: environment.max_turns=0: must be at least 1"),
        ("Calculator --set steps=0", "--set steps=0: here only the environment is set: environment.KEY=VALUE"),
        ("math:sqrt", "math:sqrt: module 'math' has no class 'sqrt' with a method reset"),
        ("nowhere:Game", "nowhere:Game: No module named 'nowhere'; name a module that Python can import from here"),
        ('{"piece"', "{piece: this is no JSON: Expecting property name"),
        ("{}", "an environment: say which piece: one of Agent,"),
    ],
)
def test_what_is_wrong_names_the_setting_and_the_way_out(arguments: str, said: str) -> None:
    result = CliRunner().invoke(app, ["env", "check", *shlex.split(arguments)])
    assert isinstance(result.exception, InputError) and str(result.exception).startswith(said), result.exception


def test_settings_are_given_by_set(tmp_path: Path) -> None:
    (tmp_path / "passages.txt").write_text("Three and five are eight.\n")
    sets = ["--set", f"environment.corpus={tmp_path / 'passages.txt'}", "--set", "environment.max_turns=3"]
    result = CliRunner().invoke(app, ["env", "check", "Search", *sets, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["ends"] == {"for the verifier to judge": 4}
    retry = CliRunner().invoke(app, ["env", "check", "Retry", "--set", "environment.verifier=ExactMatch"])
    assert retry.exit_code == 0, retry.output
    assert environment_of(written("Calculator")) == Calculator()


def test_what_an_environment_says_first_becomes_the_prompt() -> None:
    problems = list(FromEnvironment(environment=Odd(how="raise"), count=100, instruction="Go.").problems())
    assert 50 < len(problems) < 100 and len({problem.question for problem in problems}) == len(problems)
    assert all(one.prompt == f"Go.\nRoom {one.extra[SEED] % 100}." for one in problems)
    again = list(FromEnvironment(environment=Odd(how="raise"), count=100, instruction="Go.").problems())
    assert problems == again
    held_out = FromEnvironment(environment=Odd(how="raise"), count=9, part="held_out").problems()
    assert {one.extra[SEED] for one in held_out}.isdisjoint(one.extra[SEED] for one in problems)
    with pytest.raises(InputError, match=r"data\.source"):
        list(FromEnvironment(environment=Calculator(), count=1).problems())
