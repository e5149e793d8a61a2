"""strop train --resume RUN --dry-run: where it would go on and with what, and not a file of the run is touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.runs import finished_run, small_config
from typer.testing import CliRunner

from strop.base.types import InputError
from strop.base.view import SilentView
from strop.cli import app
from strop.run.run import train

ARGUMENTS = ["train", "--dry-run", "--resume"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory, "steps=3", "checkpoint.keep=3")


def files(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*ARGUMENTS, *arguments])
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split())


def test_it_says_what_is_left_and_what_changes_and_trains_nothing(finished: Path) -> None:
    before = files(finished)
    said = shown(str(finished), "--step", "1", "--set", "optim.lr=0.5", "--set", "steps=6")
    assert "goes on after step 1 of 6: 5 steps left" in said and "steps up to 3 were trained after that" in said
    assert "changed from there on: optim.lr=0.5 (it was 0.001)" in said and "first prompt, " in said
    assert "all 3 steps are done, and none is left to train" in shown(str(finished))
    assert files(finished) == before


def test_it_refuses_what_a_resume_refuses(finished: Path, tmp_path: Path) -> None:
    for sets, said in (("optim.lr=0.5", "has done its 3 steps"), ("steps=2", "3 are done"), ("seed=4", "a run keeps")):
        refused = CliRunner().invoke(app, [*ARGUMENTS, str(finished), "--set", sets])
        assert isinstance(refused.exception, InputError) and said in str(refused.exception)
    other = tmp_path / "other"
    shutil.copytree(finished, other)
    record = json.loads((other / "problems.json").read_text())
    (other / "problems.json").write_text(json.dumps(record | {"held_out": record["held_out"][1:]}))
    refused = CliRunner().invoke(app, [*ARGUMENTS, str(other)])
    assert isinstance(refused.exception, InputError) and "held-out" in str(refused.exception)


def test_a_run_without_a_checkpoint_begins_anew(finished: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    shutil.copytree(finished, begun)
    shutil.rmtree(begun / "checkpoints")
    assert "has no checkpoint yet, and begins anew: 3 steps" in shown(str(begun))


def test_a_schedule_that_is_stretched_is_found(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(small_config("steps=2", "optim.schedule=Cosine", "optim.lr=1e-3"), out, SilentView())
    # After two of two updates of a cosine, at (1 + cos(π / 2)) / 2 of the peak, follows the third of eight.
    assert "rises from 0.0005 to 0.00085" in shown(str(out), "--set", "steps=8")
    assert "rises from" in shown(str(out), "--set", "steps=8", "--set", "optim.weight_decay=0.1")
    assert "learning rate" not in shown(str(out), "--set", "steps=8", "--set", "optim.lr=1e-2")
