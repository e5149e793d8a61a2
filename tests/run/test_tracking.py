"""Trackers: absent extras, secrets, what reaches TensorBoard's files."""

import importlib
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from strop.base.types import InputError
from strop.run.folder import RunFolder
from strop.run.tracking import Trackers, without_secrets


def test_metrics_jsonl_is_always_written(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {})
    trackers = Trackers((), run, {})
    trackers.log(1, {"loss": 1.0, "entropy": None})
    trackers.close()
    assert [row["loss"] for row in run.read_metrics()] == [1.0]


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb"])
def test_an_absent_extra_is_named_with_the_command(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def absent(module: str, package: str | None = None) -> object:
        if module == name:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return real(module, package)

    monkeypatch.setattr(importlib, "import_module", absent)
    run = RunFolder.create(tmp_path, {})
    with pytest.raises(InputError, match=rf'pip install "strop\[{name}\]"'):
        Trackers((name,), run, {})


def test_an_unknown_tracker_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trackers"):
        Trackers(("mlflow",), RunFolder.create(tmp_path, {}), {})


def test_secrets_are_left_out_and_token_counts_are_not() -> None:
    config = {
        "sampling": {"max_new_tokens": 8, "stop_token_ids": [1]},
        "batch": {"tokens_per_microbatch": 4},
        "hub": {"token": "hf_x", "api_key": "y", "HF_TOKEN": "z", "name": "kept"},
        "password": "p",
    }
    assert without_secrets(config) == {
        "sampling": {"max_new_tokens": 8, "stop_token_ids": [1]},
        "batch": {"tokens_per_microbatch": 4},
        "hub": {"name": "kept"},
    }


def test_tensorboard_files_hold_the_scalars_and_hide_what_a_resume_forgot(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason='needs the extra tensorboard: pip install "strop[tensorboard]"')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = RunFolder.create(tmp_path, {})
    first = Trackers(("tensorboard",), run, {})
    for step in (1, 2, 3):
        first.log(step, {"reward/mean": step / 10, "entropy": None})
    first.close()
    again = Trackers(("tensorboard",), run, {}, resumed_at=1)
    again.log(2, {"reward/mean": 0.9})
    again.log(1, {"evaluation/pass_rate": 0.5})  # in late
    again.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    scalars = events.Scalars("reward/mean")
    assert [(event.step, round(event.value, 3)) for event in scalars] == [(1, 0.1), (2, 0.9)]
    assert [(event.step, event.value) for event in events.Scalars("evaluation/pass_rate")] == [(1, 0.5)]


@pytest.mark.slow
def test_wandb_writes_a_local_run_without_secrets(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason='needs the extra wandb: pip install "strop[wandb]"')
    run = RunFolder.create(tmp_path, {})
    trackers = Trackers(("wandb",), run, {"steps": 3, "api_key": "do-not-write-me"})
    trackers.log(1, {"reward/mean": 0.5, "entropy": None})
    trackers.close()
    files = [path for path in (tmp_path / "wandb").rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    assert not any(b"do-not-write-me" in path.read_bytes() for path in files)


@pytest.mark.slow
def test_trackio_keeps_a_run_on_this_machine(tmp_path: Path) -> None:
    """Runs in a separate process, because trackio starts threads and reads its paths on import."""
    pytest.importorskip("trackio", reason='needs the extra trackio: pip install "strop[trackio]"')
    program = (
        "from pathlib import Path\nfrom strop.run.folder import RunFolder\n"
        "from strop.run.tracking import Trackers\n"
        f"run = RunFolder.create(Path({str(tmp_path / 'mine')!r}), {{}})\n"
        "first = Trackers(('trackio',), run, {'steps': 3, 'api_key': 'do-not-write-me'})\n"
        "first.log(1, {'reward/mean': 0.5, 'entropy': None})\nfirst.close()\n"
        "again = Trackers(('trackio',), run, {}, resumed_at=1)\n"
        "again.log(2, {'reward/mean': 0.75})\nagain.close()\n"
    )
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "kept"), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)
    with closing(sqlite3.connect(tmp_path / "kept" / "strop.db")) as kept:
        rows = kept.execute("SELECT step, run_name, metrics FROM metrics ORDER BY step").fetchall()
    assert [(step, name, json.loads(values)["reward/mean"]) for step, name, values in rows] == [
        (1, "mine", 0.5),
        (2, "mine", 0.75),
    ]
    assert not any(b"do-not-write-me" in file.read_bytes() for file in (tmp_path / "kept").rglob("*") if file.is_file())
