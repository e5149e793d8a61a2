"""strop smoke: real runs of every group on the CPU, and parts that are made to fail."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from tests.tiny import byte_tokenizer, tiny_qwen3
from typer.testing import CliRunner

from strop.base.types import InputError
from strop.cli import app
from strop.model.files import export
from strop.run.finding import Finding
from strop.run.smoke import smoke


def outcomes(*groups: str, model: str | None = None, limit: float = 300.0) -> dict[str, Finding]:
    return {one.code: one for one in smoke("cpu", model, None, limit, groups, lambda group: None)}


def test_all_passes_on_the_cpu_but_a_server_that_cannot_start(forked: None) -> None:
    arguments = ["smoke", "--device", "cpu", "--limit", "300", "--vllm", "/bin/false", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    found = {one["code"]: one for one in json.loads(result.stdout)["checks"]}
    failed = {code for code, one in found.items() if one["level"] == "error"}
    assert failed == {"vllm-server-start"}, found
    assert len(found["vllm-server-start"]["found"].splitlines()) == 1
    assert [one["level"] for code, one in found.items() if code.startswith("vllm")] == ["error"] + 3 * ["note"]
    assert re.search(r"[1-9]\d* of 16 completions in flight went on with it", found["engine-weight-swap"]["found"])
    assert {"bf16-forward", "bf16-update", "peak-memory", "engine-probe", "two-ranks-update"} < found.keys()


def test_a_broken_model_fails_with_the_reason(tmp_path: Path) -> None:
    """In a process that is started as it is for users."""
    policy = tiny_qwen3()
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(torch.nan)
    export(policy.model, byte_tokenizer(), tmp_path / "model")
    found = outcomes("engine", model=str(tmp_path / "model"))
    assert [one.level for one in found.values()] == ["error", "note", "note"], found
    assert "nan" in found["engine-sample"].found
    assert len(found["engine-sample"].found.splitlines()) == 1


def test_what_is_not_done_in_time_has_failed(forked: None) -> None:
    found = outcomes("update", "ranks", limit=0.0)
    assert found["bf16-forward"].level == found["two-ranks-meet"].level == "error"
    assert "--limit" in found["bf16-forward"].found
    assert found["bf16-update"].level == "note"


def test_ranks_fail_where_they_cannot_reach_each_other(monkeypatch: pytest.MonkeyPatch, forked: None) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothing0")
    found = outcomes("ranks")
    assert [one.level for one in found.values()] == ["error", "note"], found
    with pytest.raises(InputError, match="update, engine, ranks, vllm"):
        outcomes("rank")
