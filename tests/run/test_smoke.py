"""strop smoke: a real run of every group on the CPU, and runs that are made to fail; what strop doctor says of GPUs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.tiny import byte_tokenizer, tiny_qwen3
from typer.testing import CliRunner

from strop.base.machine import GIB
from strop.base.types import InputError
from strop.cli import app
from strop.model.files import export
from strop.run.doctor import accelerators, smoke
from strop.run.finding import Finding


def outcomes(*groups: str, model: str | None = None, limit: float = 300.0) -> dict[str, Finding]:
    return {one.code: one for one in smoke("cpu", model, None, limit, groups)}


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


@pytest.mark.parametrize(("count", "size", "level"), [(1, GIB // 16, None), (2, GIB // 16, "error"), (2, GIB, "ok")])
def test_several_gpus_of_a_container_need_shared_memory(
    monkeypatch: pytest.MonkeyPatch, count: int, size: int, level: str | None
) -> None:
    gpu = SimpleNamespace(name="NVIDIA H100", total_memory=80 * GIB, major=9, minor=0)
    for name, value in {
        "is_available": True, "device_count": count, "get_device_properties": gpu, "mem_get_info": (79 * GIB, 80 * GIB)
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *given, value=value: value)
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 28, 9))
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(total=size))
    found = {one.subject: one for one in accelerators()}
    assert found["GPU 0"].level == "ok"
    assert level == (found["shared memory"].level if "shared memory" in found else None)
    assert level != "error" or "--shm-size" in found["shared memory"].way_out
