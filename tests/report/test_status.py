"""`strop status` from the folder only: alive, ended, dead, elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strop.base.view import SilentView
from strop.cli import app
from strop.orchestration.process_registry import RegisteredWorker, write_processes
from strop.report.status import read_status
from strop.run.folder import RunFolder
from strop.run.watchdog import Watch


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 100 steps of which three are done, of 8, 10 and 12 s."""
    folder = RunFolder.create(tmp_path / "run", {"recipe": "grpo", "steps": 100})
    for step, seconds in enumerate((8.0, 10.0, 12.0), start=1):
        folder.append_metrics(step, {"pass_rate": 0.4, "seconds/step": seconds})
    folder.close()
    return tmp_path / "run"


def tell(run: Path, **changes: Any) -> None:
    """Change what the heartbeat says."""
    value = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(value | changes))


def beaten(run: Path) -> None:
    """A heartbeat of this process, as it is while a run goes on."""
    watch = Watch(run, 1800, SilentView())
    watch.view.stage("rl", 100)
    watch.view.note("first")
    watch.progress.made("a completion")
    watch.write("running")


def test_a_running_one_is_measured(run: Path) -> None:
    beaten(run)
    write_processes(run, [RegisteredWorker.of("generator-0", os.getppid())])
    found = read_status(RunFolder.open(run))
    assert (found.state, found.recipe, found.step, found.steps) == ("running", "grpo", 3, 100)
    assert found.eta == pytest.approx(97 * 10)
    assert found.step_seconds == pytest.approx(10)
    assert found.pass_rates == {"training": (0.4, 3)}
    assert found.progress is not None and found.progress[0] == "a completion"
    assert found.notes == ("first",)
    driver, generator = found.processes
    assert (driver.role, driver.pid, driver.alive) == ("driver", os.getpid(), True)
    assert (generator.role, generator.pid, generator.alive) == ("generator-0", os.getppid(), True)


def test_a_driver_that_is_gone_is_dead(run: Path) -> None:
    beaten(run)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    worker = RegisteredWorker.of("driver", child.pid)
    tell(run, pid=worker.pid, started=worker.started)
    assert read_status(RunFolder.open(run)).state == "running"
    child.kill()
    child.wait()
    found = read_status(RunFolder.open(run))
    assert found.state == "dead" and f"process {worker.pid}" in found.explanation
    assert found.explanation.endswith(f"go on with: strop train --resume {run}")
    assert found.eta is None and found.processes[0].alive is False
    shown = CliRunner().invoke(app, ["status", str(run)]).stdout  # a run is dead, a process has ended
    assert shown.count("dead") == 1
    assert any(str(child.pid) in line and "ended" in line for line in shown.splitlines()[1:])


def test_a_driver_without_a_heartbeat_is_stalled(run: Path) -> None:
    beaten(run)
    tell(run, time=time.time() - 100)
    found = read_status(RunFolder.open(run))
    assert found.state == "stalled" and "no heartbeat for 100 s" in found.explanation


def test_processes_of_another_machine_cannot_be_seen(run: Path) -> None:
    beaten(run)
    tell(run, host="node-7")
    found = read_status(RunFolder.open(run))
    assert found.state == "running" and "it runs on node-7, whose processes cannot be seen" in found.explanation
    assert found.processes[0].alive is None
    tell(run, time=time.time() - 100)
    found = read_status(RunFolder.open(run))
    assert found.state == "unknown" and "its last heartbeat is 100 s old" in found.explanation


@pytest.mark.parametrize(
    ("state", "error", "expected"),
    [
        ("finished", None, "finished"),
        ("interrupted", "stopped after step 3 of 100", "interrupted"),
        ("failed", "the disk is full", "failed"),
        ("stuck", "no progress; go on with: strop train --resume RUN", "stuck"),
    ],
)
def test_an_end_is_told_as_it_was_written(run: Path, state: str, error: str | None, expected: str) -> None:
    beaten(run)
    tell(run, state=state, error=error)
    found = read_status(RunFolder.open(run))
    assert (found.state, found.error, found.eta) == (expected, error, None)
    assert found.processes == ()


