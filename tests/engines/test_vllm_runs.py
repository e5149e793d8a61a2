"""Real training runs whose completions come from real servers of vLLM. Run by `make test-vllm`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.engines.served_runs import check_record
from tests.recipes import bases
from tests.runs import parameters, small_config
from tests.watching import Notes

from strop.base import progress
from strop.base.view import SilentView
from strop.config.parse import edit
from strop.config.tiny import tiny
from strop.model.settings import EMBEDDED
from strop.recipes import build
from strop.run.folder import RunFolder
from strop.run.run import train

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
FREE = ("engine=Vllm", "engine.slots=16", "engine.eager=true")  # the cache takes its part of the memory that is free
VLLM = (*FREE, "engine.kv_cache_gib=0.25")


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
    outcome = train(small_config(*sets, *(FREE if lag else VLLM)), tmp_path / "run", SilentView())
    rows = check_record(tmp_path / "run", lag, 3)
    assert outcome.summary.steps == 3 and outcome.summary.held_out_pass_rate is not None
    assert all(torch.isfinite(tensor).all() for tensor in parameters(tmp_path / "run").values())
    # On-policy, generator and trainer agree on every sampled token.
    assert lag or all(row["mismatch/max"] < 1e-3 for row in rows)


def test_servers_are_killed_in_generation_and_in_an_evaluation_and_nothing_is_lost(tmp_path: Path) -> None:
    steps, killed, view = 8, [], Notes()

    def kill_once(due: Callable[[], bool]) -> None:
        while not due():
            time.sleep(0.05)
        killed.append(min(servers_below(os.getpid())))
        os.kill(killed[-1], signal.SIGKILL)

    def kill() -> None:
        run = tmp_path / "run"
        kill_once(lambda: run.is_dir() and len(RunFolder.open(run).rollout_steps()) >= 2)
        kill_once(lambda: any(part.name.startswith("evaluation of step 4") for part in progress.CURRENT.parts))

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    sets = ["model.fresh.head_dim=32", "orchestration.max_lag=2", "orchestration.generators=2", "evaluation.every=4"]
    found = train(small_config(*sets, f"steps={steps}", *VLLM), tmp_path / "run", view)
    killer.join()
    assert len(set(killed)) == 2
    assert sum("SIGKILL" in line and "is started again" in line for line in view.lines) == 2
    check_record(tmp_path / "run", 2, steps)
    assert not servers_below(os.getpid())
    versions = {step: (one.version, one.newest) for step, one in found.evaluations.items()}
    assert versions == {step: (step, step) for step in (0, 4, 8)}
    assert all(one.usable.all() for one in found.evaluations.values())


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
