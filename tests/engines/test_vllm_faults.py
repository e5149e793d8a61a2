"""Whole runs with servers that are somebody's, named by URLs with a key, and that go wrong on the way."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.engines.fake_vllm import ServedModel, running
from tests.engines.served_runs import check_record
from tests.runs import small_config
from tests.tiny import byte_tokenizer
from tests.watching import Notes

from strop.base.seeds import derive
from strop.model.policy import load_policy
from strop.run.run import train

STEPS, LAG = 8, 2
# The servers compute in this process: on a busy machine they may be silent for seconds without hanging.
SETS = (
    "engine=Vllm", "engine.slots=16", "engine.reply_seconds=12", "engine.api_key_env=STROP_TEST_KEY", f"steps={STEPS}",
    "orchestration.generators=3", f"orchestration.max_lag={LAG}", "evaluation.every=none",
)  # fmt: skip
# What a server does once, and what may be said of it: a server that hangs may be asked to end requests meanwhile.
FAULTS = {
    "error": ("answered 500",),
    "hang": ("has drawn nothing for", "does not end what it is to end"),
    "short": ("by length after",),
}


def still_while_forking(servers: Iterable[ServedModel], patch: pytest.MonkeyPatch) -> None:
    """Have no thread of a server compute while a worker is forked, which would never get the locks it then holds."""
    starts: Any = subprocess.Popen

    def started(*command: Any, **options: Any) -> Any:
        with ExitStack() as held:
            for server in servers:
                held.enter_context(server.changed)
            return starts(*command, **options)

    patch.setattr("strop_verify.child_process.subprocess.Popen", started)


def test_servers_that_go_wrong_cost_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: None) -> None:
    monkeypatch.setenv("STROP_TEST_KEY", "hush")
    config = small_config(*SETS)
    policy = load_policy(config.model, byte_tokenizer(), derive(config.seed, "model"))[0]
    with ExitStack() as stack:
        servers = {fault: stack.enter_context(running(ServedModel(policy))) for fault in FAULTS}
        for fault, server in servers.items():
            server.key, server.faults, server.after = "hush", [fault], 4
        # A patch of its own, undone here: after the fixture `forked` it would bring back what that had put in place.
        still_while_forking(servers.values(), stack.enter_context(pytest.MonkeyPatch.context()))
        view = Notes()
        urls = ", ".join(f'"{server.url}"' for server in servers.values())
        train(small_config(*SETS, f"engine.urls=[{urls}]"), tmp_path / "run", view)
    told = [line for line in view.lines if " died (" in line]
    assert len(told) == len(FAULTS) and "hush" not in " ".join(view.lines), told
    for fault, said in FAULTS.items():
        assert not servers[fault].faults and any(one in line for line in told for one in said), told
    check_record(tmp_path / "run", LAG, STEPS)
    assert all(int(server.version) > 0 for server in servers.values())
