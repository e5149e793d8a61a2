"""`strop serve` as a process: it says where it is, answers, and ends on Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.tiny import byte_tokenizer, tiny_qwen3
from typer.testing import CliRunner

from strop.base.types import InputError
from strop.cli import app
from strop.cli.model_commands import client_name
from strop.model.files import export
from strop.run.folder import RunFolder
from strop.run.models import parse_models
from strop.training.checkpoint import folder_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "small"
    export(tiny_qwen3().model, byte_tokenizer(), folder)
    return folder


def test_it_serves_a_folder_until_it_is_interrupted(model: Path) -> None:
    command = [sys.executable, "-m", "strop", "serve", f"small={model}", "--port", "0", "--json",
               "--api-key-env", "STROP_TEST_SERVE_KEY", "--max-new-tokens", "9"]  # fmt: skip
    environment = {**os.environ, "STROP_TEST_SERVE_KEY": "hush"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            facts = json.loads(process.stdout.readline())
            assert facts["model"] == "small" and facts["context"] == 512 and facts["key"] is True
            assert facts["limits"]["new_tokens"] == 9
            answer = httpx.post(
                f"{facts['url']}/completions",
                json={"model": "small", "prompt": "1+1=", "max_tokens": 9},
                headers={"Authorization": "Bearer hush"},
                trust_env=False,
                timeout=60,
            )
            assert answer.status_code == 200, answer.text
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0 and out == ""
    assert "1 requests" in said
    assert "hush" not in said


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("--host", "0.0.0.0"), "--api-key-env"),
        (("--api-key-env", "STROP_TEST_NO_SUCH_KEY"), "--api-key-env"),
        (("--host", "999.1.1.1", "--insecure"), "--port"),
    ],
)
def test_it_refuses_before_it_loads(model: Path, arguments: tuple[str, ...], flag: str) -> None:
    result = CliRunner().invoke(app, ["serve", str(model), *arguments])
    assert isinstance(result.exception, InputError) and flag in str(result.exception)


def test_a_missing_model_is_an_error() -> None:
    result = CliRunner().invoke(app, ["serve", "./nowhere", "--port", "0"])
    assert isinstance(result.exception, InputError) and "nowhere" in str(result.exception)


def test_clients_call_a_folder_by_its_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunFolder.create("runs/first", {})
    checkpoint = folder_of(run.checkpoints, 40)
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    run.model.mkdir()
    run.close()
    names = {
        "runs/first": "first",
        "runs/first/": "first",
        "runs/first@40": "first@40",
        "runs/first@all": "first@40",
        str(tmp_path / "runs" / "first"): "first",
        "runs/first/model": "first",
        "runs/first/checkpoints": "checkpoints",
        "ours=runs/first@40": "ours",
        "embedded": "embedded",
        "Qwen/Qwen3-0.6B": "Qwen/Qwen3-0.6B",
    }
    assert {given: client_name(given, parse_models([given])[0]) for given in names} == names
    monkeypatch.chdir("runs/first/checkpoints")
    assert client_name("..", parse_models([".."])[0]) == "first"
