"""The history of pass rates, and the filters that read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strop.base.types import InputError, Problem
from strop.cli import app
from strop.data.history import DropSolved, HardOnly, History, PassRateBetween, Visit
from strop.data.loading import hardest, read_pass_rates
from strop.data.source import question_digest


def problem(name: str) -> Problem:
    return Problem(name, f"What is {name}?", "1")


def test_a_history_survives_json_and_a_file(tmp_path: Path) -> None:
    history = History()
    history.add(2, Visit(1, 0, 4, 3.0))
    history.add(2, Visit(7, 1, 4, 4.0))
    history.add(0, Visit(7, 1, 0, 0.0))  # every verdict failed: it says nothing
    again = History()
    again.load(json.loads(json.dumps(history.state())))
    assert list(again.visits(2)) == [Visit(1, 0, 4, 3.0), Visit(7, 1, 4, 4.0)]
    assert not again.visits(0) and len(again) == 1
    lines = list(again.lines(list(map(problem, "abc"))))
    row = json.loads(lines[0])
    assert (row["id"], row["attempts"], row["pass_rate"], row["last_pass_rate"]) == ("c", 8, 7 / 8, 1.0)
    (tmp_path / "pass_rates.jsonl").write_text("\n".join(lines))
    (asked,) = read_pass_rates(tmp_path).items()
    assert asked == (("c", question_digest(problem("c"))), [Visit(1, 0, 4, 3.0), Visit(7, 1, 4, 4.0)])


def test_a_broken_file_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="jsonl"):
        read_pass_rates(tmp_path)
    file = tmp_path / "rates.jsonl"
    file.write_text('{"id": "a", "question": "b", "visits": []}\n{"id": 3}\n')
    with pytest.raises(InputError, match=r"rates.jsonl.*2"):
        read_pass_rates(file)


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


def written(folder: Path, rates: dict[str, list[Visit]]) -> str:
    history = History()
    for index, visits in enumerate(rates.values()):
        for visit in visits:
            history.add(index, visit)
    folder.mkdir()
    (folder / "pass_rates.jsonl").write_text("\n".join(history.lines(list(map(problem, rates)))))
    return str(folder)


def test_the_hardest_problems_come_first(tmp_path: Path) -> None:
    rates = {"a": [Visit(1, 0, 4, 4.0)], "b": [Visit(1, 0, 4, 1.0), Visit(2, 0, 4, 2.0)], "c": [Visit(1, 0, 4, 0.0)]}
    place = written(tmp_path / "one", rates)
    rows = hardest(place, PassRateBetween())
    assert [(row.id, row.pass_rate, row.last_pass_rate, row.attempts, row.visits) for row in rows] == [
        ("c", 0.0, 0.0, 4, 1), ("b", 3 / 8, 0.5, 8, 2), ("a", 1.0, 1.0, 4, 1)
    ]  # fmt: skip
    done = CliRunner().invoke(app, ["data", "pass-rates", place, "--to", "0.5"])
    assert "2 problems, 12 attempts" in done.stdout
