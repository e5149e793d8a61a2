"""Problems that an environment makes."""

from __future__ import annotations

import pytest

from strop.base.types import InputError, Problem
from strop.environments.base import SEED, Environment, FromEnvironment, Session
from strop.environments.tools import Calculator


class Rooms(Environment):
    def open(self) -> Session:
        return _Rooms()


class _Rooms(Session):
    async def reset(self, problem: Problem, seed: int) -> str:
        return f"Room {seed % 100}."

    def step(self, reply: str) -> None:
        return None


def test_the_first_text_of_an_environment_becomes_the_prompt() -> None:
    problems = list(FromEnvironment(environment=Rooms(), count=100, instruction="Go.").problems())
    assert 50 < len(problems) < 100 and len({problem.question for problem in problems}) == len(problems)
    assert all(one.prompt == f"Go.\nRoom {one.extra[SEED] % 100}." for one in problems)
    again = list(FromEnvironment(environment=Rooms(), count=100, instruction="Go.").problems())
    assert problems == again
    held_out = FromEnvironment(environment=Rooms(), count=9, part="held_out").problems()
    assert {one.extra[SEED] for one in held_out}.isdisjoint(one.extra[SEED] for one in problems)
    with pytest.raises(InputError, match=r"data\.source"):
        list(FromEnvironment(environment=Calculator(), count=1).problems())
