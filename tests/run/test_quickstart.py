"""The quickstart keeps its promise: at least 45 points of pass rate, from nothing, in minutes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.runs import small_config
from typer.testing import CliRunner

from strop.base.types import InputError
from strop.base.view import SilentView, View
from strop.cli import app
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.recipes.quickstart import calculator, recipe
from strop.run.folder import RunFolder, is_run
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


def test_the_quickstart_of_several_turns_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It replaced the first one, which the next lines of the page are about."""
    folders: list[Path] = []

    def begin(seed: int, out: Path, view: View, environment: bool) -> None:
        folders.append(out)
        raise InputError("enough")

    monkeypatch.setattr("strop.run.quickstart.run", begin)
    for arguments in ([], ["--environment"], ["--environment", "--out", "mine"]):
        assert CliRunner().invoke(app, ["quickstart", *arguments]).exit_code != 0
    assert [str(folder) for folder in folders] == ["runs/quickstart", "runs/quickstart-environment", "mine"]


def test_only_a_quickstart_is_replaced(tmp_path: Path) -> None:
    """A run of anybody's in the folder stays; a quickstart of another seed goes on to the work that replaces it."""
    other = tmp_path / "other"
    RunFolder.create(other, small_config().model_dump(mode="json")).close()
    with pytest.raises(InputError, match="--out"):
        run(0, other, SilentView())
    assert is_run(other)

    class Began(Exception):
        pass

    class Impatient(SilentView):
        def note(self, text: str) -> None:
            raise Began(text)

        def stage(self, name: str, total: int | None, unit: str = "steps") -> None:
            raise Began

    for number, made in enumerate((recipe(), calculator())):
        former = tmp_path / str(number)
        RunFolder.create(former, edit(made, ["seed=7"]).model_dump(mode="json")).close()
        with pytest.raises(Began, match=f"the quickstart in .*{number} is replaced"):
            run(0, former, Impatient())


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
