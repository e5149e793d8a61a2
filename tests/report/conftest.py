"""One small real run, shared by the tests of a worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.runs import small_config
from typer.testing import CliRunner

from strop.base.view import SilentView
from strop.cli import app
from strop.run.run import train


@pytest.fixture(scope="session")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of actor-critic GRPO on a random model."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    config = small_config("algorithm.advantage=Gae", "critic.updates_per_step=2", "evaluation.temperature=0.9")
    train(config, folder, SilentView())
    return folder


@pytest.fixture(scope="session")
def written(real_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `strop report --json` says of the report of that run."""
    arguments = ["report", str(real_run), "--out", str(tmp_path_factory.mktemp("report")), "--samples", "2", "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    value: dict[str, Any] = json.loads(result.stdout)
    return value
