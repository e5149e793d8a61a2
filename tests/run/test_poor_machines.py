"""Whole runs where a machine or a setting is unusual: no home, a poor terminal, no end in sight."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.run.test_run import StopsAfter
from tests.runs import small_config

from strop.run.folder import RunFolder
from strop.run.run import Interrupted, train

PLAIN_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "40", "TERM": "dumb"}


def test_a_run_without_a_home_on_a_poor_terminal(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(small_config("steps=1").model_dump_json())
    environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_CACHE_HOME")}
    command = [sys.executable, "-m", "strop", "train", "small.json", "--out", "run"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, check=False, env={**environment, **PLAIN_ASCII}
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr.decode()
    assert done.stdout.isascii() and (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_a_huge_number_of_steps_delays_nothing(tmp_path: Path) -> None:
    """What is as long as the run is not made before it is needed."""
    config = small_config("evaluation.every=none", "steps=1000000000000", "optim.schedule=LinearDecay")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", StopsAfter(1, signal.SIGINT))
    assert len(RunFolder.open(tmp_path / "run").rollout_steps()) == 1
