"""strop runs: what is listed and refused; changed settings, and settings of a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strop.base.types import InputError
from strop.cli import app
from strop.config.parse import edits_of_file
from strop.recipes.resolve import resolve
from strop.run.folder import RunFolder, read_changes, write_change

Invoke = Callable[..., str]


def make_run(path: Path, *sets: str, rates: tuple[float, ...] = ()) -> None:
    """A run folder with a configuration and a metric line a step."""
    run = RunFolder.create(path, resolve("grpo", ["model.path=somewhere", *sets]).model_dump(mode="json"))
    for step, rate in enumerate(rates, start=1):
        run.append_metrics(step, {"pass_rate": rate})
    run.close()


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    make_run(Path("runs/first"), "steps=4", rates=(0.25, 0.5))
    make_run(Path("runs/sweep/second"), "steps=8", "optim.lr=2e-6")

    def run(*arguments: str, answer: str = "") -> str:
        done = CliRunner().invoke(app, ["runs", *arguments], input=answer)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output

    return run


def test_runs_are_listed_the_newest_first(invoke: Invoke) -> None:
    first, second = sorted(json.loads(invoke("--json")), key=lambda run: str(run["run"]))
    assert (first["run"], first["step"], first["steps"]) == ("runs/first", 2, 4)
    assert first["pass_rates"] == {"training": [0.5, 2]}
    assert (second["run"], second["state"], second["step"]) == ("runs/sweep/second", "new", 0)
    table = invoke()
    assert "runs/first" in table and "2/4" in table and "50.0%" in table
    make_run(Path("runs/a-name-as-long-as-those-of-recipes"), "steps=8")
    assert "a-name-as-long-as-those-of-recipes" in invoke()
    Path("runs/first/config.json").write_text("{")
    assert "config.json is not readable as JSON" in invoke()
    with pytest.raises(InputError, match="elsewhere"):
        invoke("elsewhere")


def test_a_rate_of_an_earlier_step_says_so(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    for name, step in (("before", 0), ("after", 2)):
        make_run(Path(f"runs/{name}"), rates=(0.25, 0.5))
        run = RunFolder.open(f"runs/{name}")
        run.append_metrics(step, {"evaluation/pass_rate": 0.125})
        run.close()
    rows = {line.split()[0]: " ".join(line.split()) for line in invoke().splitlines() if line.startswith("runs/")}
    assert "50.0% 12.5% (step 0)" in rows["runs/before"]
    assert "50.0% 12.5%" in rows["runs/after"] and "(step" not in rows["runs/after"]


def test_a_run_of_nearly_this_name_is_named(invoke: Invoke) -> None:
    with pytest.raises(InputError, match="runs/first"):
        RunFolder.open("runs/fisrt")


def test_settings_that_a_resume_changed_are_said(invoke: Invoke) -> None:
    """config.json has the last ones alone, by which runs that differ may look the same."""
    run, other = RunFolder.open("runs/first"), RunFolder.open("runs/sweep/second")
    now = run.read_json("config.json")
    before = now | {"optim": now["optim"] | {"lr": 5e-6}}
    write_change(run, 2, before, now)
    [first] = read_changes(run)
    assert first.said() == "after step 2: optim.lr 5e-06 → 1e-06" and read_changes(other) == []
    write_change(run, 4, now, now | {f"other{number}": 1 for number in range(6)})
    [_, later] = read_changes(run)
    assert later.said() == "after step 4: " + "".join(f"other{n} - → 1, " for n in range(4)) + "and 2 more"
    write_change(run, 2, now, now)  # step 3 is made again, as the steps before
    assert read_changes(run) == read_changes(other) == []


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("steps = 7\noptim.lr = 2e-6", {"steps": 7, "optim.lr": 2e-6}),
        ("[algorithm.loss]\nmax_ratio = 3.0\npiece = 'Cispo'", {"algorithm.loss.max_ratio": 3.0}),
        ("trackers = ['wandb', 'trackio']", {"trackers": ("wandb", "trackio")}),
        ("[[stages]]\nsteps = 3\n[stages.set]\n'sampling.max_new_tokens' = 99\n[[stages]]", {"stages.0.steps": 3}),
        ("data.held_out = 'none'\nevaluation.every = 'none'", {"data.held_out": None}),
    ],
)
def test_settings_of_a_file(tmp_path: Path, toml: str, expected: dict[str, Any]) -> None:
    file = tmp_path / "changes.toml"
    file.write_text(toml)
    config = resolve("grpo", edits_of_file(file))
    for key, value in expected.items():
        found: Any = config
        for name in key.split("."):
            found = found[int(name)] if name.isdigit() else vars(found)[name]
        assert found == value


def test_a_file_of_settings_on_the_command_line(tmp_path: Path, invoke: Invoke) -> None:
    file = tmp_path / "changes.toml"
    file.write_text("steps = 7")
    shown = CliRunner().invoke(app, ["recipes", "show", "grpo", "--set", f"@{file}", "--set", "seed=3"]).output
    assert "steps=7" in shown.splitlines() and "seed=3" in shown.splitlines()
    done = CliRunner().invoke(app, ["recipes", "show", "grpo", "--set", "@nowhere.toml"])
    assert isinstance(done.exception, InputError) and "@nowhere.toml: no such file" in str(done.exception)
