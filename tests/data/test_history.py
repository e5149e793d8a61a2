"""The history of pass rates, and the filters that read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runs import metrics, small_config
from typer.testing import CliRunner

from strop.base.types import InputError, Problem
from strop.base.view import SilentView
from strop.cli import app
from strop.data.history import DropSolved, HardOnly, History, PassRateBetween, Visit
from strop.data.loading import add_up, load_data, merge_visits, read_pass_rates, recalled
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
    (folder / "pass_rates.jsonl").write_text("\n".join(history.lines(list(map(problem, rates)), folder.name)))
    return str(folder)


def test_rates_of_several_runs_add_up(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"a": [Visit(1, 0, 4, 4.0)], "b": [Visit(1, 0, 4, 1.0), Visit(2, 0, 4, 2.0)]})
    other = written(tmp_path / "other", {"c": [Visit(1, 0, 4, 0.0)], "b": [Visit(1, 0, 8, 0.0)]})
    rows = add_up([one, other], PassRateBetween())
    assert [(row.id, row.pass_rate, row.last_pass_rate, row.attempts, row.visits) for row in rows] == [
        ("c", 0.0, 0.0, 4, 1),
        ("b", 3 / 16, 0.0, 16, 3),
        ("a", 1.0, 1.0, 4, 1),
    ]


def test_what_was_found_of_another_question_is_not_taken_over(tmp_path: Path) -> None:
    """Generators number their problems alike whatever their seed: the same id may be another question."""
    place = written(tmp_path / "run", {"a": [Visit(1, 0, 4, 4.0)], "b": [Visit(1, 0, 4, 1.0)]})
    assert recalled([place], [Problem("b", "What is 7?", "7"), problem("a")]) == {1: [Visit(1, 0, 4, 4.0, "run")]}
    with pytest.raises(InputError, match="data.history="):
        recalled([place], [Problem("b", "What is 7?", "7")])
    history = History()
    history.add(0, Visit(1, 0, 4, 0.0))
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(history.lines([Problem("b", "What is 7?", "7")], "other")))
    assert [(row.id, row.attempts) for row in add_up([place, str(other)], PassRateBetween(high=0.5))] == [
        ("b", 4), ("b", 4)
    ]  # fmt: skip


ONE, TWO, THREE, FOUR = "one", "two", "three", "four"


def chained(folder: Path) -> dict[str, str]:
    """The files of four runs on one problem: two and three start from one, and four from both of these.

    One has 8 of 16 right over two visits; two and three, equal in number and step, have 0 of 8 each; four has 8 of 8.
    """
    own = {ONE: [Visit(1, 0, 8, 8.0), Visit(2, 0, 8, 0.0)], TWO: [Visit(1, 0, 8, 0.0)], THREE: [Visit(1, 0, 8, 0.0)],
           FOUR: [Visit(1, 0, 8, 8.0)]}  # fmt: skip
    starts = {ONE: [], TWO: [ONE], THREE: [ONE], FOUR: [TWO, THREE]}
    files: dict[str, str] = {}
    for name, visits in own.items():
        history = History()
        history.recall(recalled([files[start] for start in starts[name]], [problem("a")]))
        for visit in visits:
            history.add(0, visit)
        rows = [json.loads(line) for line in history.lines([problem("a")], f"id-{name}")]
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files[name] = str(file)
    return files


@pytest.mark.parametrize(
    ("named", "attempts", "passed"),
    [
        ([ONE], 16, 8),
        ([ONE, ONE], 16, 8),
        ([TWO], 24, 8),  # what it took over counts where its run is not named
        ([ONE, TWO], 24, 8),
        ([TWO, ONE], 24, 8),
        ([TWO, THREE], 32, 8),  # both took over the same, and have equal visits of their own
        ([ONE, TWO, THREE], 32, 8),
        ([FOUR], 40, 16),  # its own visit is equal to the first of one
        ([ONE, FOUR], 40, 16),
        ([FOUR, THREE, TWO, ONE], 40, 16),
    ],
)
def test_a_visit_that_several_files_have_counts_once(
    tmp_path: Path, named: list[str], attempts: int, passed: int
) -> None:
    files = chained(tmp_path)
    chosen = [files[name] for name in named]
    (row,) = add_up(chosen, PassRateBetween())
    assert (row.attempts, row.pass_rate) == (attempts, passed / attempts)
    visits = recalled(chosen, [problem("a")])
    assert (sum(v.samples for v in visits[0]), sum(v.passed for v in visits[0])) == (attempts, passed)


def test_the_command_counts_each_once(tmp_path: Path) -> None:
    files = chained(tmp_path)
    done = CliRunner().invoke(app, ["data", "pass-rates", files[ONE], files[TWO]])
    assert "1 problem, 24 attempts" in done.stdout


def test_a_run_is_known_wherever_its_file_is_moved_and_however_far_it_has_come(tmp_path: Path) -> None:
    files = chained(tmp_path)
    moved = Path(files[ONE]).rename(tmp_path / "moved.jsonl")
    (row,) = add_up([str(moved), files[TWO]], PassRateBetween())
    assert row.attempts == 24
    line = json.loads(moved.read_text())
    line["visits"] += [Visit(3, 0, 8, 0.0, "id-one")._asdict()] * 2  # went on: twice the same problem in a step
    moved.write_text(json.dumps(line))
    (row,) = add_up([files[TWO], str(moved)], PassRateBetween())
    assert row.attempts == 40


@given(st.data())
def test_any_runs_that_start_from_others_are_counted_by_visit(data: st.DataObject) -> None:
    """Against a count of the visits themselves, which carry a number that `merge_visits` does not see."""
    files: list[list[tuple[int, Visit]]] = []
    serial = 0
    for number in range(data.draw(st.integers(1, 5))):
        starts = data.draw(st.lists(st.integers(0, number - 1), unique=True)) if number else []
        before = {key: visit for start in starts for key, visit in files[start]}
        own = []
        for step, passed in data.draw(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 1)), max_size=3)):
            serial += 1
            own.append((serial, Visit(step, 0, 4, float(passed), f"run {number}")))
        files.append([(key, visit._replace(stage=-1)) for key, visit in before.items()] + own)
    named = data.draw(st.lists(st.sampled_from(range(len(files)))))
    found = merge_visits([[visit for _, visit in files[place]] for place in dict.fromkeys(named)])
    true = {key: visit for place in named for key, visit in files[place]}
    seen = [(visit.run, visit.step, visit.passed) for visit in found]
    assert sorted(seen) == sorted((visit.run, visit.step, visit.passed) for visit in true.values())


def test_a_selection_sees_each_visit_once(tmp_path: Path) -> None:
    """8 of 24 are right; with one's visits twice it would be 16 of 40."""
    config = small_config().data
    (first, *_), files = config.source.load(), chained(tmp_path)
    for file in map(Path, files.values()):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"id": first.id, "question": question_digest(first)}))
    asked = {"history": (files[ONE], files[TWO]), "select": PassRateBetween(low=0.3, high=0.35, unseen="drop")}
    data = load_data(config.model_copy(update=asked), byte_tokenizer())
    assert [problem.id for problem in data.train.problems] == [first.id]
    assert sum(visit.samples for visit in data.train.visits[0]) == 24


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
    total = sum(len(visits) for visits in before.values()) + sum(len(after[name]) - len(before[name]) for name in hard)
    both = [str(tmp_path / "first"), str(tmp_path / "second")]
    assert sum(row.visits for row in add_up(both, PassRateBetween())) == total
    train(small_config(*config, f"data.history={json.dumps(both)}", "steps=1"), tmp_path / "third", SilentView())
    third = read_pass_rates(tmp_path / "third").values()
    assert sum(visit.stage == -1 for visits in third for visit in visits) == total
    assert len({visit.run for visits in third for visit in visits}) == 3
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
