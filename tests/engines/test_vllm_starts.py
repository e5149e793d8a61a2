"""How a server of vLLM is started: its environment, its model's path, and what is said while it starts or fails to."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.runs import small_config
from tests.tiny import tiny_settings
from tests.watching import Notes, until

from strop.base import machine, progress
from strop.base.types import StropError
from strop.engines.base import RequestLimits
from strop.engines.settings import Vllm
from strop.engines.vllm.server import arguments_of, environment_of, start
from strop.run.run import train

OURS = {
    "PYTHONPATH": "/ours", "PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "a:b",
    "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "1", "RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "a",
    "TORCHELASTIC_RUN_ID": "7", "SLURM_PROCID": "3", "RAY_ADDRESS": "a:1", "STROP_VLLM_PYTHON": "/x",
    "VLLM_API_KEY": "of another server",
}  # fmt: skip
THEIRS = {
    "PATH": "/bin", "HOME": "/h", "LD_LIBRARY_PATH": "/l", "HF_HOME": "/hf", "VLLM_USE_DEEP_GEMM": "1",
    "NCCL_DEBUG": "x", "https_proxy": "http://p", "NO_PROXY": "a", "LC_ALL": "C", "CUDA_HOME": "/cuda",
    "XDG_CACHE_HOME": "/c",
}  # fmt: skip


def interpreter(place: Path, script: str) -> Vllm:
    """Settings whose interpreter is a shell script."""
    python = place / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return Vllm(slots=16, python=str(python))


def test_finding_1_a_server_gets_what_it_needs_and_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in (OURS | THEIRS).items():
        monkeypatch.setenv(name, value)
    found = environment_of(Vllm(eager=True), (2, 3))
    assert not OURS.keys() & found.keys()
    assert {name: found[name] for name in THEIRS} == THEIRS
    assert found["CUDA_VISIBLE_DEVICES"] == "2,3" and found["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in environment_of(Vllm(), None)


def test_finding_10_a_model_has_the_same_path_at_every_start(tmp_path: Path) -> None:
    """vLLM finds its compiled graphs by the path, which was that of a new temporary folder each time."""
    settings = interpreter(tmp_path, 'while [ "$1" != serve ]; do shift; done; echo "$2"; cat "$2/config.json"')
    paths = []
    for number, layers in enumerate((2, 2, 3)):
        folder = tmp_path / f"model-{number}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"layers": layers}))
        server = start(settings, folder, {}, None)
        while server.alive:
            time.sleep(0.01)
        path, config = server.log.read_text().split("\n", 1)
        assert json.loads(config) == {"layers": layers}
        paths.append(path)
        server.stop()
    assert paths[0] == paths[1] != paths[2] and not Path(paths[0]).is_absolute()


def test_a_cpu_with_half_its_memory_taken_has_room_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = RequestLimits(512, 258, ())
    monkeypatch.setattr(machine, "memory", lambda: (16 * machine.GIB, 8 * machine.GIB))
    monkeypatch.setattr(machine, "has_gpu", lambda: False)
    found = arguments_of(Vllm(memory_fraction=0.5), tiny_settings(), "float32", limits)
    assert found["kv_cache_memory_bytes"] == 2 * machine.GIB
    found = arguments_of(Vllm(kv_cache_gib=0.5), tiny_settings(), "float32", limits)
    assert found["kv_cache_memory_bytes"] == machine.GIB // 2
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    assert "kv_cache_memory_bytes" not in arguments_of(Vllm(), tiny_settings(), "float32", limits)


def test_a_socket_can_be_reached_where_the_folder_of_temporary_files_has_a_long_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As batch systems have it; the path of a socket is 107 bytes at most."""
    long = tmp_path / ("scratch-of-job-" * 8)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    (tmp_path / "config.json").touch()
    listen = "from socket import *; s = socket(AF_UNIX); s.bind(sys.argv[1]); s.listen(); s.accept(), s.accept()"
    program = f"exec {sys.executable} -c 'import sys; {listen}' $2"
    settings = interpreter(tmp_path, f"while [ $1 != --uds ]; do shift; done; {program}")
    server = start(settings, tmp_path, {}, None)
    try:
        assert (long / server.place.name / "socket") == server.place / "socket"
        with socket.socket(socket.AF_UNIX) as client:
            assert until(lambda: not (client.connect_ex(str(server.socket)) and server.alive), 60)
            assert client.getpeername() == "socket"
    finally:
        server.stop()


@pytest.mark.parametrize("lag", [0, 1])
def test_a_server_that_ends_before_it_has_served_ends_the_run_with_its_words(
    tmp_path: Path, forked: None, lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, seen, shown, view = tmp_path / "starts", tmp_path / "seen", list[str](), Notes()

    def show(text: str) -> None:
        shown.append(text)
        if "second" in text:
            seen.touch()

    monkeypatch.setattr(progress, "SILENCE", 0.5)
    monkeypatch.setattr(progress.CURRENT, "show", show)
    waits = f"echo x >> {starts}; while [ ! -e {seen} ]; do sleep 0.1; done"
    settings = interpreter(tmp_path, f"{waits}; echo 'ValueError: no such attention'; exit 1")
    config = small_config("engine=Vllm", f"engine.python={settings.python}", f"orchestration.max_lag={lag}")
    told = pytest.raises(StropError, match=r"log\.txt, says: ValueError: no such attention")
    with told, progress.heartbeat():
        train(config, tmp_path / "run", view)
    assert starts.read_text() == "x\n"  # not ten times
    assert any(re.search(r"vLLM's server starts, its log is /.*second \d+/900", line) for line in shown)
    assert not any("is started again" in line for line in view.lines)
