"""Whole runs over trainer ranks: as one rank trains, killed and stopped ranks, resumed with another number of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forks import forking
from tests.orchestration.invariants import assert_sound_folder
from tests.runs import assert_same_run, metrics, parameters, small_config
from transformers import AutoModel, AutoModelForCausalLM

from strop.base.types import InputError
from strop.base.view import SilentView
from strop.config.schema import RunConfig
from strop.orchestration.processes import Processes
from strop.orchestration.rank_group import RankGroupLost
from strop.run.folder import RunFolder
from strop.run.learners import RankGroupLearner
from strop.run.models import open_checkpoint
from strop.run.run import resume, train
from strop.training import checkpoint

SETS = (
    "algorithm.advantage=Gae", "critic.updates_per_step=2", "critic.optim.lr=1e-2", "steps=4",
    'algorithm.regularizers=[{piece="KlPenalty", beta=0.1}]', "algorithm.reference.reset_every=2",
    "algorithm.selection.zero_variance=keep", "evaluation.asynchronous=false",
)  # fmt: skip
# What is looked for where a rank is stopped: on a busy machine the others are silent for seconds too.
SILENCE = {signal.SIGKILL: (), signal.SIGSTOP: ("orchestration.silence_seconds=10",)}


def config(trainers: int, *more: str) -> RunConfig:
    return small_config(*SETS, f"orchestration.trainers={trainers}", *more)


def assert_same_curve(one: Path, other: Path) -> None:
    """The same losses and norms at every step, but for rounding."""
    for left, right in zip(metrics(one), metrics(other), strict=True):
        for name in {"loss", "grad_norm", "critic/loss", "tokens", "evaluation/pass_rate"} & right.keys():
            assert left[name] == pytest.approx(right[name], rel=1e-3, abs=1e-5), (right["step"], name)


class DoesAfter(SilentView):
    """Does something to the process of a role when a training step is done; once."""

    def __init__(self, run: Path, step: int, role: str, number: int) -> None:
        self.run, self.step, self.role, self.number = run, step, role, number
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def advance(self, step: int, metrics: object) -> None:
        if step == self.step:
            self.step = -1
            rows: list[dict[str, Any]] = json.loads((self.run / "processes.json").read_text())
            os.kill(next(row["pid"] for row in rows if row["role"] == self.role), self.number)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    with forking():
        train(config(2), out, SilentView())
    return out


def test_two_ranks_train_as_one_process_does(undisturbed: Path, tmp_path: Path) -> None:
    with forking():
        train(config(1, "orchestration.executor=embedded"), tmp_path / "one", SilentView())
    assert_same_curve(tmp_path / "one", undisturbed)


def test_what_ranks_export_is_what_they_trained(undisturbed: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(undisturbed / "model")
    saved = checkpoint.load(undisturbed / "checkpoints").tensors
    assert all(torch.equal(value, saved["policy"][name]) for name, value in model.named_parameters())
    critic = AutoModel.from_pretrained(undisturbed / "critic")
    assert all(torch.equal(value, saved["critic"][f"model.{name}"]) for name, value in critic.named_parameters())
    policy, _ = open_checkpoint(RunFolder.open(undisturbed))
    assert all(torch.equal(value, saved["policy"][name]) for name, value in policy.weights().items())


@pytest.mark.parametrize(
    "number, role",
    [(signal.SIGKILL, "trainer-1"), pytest.param(signal.SIGSTOP, "trainer-0", marks=pytest.mark.slow)],
)
def test_a_lost_rank_costs_nothing_but_time(
    undisturbed: Path, tmp_path: Path, number: signal.Signals, role: str
) -> None:
    view = DoesAfter(tmp_path / "run", 2, role, number)
    with forking():
        train(config(2, *SILENCE[number]), tmp_path / "run", view)
    lost = [note for note in view.notes if "the trainer is lost" in note]
    assert len(lost) == 1 and role in lost[0] and "going on from the last checkpoint" in lost[0]
    assert any("going on after step" in note for note in view.notes)
    assert_sound_folder(tmp_path / "run", undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [1, 2, 4, 8])
@pytest.mark.parametrize(("number", "role"), [(signal.SIGKILL, "trainer-1"), (signal.SIGSTOP, "trainer-0")])
def test_a_pipeline_that_loses_a_rank_is_sound(tmp_path: Path, number: signal.Signals, role: str, lag: int) -> None:
    out = tmp_path / "run"
    sets = (f"orchestration.max_lag={lag}", f"steps={lag + 4}", "orchestration.kv=recompute", "checkpoint.keep=99",
            *SILENCE[number])  # fmt: skip
    view = DoesAfter(out, 2, role, number)
    with forking():
        train(small_config("optim.lr=1e-2", "orchestration.trainers=2", "evaluation.every=none", *sets), out, view)
    assert sum("the trainer is lost" in note for note in view.notes) == 1
    assert_sound_folder(out, None)


@pytest.mark.slow
def test_losses_beyond_the_budget_end_the_run_and_it_can_be_resumed(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with forking():
        with pytest.raises(RankGroupLost, match="trainer-0: .*SIGKILL"):
            train(config(2, "orchestration.trainer_restarts=0"), out, DoesAfter(out, 2, "trainer-0", signal.SIGKILL))
        assert checkpoint.latest(out / "checkpoints") in (1, 2)
        edit(out, lambda stored: stored["orchestration"].update(trainer_restarts=3))
        resume(out, SilentView())
    assert_same_run(undisturbed, out)


def edit(out: Path, change: Callable[[dict[str, Any]], object]) -> None:
    stored = json.loads((out / "config.json").read_text())
    change(stored)
    (out / "config.json").write_text(json.dumps(stored))


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_is_resumed_by_another_number_of_ranks(undisturbed: Path, tmp_path: Path, ranks: int) -> None:
    out = tmp_path / "run"
    with forking():
        train(config(2, "checkpoint.keep=9"), out, SilentView())
        edit(out, lambda stored: stored["orchestration"].update(trainers=ranks, executor="embedded"))
        resume(out, SilentView(), step=2)
    assert_same_curve(out, undisturbed)
    left, right = parameters(out), parameters(undisturbed)
    assert all(torch.allclose(left[name], right[name], atol=1e-4) for name in left)
    back = checkpoint.load(out / "checkpoints")  # of the new number of ranks
    assert back.step == 4 and (back.path / "policy.1.safetensors").is_file() == (ranks > 1)


def test_adapters_are_trained_by_ranks_and_by_one_that_goes_on(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    adapted = ("model.lora.rank=4", "model.lora.alpha=8", "checkpoint.keep=9")
    with forking():
        train(config(1, "orchestration.executor=embedded", *adapted), one, SilentView())
        train(config(2, *adapted), two, SilentView())
        assert_same_curve(two, one)
        kept = checkpoint.load(two / "checkpoints").tensors["policy"]
        assert {name.rpartition(".")[2] for name in kept} == {"lora_A", "lora_B", "base_checksum"}
        edit(two, lambda stored: stored["orchestration"].update(trainers=1, executor="embedded"))
        resume(two, SilentView(), step=2)
    assert_same_curve(two, one)
    model = AutoModelForCausalLM.from_pretrained(two / "model")
    policy, _ = open_checkpoint(RunFolder.open(two))
    assert all(torch.equal(value, policy.weights()[name]) for name, value in model.named_parameters())


@pytest.mark.slow
def test_spawned_ranks_come_to_what_forked_ones_do(undisturbed: Path, tmp_path: Path) -> None:
    train(config(2), tmp_path / "run", SilentView())
    assert_same_run(undisturbed, tmp_path / "run")


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads the kernel's list of sockets")
def test_ranks_listen_on_the_loopback_device_alone(tmp_path: Path, scattered: bool) -> None:
    with forking():
        learner = RankGroupLearner(config(2), Processes(), print, scattered)
        learner.start(tmp_path)
        try:
            assert learner.sizes().devices == 2 and learner.sizes().parameters > 0
            pids = [row["pid"] for row in json.loads((tmp_path / "processes.json").read_text())[1:]]
            heard = {address for pid in pids for address in listening(pid)}
        finally:
            learner.close()
    assert heard == {"0100007F"}  # 127.0.0.1


def listening(pid: int) -> set[str]:
    """The addresses that a process listens on, as the kernel writes them."""
    sockets = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and f"socket:[{parts[9]}]" in sockets:
                found.add(parts[1].split(":")[0])
    return found


def test_an_executor_that_needs_the_parameters_here_is_refused(tmp_path: Path) -> None:
    with forking(), pytest.raises(InputError, match="executor=in_process"):
        train(config(2, "orchestration.executor=in_process"), tmp_path / "run", SilentView())
