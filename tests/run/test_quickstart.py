"""The quickstart keeps its promise: at least 45 points of pass rate, from nothing, in minutes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strop.base.types import InputError
from strop.base.view import SilentView, View
from strop.cli import app
from strop.config.schema import RunConfig
from strop.run.folder import RunFolder
from strop.run.quickstart import run


@pytest.mark.parametrize("environment", [False, True])
def test_the_run_says_that_its_model_is_asked_for_no_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: bool
) -> None:
    """Later evaluations find the model by its folder only, and ask as the run's configuration says."""
    begun: list[RunConfig] = []

    def begin(config: RunConfig, *arguments: object, **more: object) -> None:
        begun.append(config)
        raise InputError("enough")

    monkeypatch.setattr("strop.run.quickstart.train", begin)
    monkeypatch.setattr("strop.run.quickstart.located", lambda settings, seed, view: settings)
    with pytest.raises(InputError, match="enough"):
        run(0, tmp_path / "run", SilentView(), environment)
    assert begun[0].data.template.model_dump()["instruct"] is False


def test_each_quickstart_has_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders: list[Path] = []

    def begin(seed: int, out: Path, view: View, environment: bool) -> None:
        folders.append(out)
        RunFolder.create(out, {}).close()
        raise InputError("enough")

    monkeypatch.setattr("strop.run.quickstart.run", begin)
    for arguments in ([], [], ["--environment"], ["--environment", "--out", "mine"]):
        assert CliRunner().invoke(app, ["quickstart", *arguments]).exit_code != 0
    named = ["runs/quickstart", "runs/quickstart-2", "runs/quickstart-environment", "mine"]
    assert [str(folder) for folder in folders] == named


def test_a_folder_with_a_run_is_refused_before_any_work(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", {}).close()
    refused = CliRunner().invoke(app, ["quickstart", "--out", str(tmp_path / "run")]).exception
    assert isinstance(refused, InputError) and "--out" in str(refused)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_small_model_learns_to_reason_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("STROP_CACHE", str(tmp_path / "cache"))
    summary = run(seed, tmp_path / "run", SilentView())
    assert 0.15 < summary.pass_rate_before < 0.45
    assert summary.pass_at_8_before > 2 * summary.pass_rate_before
    assert summary.gain > 0.45 and summary.gain_interval[0] > 0.40
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (tmp_path / "run" / written["model"] / "model.safetensors").is_file()
    assert written.keys() >= {"model", "seed", "parameters", "pass_rate_before", "pass_rate_after", "gain"}
    *parts, total = written["seconds"].values()
    assert list(written["seconds"]) == ["sft", "evaluation", "rl", "other", "total"]
    assert min(parts) > 0 and sum(parts) == pytest.approx(total, abs=0.05)
