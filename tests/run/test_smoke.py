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
from strop.run.smoke import CheckOutcome, as_markdown, smoke


def outcomes(*groups: str, model: str | None = None, limit: float = 300.0) -> dict[str, CheckOutcome]:
    found = list(smoke("cpu", model, None, limit, groups, lambda group: None))
    return {outcome.check: outcome for outcome in found}


def test_all_passes_on_the_cpu_but_a_server_that_cannot_start(forked: None) -> None:
    arguments = ["smoke", "--device", "cpu", "--limit", "300", "--vllm", "/bin/false", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    found = {one["check"]: one for one in json.loads(result.stdout)["checks"]}
    failed = {name for name, one in found.items() if one["result"] == "FAIL"}
    assert failed == {"vLLM server start"}, found
    assert len(found["vLLM server start"]["found"].splitlines()) == 1
    assert [one["result"] for name, one in found.items() if name.startswith("vLLM")] == ["FAIL"] + 3 * ["not run"]
    assert re.search(r"[1-9]\d* of 16 completions in flight went on with it", found["engine weight swap"]["found"])
    assert {"bf16 forward", "bf16 update", "peak memory", "engine probe", "two ranks update"} < found.keys()


def test_a_broken_model_fails_with_the_reason(tmp_path: Path) -> None:
    """In a process that is started as it is for users."""
    policy = tiny_qwen3()
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(torch.nan)
    export(policy.model, byte_tokenizer(), tmp_path / "model")
    found = outcomes("engine", model=str(tmp_path / "model"))
    assert [one.result for one in found.values()] == ["FAIL", "not run", "not run"], found
    assert "differ from the model's own by nan" in found["engine sample"].found
    assert len(found["engine sample"].found.splitlines()) == 1


def test_what_is_not_done_in_time_has_failed(forked: None) -> None:
    found = outcomes("update", "ranks", limit=0.0)
    assert found["bf16 forward"].result == found["two ranks meet"].result == "FAIL"
    assert "--limit" in found["bf16 forward"].found
    assert found["bf16 update"].result == "not run"


def test_ranks_fail_where_they_cannot_reach_each_other(monkeypatch: pytest.MonkeyPatch, forked: None) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothing0")
    found = outcomes("ranks")
    assert [one.result for one in found.values()] == ["FAIL", "not run"], found
    with pytest.raises(InputError, match="update, engine, ranks, vllm"):
        outcomes("rank")


def test_the_table_is_markdown() -> None:
    table = as_markdown(
        [Finding("nccl", "ok", "NCCL", "2.28.9")], [CheckOutcome("bf16 update", "FAIL", "the loss is nan", 1.25)]
    )
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()][2:] == [
        ["NCCL", "", "2.28.9", ""], ["bf16 update", "FAIL", "the loss is nan", "1.2"],
    ]  # fmt: skip
