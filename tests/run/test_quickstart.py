"""The quickstart keeps its promise: at least 45 points of pass rate, from nothing, in minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from strop.base.metrics_file import by_step
from strop.base.types import InputError
from strop.base.view import View
from strop.cli import app
from strop.config.schema import RunConfig
from strop.recipes.resolve import resolve
from strop.run.folder import RunFolder


@pytest.mark.parametrize("name", ["quickstart", "quickstart.calculator"])
def test_the_run_says_that_its_model_is_asked_for_no_form(name: str) -> None:
    """Later evaluations find the model by its folder only, and ask as the run's configuration says."""
    assert resolve(name).data.template.model_dump()["instruct"] is False


def test_each_quickstart_has_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    begun: list[tuple[str, str]] = []

    def begin(config: RunConfig, out: Path, view: View) -> None:
        begun.append((config.recipe, str(out)))
        RunFolder.create(out, {}).close()
        raise InputError("enough")

    monkeypatch.setattr("strop.run.run.train", begin)
    for arguments in ([], [], ["--environment"], ["--environment", "--out", "mine"]):
        assert CliRunner().invoke(app, ["quickstart", *arguments]).exit_code != 0
    assert begun == [
        ("quickstart", "runs/quickstart"), ("quickstart", "runs/quickstart-2"),
        ("quickstart.calculator", "runs/quickstart-environment"), ("quickstart.calculator", "mine"),
    ]  # fmt: skip
    refused = CliRunner().invoke(app, ["quickstart", "--out", "mine"]).exception
    assert isinstance(refused, InputError) and "--out" in str(refused) and len(begun) == 4


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_small_model_learns_to_reason_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("STROP_CACHE", str(tmp_path / "cache"))
    done = CliRunner().invoke(app, ["quickstart", "--seed", str(seed), "--out", str(tmp_path / "run"), "--plain"])
    assert done.exit_code == 0 and "held-out pass rate, step 24" in done.output
    run = RunFolder.open(tmp_path / "run")
    rows = run.read_metrics()
    before, *_, after = by_step(rows, "evaluation/pass_rate").values()
    assert 0.15 < before < 0.45 and after - before > 0.45
    assert by_step(rows, "evaluation/gain_low").popitem()[1] > 0.40
    assert (run.model / "model.safetensors").is_file()
