"""The history of pass rates, and the filters that read it."""

from __future__ import annotations

import json

import pytest

from strop.base.types import Problem
from strop.data.history import DropSolved, HardOnly, History, PassRateBetween, Visit
from strop.data.source import question_digest


def problem(name: str) -> Problem:
    return Problem(name, f"What is {name}?", "1")


def test_a_history_survives_json_and_a_file() -> None:
    history = History()
    history.add(2, Visit(1, 0, 4, 3.0))
    history.add(2, Visit(7, 1, 4, 4.0))
    history.add(0, Visit(7, 1, 0, 0.0))  # every verdict failed: it says nothing
    again = History()
    again.load(json.loads(json.dumps(history.state())))
    assert list(again.visits(2)) == [Visit(1, 0, 4, 3.0), Visit(7, 1, 4, 4.0)]
    assert not again.visits(0) and len(again) == 1
    again.add(0, Visit(8, 1, 4, 1.0))
    assert list(again.latest([2, 1])) == [(2, Visit(7, 1, 4, 4.0)), (0, Visit(8, 1, 4, 1.0))]
    again.add(1, Visit(9, 1, 4, 2.0))
    again.add(2, Visit(9, 1, 4, 0.0))
    assert [index for index, _ in again.latest([])] == [2, 1, 0], "the latest first"
    again.load(json.loads(json.dumps(history.state())))
    lines = list(again.lines(list(map(problem, "abc"))))
    row = json.loads(lines[0])
    assert (row["id"], row["attempts"], row["pass_rate"], row["last_pass_rate"]) == ("c", 8, 7 / 8, 1.0)
    assert row["question"] == question_digest(problem("c"))
    assert [Visit(**visit) for visit in row["visits"]] == [Visit(1, 0, 4, 3.0), Visit(7, 1, 4, 4.0)]


def test_solved_problems_leave_between_stages() -> None:
    keeps = DropSolved()
    assert keeps([], stage=1)  # never asked: nothing is known
    assert not keeps([Visit(3, 0, 8, 8.0), Visit(9, 0, 8, 8.0)], stage=1)
    assert keeps([Visit(3, 0, 8, 8.0), Visit(9, 0, 8, 7.0)], stage=1)
    assert keeps([Visit(3, 0, 8, 8.0)], stage=2)  # solved, but not in the stage just before


def test_mining_keeps_what_is_hard() -> None:
    keeps = HardOnly()
    assert not keeps([], stage=1)
    assert keeps([Visit(3, 0, 64, 3.0)], stage=1)
    assert not keeps([Visit(3, 0, 64, 4.0)], stage=1)
    assert keeps([Visit(3, 0, 64, 4.0), Visit(9, 0, 64, 0.0)], stage=1)


def test_a_pass_rate_lies_in_a_range() -> None:
    keeps = PassRateBetween(low=0.25, high=0.5)
    assert [keeps([Visit(1, 0, 8, passed)], 0) for passed in (1.0, 2.0, 4.0, 5.0)] == [False, True, True, False]
    assert keeps([Visit(1, 0, 8, 0.0), Visit(2, 0, 8, 8.0)], 0)  # half of all attempts
    assert keeps([], 0) and not PassRateBetween(unseen="drop")([], 0)
    with pytest.raises(ValueError, match="low=0.6.*high=0.5"):
        PassRateBetween(low=0.6, high=0.5)
