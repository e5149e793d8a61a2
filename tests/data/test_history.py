"""The history of pass rates, and the filters that read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.runs import metrics, small_config
from typer.testing import CliRunner

from strop.base.types import InputError, Problem
from strop.base.view import SilentView
from strop.cli import app
from strop.data.history import DropSolved, HardOnly, History, PassRateBetween, Visit
from strop.data.loading import hardest, load_data, read_pass_rates, recalled
from strop.data.source import question_digest
from strop.model.files import byte_tokenizer
from strop.run.run import resume, train


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


def test_what_was_found_of_another_question_is_not_taken_over(tmp_path: Path) -> None:
    """Generators number their problems alike whatever their seed: the same id may be another question."""
    place = written(tmp_path / "run", {"a": [Visit(1, 0, 4, 4.0)], "b": [Visit(1, 0, 4, 1.0)]})
    assert recalled(place, [Problem("b", "What is 7?", "7"), problem("a")]) == {1: [Visit(1, 0, 4, 4.0)]}
    with pytest.raises(InputError, match="data.history="):
        recalled(place, [Problem("b", "What is 7?", "7")])


def test_a_selection_sees_the_earlier_run(tmp_path: Path) -> None:
    config = small_config().data
    first, second, *_ = config.source.load()
    history = History()
    history.add(0, Visit(1, 0, 8, 2.0))
    history.add(1, Visit(1, 0, 8, 8.0))
    (tmp_path / "rates.jsonl").write_text("\n".join(history.lines([first, second])))
    chosen = PassRateBetween(low=0.2, high=0.3, unseen="drop")
    asked = {"history": str(tmp_path / "rates.jsonl"), "select": chosen}
    data = load_data(config.model_copy(update=asked), byte_tokenizer())
    assert [problem.id for problem in data.train.problems] == [first.id]
    assert data.train.visits[0] == [Visit(1, 0, 8, 2.0)]


def test_another_run_begins_where_the_first_one_ended(tmp_path: Path) -> None:
    """What the first run found is known to the second: to its selection, its history, and what it asks."""
    config = ("steps=6", "evaluation.every=none", "algorithm.selection.zero_variance=keep")
    train(small_config(*config), tmp_path / "first", SilentView())
    before = read_pass_rates(tmp_path / "first")
    rates = {name: sum(v.passed for v in visits) / sum(v.samples for v in visits) for name, visits in before.items()}
    hard = {name for name, rate in rates.items() if rate <= 0}
    assert 0 < len(hard) < len(rates) == 32
    chosen = ('data.select={piece="PassRateBetween", high=0.0}', f"data.history={tmp_path / 'first'}")
    train(small_config(*config, *chosen, "steps=2"), tmp_path / "second", SilentView())
    after = read_pass_rates(tmp_path / "second")
    assert set(after) == hard  # all of them known, and nothing else was asked
    asked = [name for name, visits in after.items() if len(visits) > len(before[name])]
    assert len(asked) == min(12, len(hard)) and all(visit.stage == -1 for visit in after[asked[0]][:-1])
    assert after[asked[0]][-1].stage == 0
    resume(tmp_path / "second", SilentView())  # finished: nothing is asked, counted or read twice
    assert read_pass_rates(tmp_path / "second") == after


def test_what_an_earlier_run_mastered_is_not_asked_again(tmp_path: Path) -> None:
    config = ("steps=6", "evaluation.every=none", "algorithm.selection.zero_variance=keep")
    train(small_config(*config), tmp_path / "first", SilentView())
    first = read_pass_rates(tmp_path / "first")
    solved = {name for name, visits in first.items() if any(visit.pass_rate > 0 for visit in visits)}
    again = (f"data.history={tmp_path / 'first'}", "algorithm.selection.no_positive_resampling=0.01", "steps=1")
    train(small_config(*config, *again), tmp_path / "second", SilentView())
    assert metrics(tmp_path / "second")[0]["problems/left"] <= 32 - len(solved)
    visits = read_pass_rates(tmp_path / "second")
    assert not [name for name in solved if any(visit.stage == 0 for visit in visits[name])]


def test_a_history_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    other = written(tmp_path / "other", {"elsewhere": [Visit(1, 0, 4, 4.0)]})
    with pytest.raises(InputError, match="data.history="):
        train(small_config(f"data.history={other}"), tmp_path / "run", SilentView())
    with pytest.raises(InputError, match="data.history"):
        small_config('data.select={piece="HardOnly"}')
    assert not (tmp_path / "run").exists()
