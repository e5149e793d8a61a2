"""strop smoke: a real run of every group on the CPU, and runs that are made to fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.tiny import byte_tokenizer, tiny_qwen3
from typer.testing import CliRunner

from strop.base.types import InputError
from strop.cli import app
from strop.model.files import export
from strop.run.doctor import smoke
from strop.run.finding import Finding


def outcomes(*groups: str, model: str | None = None, limit: float = 300.0) -> dict[str, Finding]:
    return {one.code: one for one in smoke("cpu", model, None, limit, groups)}


@pytest.mark.timeout(300)
def test_all_passes_on_the_cpu_but_a_server_that_cannot_start(forked: None) -> None:
    arguments = ["smoke", "--device", "cpu", "--limit", "300", "--vllm", "/bin/false", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    found = {one["code"]: one for one in json.loads(result.stdout)["checks"]}
    assert {code: one["level"] for code, one in found.items()} == {
        "update": "ok", "engine": "ok", "ranks": "ok", "vllm": "error",
    }  # fmt: skip
    assert len(found["vllm"]["found"].splitlines()) == 1


def test_a_broken_model_fails(tmp_path: Path) -> None:
    """In a process that is started as it is for users."""
    policy = tiny_qwen3()
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(torch.nan)
    export(policy.model, byte_tokenizer(), tmp_path / "model")
    found = outcomes("update", model=str(tmp_path / "model"))["update"]
    assert found.level == "error" and len(found.found.splitlines()) == 1


def test_what_is_not_done_in_time_has_failed(forked: None) -> None:
    found = outcomes("update", limit=0.0)["update"]
    assert found.level == "error" and "--limit" in found.found


def test_unknown_groups_are_refused() -> None:
    with pytest.raises(InputError, match="update, engine, ranks, vllm"):
        outcomes("rank")
