"""Real runs in subprocesses: stopped, killed, resumed, failing; the others go on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.forks import forking
from tests.lab.ablation.cases import small_plan, write_base
from tests.runs import metrics, parameters
from tests.watching import Notes, in_child, until

from strop.base.types import InputError
from strop.base.view import SilentView
from strop.lab.ablation.collect import collect
from strop.lab.ablation.manifest import read_manifest, write_manifest
from strop.lab.ablation.scheduler import AblationProgress, environment, execute
from strop.run.folder import RunFolder
from strop.run.run import train

STEPS = 20


def lines(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def is_locked(run: Path) -> bool:
    """Whether a process writes to the run."""
    try:
        RunFolder.resume(run).close()
    except InputError:
        return True
    return False


def test_killed_and_resumed_while_another_variant_fails(tmp_path: Path) -> None:
    out = tmp_path / "out"
    base = out / "runs" / "base" / "seed0"
    manifest = small_plan(tmp_path, (0,), ["bad:optim.lr=1e30"], f"steps={STEPS}", "evaluation.every=10")

    child = in_child(lambda: execute(out, manifest, SilentView()))
    assert until(lambda: lines(base) >= 4, 120)
    assert is_locked(base) and [run.state for run in read_manifest(out).runs] == ["running", "waiting"]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert until(lambda: not is_locked(base), 10)  # its run died with it
    assert read_manifest(out).runs[0].state == "stopped" and not (base / "summary.json").exists()

    view = Notes()
    with forking():  # that an interpreter of its own runs it has been seen above
        done = execute(out, manifest, view)
    assert [run.state for run in done.runs] == ["finished", "failed"]
    assert "not finite" in str(done.runs[1].error)
    assert any(note.startswith("base seed 0: going on after step") for note in view.lines)
    assert [row["step"] for row in metrics(base)] == list(range(STEPS + 1))
    found = collect(out)
    assert found.failures and found.variants[0].finished[0].final is not None
    assert "not finite" in (out / "logs" / "bad-seed0.log").read_text()


@pytest.mark.slow
def test_ctrl_c_saves_the_last_step_and_the_same_command_goes_on(tmp_path: Path) -> None:
    target, out = (
        write_base(tmp_path, f"steps={STEPS}", "evaluation.every=10", "checkpoint.every=100"),
        tmp_path / "out",
    )
    command = [
        sys.executable,
        "-m",
        "strop",
        "ablate",
        str(target),
        "--variant",
        "bad:optim.lr=1e30",
        "--out",
        str(out),
    ]
    base = out / "runs" / "base" / "seed0"
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert until(lambda: lines(base) >= 3, 120)
    parent.send_signal(signal.SIGINT)
    _, said = parent.communicate(timeout=90)
    assert parent.returncode == 130
    assert said.strip().splitlines()[-1].startswith("strop: stopped; 0 of 2 runs are finished; the same command")
    assert [run.state for run in read_manifest(out).runs] == ["stopped", "waiting"]
    stopped_at = lines(base) - 1  # a line before training, then one a step
    assert 2 <= stopped_at < STEPS and not is_locked(base)

    again = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert again.returncode == 1 and again.stderr.splitlines()[-1].startswith("strop: 1 of 2 runs failed")
    assert f"base seed 0: going on after step {stopped_at}" in again.stderr
    assert "bad seed 0 failed: " in again.stdout and str(out / "figure.png") in again.stdout
    assert [row["step"] for row in metrics(base)] == list(range(STEPS + 1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two variants, two seeds, trained in this process where the ablation keeps them."""
    folder = tmp_path_factory.mktemp("trained")
    manifest = small_plan(folder, (0, 1), ["hot:sampling.temperature=1.5"])
    write_manifest(folder / "out", manifest)
    for run in manifest.runs:
        train(manifest.config(run), manifest.path(folder / "out", run), SilentView())
    return folder


def test_finished_runs_are_not_made_again(trained: Path) -> None:
    out, view = trained / "out", Notes()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    done = execute(out, small_plan(trained, (0, 1), ["hot:sampling.temperature=1.5"]), view)
    assert [run.state for run in done.runs] == ["finished"] * 4 and not (out / "logs").exists()
    assert view.lines == ["4 runs, 0 of them to make, 1 in parallel"]
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")} and len(before) == 4


def test_seeds_are_paired(trained: Path) -> None:
    def prompts(variant: str, seed: int) -> list[str]:
        run = RunFolder.open(trained / "out" / "runs" / variant / f"seed{seed}")
        return [row["problem_id"] for step in run.rollout_steps() for row in run.read_rollouts(step)]

    # The same problems in the same order, and the same model before training; other seeds have others.
    assert prompts("base", 0) == prompts("hot", 0) != prompts("base", 1) == prompts("hot", 1)
    assert all(len(prompts("base", seed)) == 4 * 6 * 4 for seed in (0, 1))
    first = [parameters(trained / "out" / "runs" / "base" / f"seed{seed}") for seed in (0, 1)]
    assert any((first[0][name] != first[1][name]).any() for name in first[0])
    found = collect(trained / "out")
    for run, other in zip(found.variants[0].runs, found.variants[1].runs, strict=True):
        assert run.curve is not None and other.curve is not None and run.curve.r0 == other.curve.r0


def test_steps_follow_a_file_that_grows_and_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    steps = AblationProgress(path)
    assert not steps.look()
    path.write_text(json.dumps({"step": 1}) + "\n" + json.dumps({"step": 2, "evaluation/pass_rate": 0.5}) + '\n{"st')
    assert steps.look() and (steps.step, steps.pass_rate) == (2, 0.5)
    assert not steps.look()
    with path.open("a") as file:  # the torn line is finished; an evaluation of an earlier step comes late
        file.write('ep": 3}\n' + json.dumps({"step": 2, "evaluation/pass_rate": 0.75}) + "\n")
    assert steps.look() and (steps.step, steps.pass_rate) == (3, 0.75)
    path.write_text(json.dumps({"step": 1}) + "\n")
    assert steps.look() and steps.step == 1


def test_cores_and_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert [environment(slot, 3)["OMP_NUM_THREADS"] for slot in range(3)] == ["2", "2", "2"]
    assert [environment(slot, 3)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["4", "6", "4"]
    assert "CUDA_VISIBLE_DEVICES" not in environment(0, 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert environment(0, 2)["OMP_NUM_THREADS"] == "1"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert environment(0, 16)["OMP_NUM_THREADS"] == "1"
