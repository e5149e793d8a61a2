"""The pipeline: configuration, artefacts, resuming, broken rows, reports, and reading back what it wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.prepare.working import questions, run, write_lines
from typer.testing import CliRunner, Result

from strop.base.imports import allow_module
from strop.base.types import InputError, Message, Problem, StropError
from strop.base.view import SilentView
from strop.cli import app
from strop.data.problem_table import ProblemWriter, count_rows, read_problems
from strop.data.rows import ParquetFile
from strop.data.source import parse_source
from strop.prepare import Dropped, FilterStep, load_config, parse_config, prepare
from strop.prepare.config import example_config

MIXED = [
    {"prompt": "What is 2 + 3?", "answer": "5"},
    {"prompt": "what is 2 + 3", "answer": "5"},
    {"prompt": "Prove that 2 is prime.", "answer": "proof"},
    {"prompt": "See https://example.org and add 4.", "answer": "4"},
    {
        "prompt": "Wie viele Äpfel hat der Bauer, wenn er 3 von 7 Äpfeln isst und die anderen im Korb sind?",
        "answer": "4",
    },
    {"prompt": "What is 2 + 4?", "answer": "6"},
]
STEPS = ["Verifiable", "LinksAndFigures", "EnglishOnly", "Deduplicate"]


class Slow(FilterStep):
    """Keeps everything, but takes its time, and dies at a marked problem while a file is there."""

    stop_file: str

    def __call__(self, problem: Problem) -> Problem | Dropped:
        if problem.question.startswith("Halt") and Path(self.stop_file).exists():
            raise StropError("stopped on purpose")
        return problem


allow_module(__name__)


def test_every_row_is_accounted_for(tmp_path: Path) -> None:
    outcome = run(tmp_path, [MIXED], STEPS)
    assert outcome.prompts == ["What is 2 + 3?", "What is 2 + 4?"]
    assert outcome.reasons == {
        "asks for a proof": 1, "has a link": 1, "not in English": 1, "exact duplicate within the set": 1,
    }  # fmt: skip
    assert [(step["in"], step["out"]) for step in outcome.report["steps"]] == [(6, 6), (6, 5), (5, 4), (4, 3), (3, 2)]
    assert [row["step"] for row in outcome.dropped] == [
        "verifiable",
        "links and figures",
        "english only",
        "deduplicate",
    ]
    assert outcome.report["problems_in"] == 6
    assert outcome.report["by_source"] == {"set0": {"in": 6, "out": 2, "held_out": 0, "dropped": outcome.reasons}}
    assert json.loads((outcome.folder / "report.json").read_text())["problems_out"] == 2


def test_a_problem_comes_back_whole(tmp_path: Path) -> None:
    problems = [
        Problem("a", "text", "5", "math", "here", {"solution": "5", "rates": {"m": {"correct": 1}}}),
        Problem(
            "b", (Message(role="system", content="s"), Message(role="user", content="[1]")), {"inputs": ["1"]}, "code"
        ),
        Problem("c", '{"not": "messages"}', 7),
    ]
    with ProblemWriter(tmp_path / "p.parquet") as writer:
        for problem in problems:
            writer.write(problem)
    assert list(read_problems(tmp_path / "p.parquet")) == problems
    assert list(ParquetFile(path=str(tmp_path / "p.parquet")).load()) == problems
    assert parse_source(str(tmp_path / "p.parquet")).load()[1].reference == {"inputs": ["1"]}


def test_steps_are_not_repeated_unless_something_before_them_changed(tmp_path: Path) -> None:
    first = run(tmp_path, [MIXED], STEPS)
    assert not any(step["resumed"] for step in first.report["steps"])
    source = {"path": str(tmp_path / "set0.jsonl")}
    again = run(tmp_path, [source], STEPS)
    assert all(step["resumed"] for step in again.report["steps"])
    changed = run(tmp_path, [source], [*STEPS[:2], {"piece": "EnglishOnly", "foreign_words": 99}, "Deduplicate"])
    assert [step["resumed"] for step in changed.report["steps"]] == [True, True, True, False, False]
    assert len(changed.kept) == 3
    write_lines(tmp_path / "set0.jsonl", [*MIXED, {"prompt": "What is 2 + 5?", "answer": "7"}])
    grown = run(tmp_path, [source], STEPS)
    assert not any(step["resumed"] for step in grown.report["steps"])
    assert len(grown.kept) == 3


def test_a_step_that_died_is_done_again_and_the_ones_before_it_are_not(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    stop.touch()
    rows = questions("One 1", "Halt 2", "Three 3")
    steps = ["Deduplicate", {"piece": f"{__name__}:Slow", "stop_file": str(stop)}]
    with pytest.raises(StropError):
        run(tmp_path, [rows], steps)
    assert not (tmp_path / "out" / "train.parquet").exists()
    stop.unlink()
    outcome = run(tmp_path, [{"path": str(tmp_path / "set0.jsonl")}], steps)
    assert [step["resumed"] for step in outcome.report["steps"]] == [True, True, False]
    assert len(outcome.kept) == 3


def test_a_killed_preparation_goes_on(tmp_path: Path) -> None:
    rows = questions(*(f"The {number}th of many questions about {number * 7} apples" for number in range(5_000)))
    config = tmp_path / "c.toml"
    config.write_text(
        f'out = "{tmp_path / "out"}"\nsteps = ["Verifiable", "EnglishOnly", "Deduplicate"]\n'
        f'[[sources]]\npath = "{write_lines(tmp_path / "q.jsonl", rows)}"\n'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "strop", "data", "prepare", str(config)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "out" / "steps" / "01-verifiable" / "step.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    report = prepare(load_config(config), SilentView())
    assert report["steps"][0]["resumed"] and report["steps"][1]["resumed"]
    assert report["problems_out"] == count_rows(tmp_path / "out" / "train.parquet") == 5_000


BROKEN = (
    '{"prompt": "fine 1", "answer": "1"}\n{"prompt": "no answer 2"}\nnot json\n{"prompt": "fine 3", "answer": "3"}\n'
)


def test_a_broken_row_stops_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(BROKEN)
    with pytest.raises(InputError, match=r"b\.jsonl:2: .*broken_rows"):
        run(tmp_path, [{"path": str(tmp_path / "b.jsonl")}], [])


def test_broken_rows_are_skipped_counted_and_listed_where_the_configuration_says_so(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(BROKEN)
    outcome = run(tmp_path, [{"path": str(tmp_path / "b.jsonl")}], [], broken_rows="skip")
    assert outcome.prompts == ["fine 1", "fine 3"]
    assert outcome.reasons == {"broken row": 2}
    assert [row["id"].rsplit("/")[-1] for row in outcome.dropped] == ["b.jsonl:2", "b.jsonl:3"]
    assert "not valid JSON" in outcome.dropped[1]["detail"]


def test_every_source_is_in_the_table_of_sources_with_what_became_of_its_rows(tmp_path: Path) -> None:
    """Those of which no row can be read or none is wanted too, in the order of priority rather than by their sizes."""
    one, other = {"prompt": "What is 2 + 4?", "answer": "6"}, {"prompt": "What is 8 + 4?", "answer": "12"}
    bad = [{"prompt": "no answer 1"}, {"prompt": "no answer 2"}]
    unwanted = {"path": str(write_lines(tmp_path / "none.jsonl", [one])), "where": "answer = '7'"}
    steps = ["Deduplicate", {"piece": "Split", "count": 1}]
    outcome = run(tmp_path, [bad, [one], [*MIXED, other], unwanted], steps, broken_rows="skip")
    table = outcome.report["by_source"]
    assert list(table) == ["set0", "set1", "set2", "none"]
    assert table["set0"] == {"in": 2, "out": 0, "held_out": 0, "dropped": {"broken row": 2}}
    assert table["none"] == {"in": 0, "out": 0, "held_out": 0, "dropped": {}}
    for row in table.values():
        assert row["in"] == row["out"] + row["held_out"] + sum(row["dropped"].values())
    assert sum(row["in"] for row in table.values()) == outcome.report["problems_in"] == 2 + 1 + 7
    assert (sum(row["out"] for row in table.values()), sum(row["held_out"] for row in table.values())) == (5, 1)


def test_rows_that_are_all_broken_are_an_error_that_names_the_first(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"set0\.jsonl:1:"):
        run(tmp_path, [[{"prompt": "no answer 1"}, {"prompt": "no answer 2"}]], [], broken_rows="skip")


def test_an_id_that_occurs_twice_is_a_broken_row(tmp_path: Path) -> None:
    rows = [{"id": 7, "prompt": f"question {n}", "answer": "1"} for n in range(2)]
    source = {"path": str(write_lines(tmp_path / "i.jsonl", rows)), "columns": {"id": "id"}}
    with pytest.raises(InputError, match="broken_rows"):
        run(tmp_path, [source], [])


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_lines(tmp_path / name / "train.jsonl", questions(f"{name} 1"))
    sources = [{"path": str(tmp_path / name / "train.jsonl")} for name in ("a", "b")]
    assert [problem.id for problem in run(tmp_path, sources, []).kept] == ["train/1", "train-2/1"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "sources"),
        ({"sources": [{"path": "x.jsonl", "colums": {}}]}, r"sources\[1\]: .*columns"),
        ({"sources": [{"mapping": "deepscalr"}]}, "deepscaler"),
        ({"sources": [{}]}, r"sources\[1\]"),
        ({"sources": ["x.jsonl"], "steps": ["Dedup"]}, r"steps\[1\]: .*Deduplicate"),
        ({"sources": ["x.jsonl"], "steps": [{"near": "minhash"}]}, r"steps\[1\]: .*piece"),
        ({"sources": ["x.jsonl"], "steps": [{"piece": "Split", "count": 0}]}, r"steps\[1\]: count"),
        ({"sources": ["x.jsonl"], "steps": [{"piece": "Decontaminate"}]}, r"steps\[1\]: against"),
        ({"sources": ["x.jsonl"], "step": []}, "steps"),
        ({"sources": ["x.jsonl"], "broken_rows": "ignore"}, "broken_rows"),
    ],
)
def test_a_wrong_configuration_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_config(given, "c.toml")


@pytest.mark.parametrize("name", ["missing.jsonl", "missing.parquet", "words.txt"])
def test_a_source_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"sources\[2\]: .*{name}"):
        run(tmp_path, [MIXED, {"path": str(tmp_path / name)}], [])


def test_a_benchmark_that_is_not_there_is_named_before_anything_is_done(tmp_path: Path) -> None:
    steps = ["Verifiable", {"piece": "Decontaminate", "against": [str(tmp_path / "nowhere.jsonl")]}]
    with pytest.raises(InputError, match=r"steps\[2\].*nowhere.jsonl"):
        run(tmp_path, [MIXED], steps)
    assert not any((tmp_path / "out" / "steps").iterdir())


def test_nothing_left_is_an_error_that_names_the_step_and_leaves_no_data_set(tmp_path: Path) -> None:
    run(tmp_path, [questions("Prove that 1 = 1.", "What is 9 + 9?")], [])
    for _ in range(2):  # what is done is not done again, and is an error all the same
        with pytest.raises(InputError, match=r"verifiable.*steps\[2\]"):
            run(tmp_path, [questions("Prove that 1 = 1.")], ["Deduplicate", "Verifiable", "EnglishOnly"])
        assert not (tmp_path / "out" / "train.parquet").exists()
    out = tmp_path / "out"
    assert json.loads((out / "report.json").read_text())["problems_out"] == 0 and (out / "dropped.parquet").exists()
    proofs = questions("Prove that 1 = 1.", "Prove that 2 = 2.")
    with pytest.raises(InputError, match="verifiable"):
        run(tmp_path, [proofs], [{"piece": "Split", "count": 1}, "Verifiable"])
    assert not (out / "train.parquet").exists() and not (out / "validation.parquet").exists()


def test_the_example_of_the_documentation_is_a_configuration() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    config = parse_config(tomllib.loads(page.partition("```toml\n")[2].partition("```")[0]))
    assert [step.title() for step in config.steps][-1] == "split"


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="out"):
        run(tmp_path, [MIXED], STEPS)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "precious"


def test_the_example_is_a_configuration() -> None:
    config = parse_config(tomllib.loads(example_config()))
    assert [step.title() for step in config.steps][:2] == ["verifiable", "answers agree"]
    uncommented = [line.removeprefix("# ") for line in example_config().splitlines()]
    start = uncommented.index("# ---- Steps") if "# ---- Steps" in uncommented else 0
    assert all("[[steps]]" not in line or line.startswith("[[steps]]") for line in uncommented[start:])


def test_the_command_line(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        f'[[sources]]\npath = "{write_lines(tmp_path / "q.jsonl", MIXED)}"\n[[steps]]\npiece = "Deduplicate"\n'
    )
    runner = CliRunner()

    def strop(*arguments: str) -> Result:
        return runner.invoke(app, ["data", *arguments])

    done = strop("prepare", str(config), "--out", str(tmp_path / "here"), "--json")
    assert json.loads(done.stdout)["problems_out"] == 5
    shown = json.loads(strop("show", str(tmp_path / "here" / "dropped.parquet"), "--json").stdout)
    assert (shown[0]["prompt"], shown[0]["duplicate_of"]) == ("what is 2 + 3", "q/1")
    assert tomllib.loads(strop("prepare", "--example").stdout)["out"] == "prepared"
    assert "--example" in str(strop("prepare", "nowhere.toml").exception)
    assert "numinamath-1.5" in strop("mappings").stdout
