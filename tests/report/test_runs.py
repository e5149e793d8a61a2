"""What is read of a run, and what of it may be missing."""

from pathlib import Path
from typing import Any

import pytest
from tests.runs import small_config

from strop.base.types import InputError
from strop.config.parse import edit
from strop.config.tiny import tiny
from strop.recipes.resolve import resolve
from strop.report.build import Text, summary
from strop.report.runs import changes, read_runs
from strop.report.training_figures import time_shares
from strop.run.folder import RunFolder, write_change


def _run(path: Path, config: Any = None) -> Path:
    RunFolder.create(path, {} if config is None else config.model_dump(mode="json"))
    return path


def test_runs_are_told_apart_by_as_few_folders_as_it_takes(tmp_path: Path) -> None:
    paths = [_run(tmp_path / "a" / "grpo"), _run(tmp_path / "b" / "grpo"), _run(tmp_path / "b" / "dapo")]
    assert [run.name for run in read_runs(paths)] == ["a/grpo", "b/grpo", "dapo"]
    with pytest.raises(InputError, match="grpo"):
        read_runs([paths[0], paths[0]])


def test_only_settings_that_differ_from_the_recipe_are_named(tmp_path: Path) -> None:
    config = edit(resolve("grpo"), ["optim.lr=3e-6", "seed=4"])
    (run,) = read_runs([_run(tmp_path / "a", config)])
    assert changes(run) == ("the recipe grpo", [("seed", "0", "4"), ("optim.lr", "1e-06", "3e-06")])


def test_what_a_resume_changed_is_said(tmp_path: Path) -> None:
    path = _run(tmp_path / "a", resolve("grpo"))
    write_change(RunFolder.open(path), 3, {"optim": {"lr": 5e-6}}, {"optim": {"lr": 1e-6}})
    (run,) = read_runs([path])
    assert Text("went on with other settings after step 3: optim.lr 5e-06 → 1e-06") in summary([run], [])


def test_a_tiny_run_is_compared_with_the_tiny_form(tmp_path: Path) -> None:
    config = edit(tiny(resolve("grpo")), ["seed=4"])
    (run,) = read_runs([_run(tmp_path / "a", config)])
    assert changes(run) == ("the tiny form of the recipe grpo", [("seed", "0", "4")])


@pytest.mark.parametrize("name", ["quickstart", "quickstart.calculator"])
def test_what_follows_from_the_model_is_no_difference(name: str, tmp_path: Path) -> None:
    """How strop's own bases are asked: a quickstart in which nothing was changed differed from its recipe."""
    (run,) = read_runs([_run(tmp_path / "a", resolve(name, ["seed=4"]))])
    assert changes(run) == (f"the recipe {name}", [("seed", "0", "4")])
    (small,) = read_runs([_run(tmp_path / "b", resolve("grpo", small=True))])
    assert changes(small) == ("the tiny form of the recipe grpo", [])
    (other,) = read_runs([_run(tmp_path / "c", resolve(name, ["model.path=owner/name"]))])
    assert [key for key, *_ in changes(other)[1]] == ["model.path"]


def test_a_recipe_that_is_gone_is_said(tmp_path: Path) -> None:
    (run,) = read_runs([_run(tmp_path / "a", small_config().model_copy(update={"recipe": "gone"}))])
    with pytest.raises(InputError, match="gone"):
        changes(run)


def test_an_unreadable_configuration_leaves_the_rest(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a", {"recipe": "grpo", "steps": "many"})
    folder.append_metrics(1, {"pass_rate": 0.5, "version": 1.0})
    (run,) = read_runs([tmp_path / "a"])
    assert run.config is None and run.unread
    assert run.last("pass_rate") == 0.5
    assert run.outcome() == "not finished: 1 of many steps"


def test_the_time_of_a_run_has_the_evaluation_before_its_first_step(real_run: Path) -> None:
    (run,) = read_runs([real_run])
    before = run.by_step("seconds/evaluation")[0]
    assert before == pytest.approx(run.by_step("evaluation/seconds")[0], rel=0.2, abs=0.05) and before > 0
    assert run.seconds == pytest.approx(sum(run.series("seconds/step")[1]) + before)
    assert sum(time_shares(run).values()) == pytest.approx(1.0, abs=0.01)