def test_a_folder_without_a_heartbeat_is_judged_by_its_summary(run: Path) -> None:
    assert read_status(RunFolder.open(run)).state == "unknown"
    (run / "summary.json").write_text("{}")
    assert read_status(RunFolder.open(run)).state == "finished"


def test_a_folder_in_which_nothing_was_trained_says_so(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", {"recipe": "grpo", "steps": 100}).close()
    found = read_status(RunFolder.open(tmp_path / "run"))
    assert (found.state, found.step, found.steps) == ("new", 0, 100)
    shown = CliRunner().invoke(app, ["status", str(tmp_path / "run")])
    assert shown.exit_code == 0
    assert "strop train --resume" in shown.stdout


def test_without_its_metrics_a_run_still_says_how_far_it_is_known_to_have_come(run: Path) -> None:
    beaten(run)
    tell(run, state="finished", step=100)
    (run / "metrics.jsonl").unlink()
    found = read_status(RunFolder.open(run))
    assert (found.state, found.step) == ("finished", 100) and "metrics.jsonl" in found.explanation
    (run / "status.json").unlink()
    checkpoint = run / "checkpoints" / "step-00000040"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    found = read_status(RunFolder.open(run))
    assert (found.state, found.step) == ("unknown", 40) and "has no status.json" in found.explanation
    (run / "summary.json").write_text('{"steps": 99}')
    found = read_status(RunFolder.open(run))
    assert (found.state, found.step, found.pass_rates) == ("finished", 99, {})


def test_a_resumed_run_counts_from_its_metrics(run: Path) -> None:
    folder = RunFolder.resume(run)
    folder.truncate(2)
    folder.close()
    beaten(run)  # the view has not advanced yet
    found = read_status(RunFolder.open(run))
    assert found.step == 2 and found.eta == pytest.approx(98 * 9)


def test_what_was_measured_of_an_earlier_step_says_so(run: Path) -> None:
    folder = RunFolder.open(run)
    folder.append_metrics(3, {"evaluation/exam/pass_rate": 0.25})
    folder.append_metrics(2, {"evaluation/pass_rate": 0.5, "evaluation/stderr": 0.1})  # in after step 3
    folder.close()
    found = read_status(folder)
    assert found.step == 3
    assert found.pass_rates == {"training": (0.4, 3), "held-out": (0.5, 2), "exam": (0.25, 3)}
    shown = CliRunner().invoke(app, ["status", str(run)])
    assert "pass rate  training 40.0%, held-out 50.0% (step 2), exam 25.0%\n" in shown.stdout


def test_the_command_prints_lines_json_and_an_exit_code(run: Path) -> None:
    beaten(run)
    shown = CliRunner().invoke(app, ["status", str(run)])
    assert shown.exit_code == 0
    for part in ("running", "step       3 of 100, about 16 min 10 s left", "pass rate  training 40.0%", "driver"):
        assert part in shown.stdout
    value = json.loads(CliRunner().invoke(app, ["status", str(run), "--json"]).stdout)
    assert (value["state"], value["step"], value["processes"][0]["pid"]) == ("running", 3, os.getpid())
    tell(run, state="failed", error="the disk is full")
    shown = CliRunner().invoke(app, ["status", str(run)])
    assert shown.exit_code == 1 and "the disk is full" in shown.stdout


def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "strop", "status", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"strop: {tmp_path} is not a run of strop (it has no run.json)\n"


def test_a_fine_tuning_run_has_seconds_a_step(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "sft", {"demonstrations": "worked.jsonl", "seed": 0})
    folder.append_metrics(1, {"loss": 2.0, "seconds/step": 0.5})
    folder.close()
    done = CliRunner().invoke(app, ["status", str(tmp_path / "sft")])
    assert "seconds    0.5 a step\n" in done.output
