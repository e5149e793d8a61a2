"""Real training runs whose completions come from real servers of vLLM. Run by `make test-vllm`."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from tests.engines.served_runs import Listening, check_record
from tests.recipes import bases
from tests.runs import parameters, small_config

from strop.base.view import SilentView
from strop.config.parse import edit
from strop.config.tiny import tiny
from strop.model.settings import EMBEDDED
from strop.recipes import build
from strop.run.folder import RunFolder
from strop.run.run import train

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
VLLM = ("engine=Vllm", "engine.slots=16", "engine.eager=true", "engine.kv_cache_gib=0.25")


def servers_below(pid: int) -> set[int]:
    """The processes of `vllm serve` among the descendants of a process."""
    parents, found = {}, set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        if b"vllm.entrypoints.cli.main\0serve" in command and fields[0] != "Z":
            found.add(int(stat.parent.name))

    def below(one: int) -> bool:
        return one == pid or (one in parents and below(parents[one]))

    return {one for one in found if below(one) and parents[one] not in found}


@pytest.mark.parametrize("lag", [0, 2])
def test_three_steps_of_training(tmp_path: Path, lag: int) -> None:
    """The loop itself holds vLLM's log-probs against the trainer's after each of the updates."""
    sets = ["steps=3", "model.fresh.head_dim=32", f"orchestration.max_lag={lag}", "evaluation.every=3"]
    outcome = train(small_config(*sets, *VLLM), tmp_path / "run", SilentView())
    rows = check_record(tmp_path / "run", lag, 3)
    assert outcome.summary.steps == 3 and outcome.summary.held_out_pass_rate is not None
    assert all(torch.isfinite(tensor).all() for tensor in parameters(tmp_path / "run").values())
    # On-policy, generator and trainer agree on every sampled token.
    assert lag or all(row["mismatch/max"] < 1e-3 for row in rows)


def test_one_of_two_servers_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    steps, killed = 8, []

    def kill() -> None:
        while len(RunFolder.open(tmp_path / "run").rollout_steps() if (tmp_path / "run").is_dir() else ()) < 2:
            time.sleep(0.1)
        killed.extend(sorted(servers_below(os.getpid())))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    view = Listening()
    sets = ["model.fresh.head_dim=32", "orchestration.max_lag=2", "orchestration.generators=2", "evaluation.every=none"]
    train(small_config(*sets, f"steps={steps}", *VLLM), tmp_path / "run", view)
    killer.join()
    assert len(killed) == 2
    assert any("SIGKILL" in line for line in view.lines)
    check_record(tmp_path / "run", 2, steps)
    assert not servers_below(os.getpid())


@pytest.mark.parametrize("recipe", ["scalerl", "archer.math"])
def test_recipes_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, recipe: str
) -> None:
    """ScaleRL with its lag of 8 and its interruptions; Archer with its entropy control."""
    steps = 20
    bases.make(EMBEDDED, tmp_path_factory.getbasetemp(), monkeypatch)
    config = edit(tiny(build(recipe), steps), ["evaluation.every=none", *VLLM, "engine.slots=64"])
    train(config, tmp_path / "run", SilentView())
    rows = check_record(tmp_path / "run", config.orchestration.max_lag, steps)
    assert all(row["grad_norm"] > 0 for row in rows if row["lr"])
    if recipe == "scalerl":
        assert config.orchestration.max_lag == 8 and max(row["lag/max"] for row in rows) > 0
        assert sum(row["interruption/share"] > 0 for row in rows) > steps // 2
        folder = RunFolder.open(tmp_path / "run")
        drawn = [row for step in folder.rollout_steps() for row in folder.read_rollouts(step)]
        assert any(len(row["versions"]) > 1 for row in drawn)
