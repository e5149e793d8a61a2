"""A run that makes no progress ends: with its stacks, its processes gone and one line that says why."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.runs import assert_same_run, small_config
from tests.watching import until

from strop.base.progress import Progress
from strop.base.types import StropError
from strop.base.view import SilentView, Values
from strop.config.schema import RunConfig
from strop.orchestration.process_registry import RegisteredWorker, stacks_path
from strop.run import watchdog as module
from strop.run.run import resume, train
from strop.run.watchdog import NoProgress, Watch, kill_children
from strop_verify.sandbox.process import descendants

DRIVER = """
import ctypes, os, subprocess, sys, threading, time
from pathlib import Path
from strop.base.view import SilentView
from strop.run import watchdog as watch
from strop.base.progress import made
from strop.orchestration.process_registry import RegisteredWorker, stacks_path, write_processes
from strop.base.types import StropError
watch.BEAT_SECONDS = 0.1
run = Path(sys.argv[1])

def sleep():
    time.sleep(600)

def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()

def c_code_without_the_interpreters_lock(library=ctypes.CDLL):
    mutex = ctypes.create_string_buffer(64)  # zeros: a mutex that is free
    library(None).pthread_mutex_lock(mutex)
    library(None).pthread_mutex_lock(mutex)  # a signal does not end this wait

def c_code_with_the_interpreters_lock():
    c_code_without_the_interpreters_lock(ctypes.PyDLL)

def started_worker():
    text = (
        "import sys, time; from pathlib import Path; from strop.orchestration.process_registry import register_dump\\n"
        "register_dump(Path(sys.argv[1])); print('ready', flush=True)\\n"
        "def stuck_worker(): time.sleep(600)\\n"
        "stuck_worker()"
    )
    path = stacks_path(run, "generator-0")
    child = subprocess.Popen([sys.executable, "-c", text, str(path)], stdout=subprocess.PIPE)
    child.stdout.readline()
    write_processes(run, [RegisteredWorker.of("generator-0", child.pid)])
    return child

def worker():
    made("a completion")
    child.stdout.readline()

child = started_worker() if sys.argv[2] == "worker" else None
try:
    with watch.Watch(run, float(sys.argv[3]), SilentView(), grace=0.5):
        made("version 7")
        globals()[sys.argv[2]]()
except StropError as error:
    print(f"strop: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


def hang(run: Path, where: str, seconds: float = 1.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", DRIVER, str(run), where, str(seconds)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def status(run: Path) -> dict[str, object]:
    found = json.loads((run / "status.json").read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("where", ["sleep", "lock", "c_code_without_the_interpreters_lock"])
def test_wherever_the_main_thread_hangs_the_run_ends_with_one_line(tmp_path: Path, where: str) -> None:
    done = hang(tmp_path, where)
    assert done.returncode == 75
    (line,) = done.stderr.splitlines()
    assert line.startswith("strop: no progress for ")
    assert "the last was version 7" in line
    assert str(tmp_path / "stacks") in line
    assert line.endswith(f"go on with: strop train --resume {tmp_path}")
    assert f"in {where}" in stacks_path(tmp_path, "driver").read_text()
    assert status(tmp_path)["state"] == "stuck"
    assert line == f"strop: {status(tmp_path)['error']}"


def test_with_the_interpreters_lock_held_the_timer_in_c_ends_it(tmp_path: Path) -> None:
    done = hang(tmp_path, "c_code_with_the_interpreters_lock", 0.5)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "in c_code_with_the_interpreters_lock" in done.stderr


def test_a_stuck_worker_is_dumped_killed_and_named(tmp_path: Path) -> None:
    done = hang(tmp_path, "worker")
    assert done.returncode == 75
    assert "the last was a completion" in done.stderr
    assert "in stuck_worker" in stacks_path(tmp_path, "generator-0").read_text()
    (row,) = json.loads((tmp_path / "processes.json").read_text())
    assert not RegisteredWorker(**row).alive


def test_what_makes_progress_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.02)
    progress = Progress()
    with Watch(tmp_path, 60.0, SilentView(), progress) as watch:
        watch.view.stage("rl", 10)
        watch.view.advance(3, {})
        watch.view.note("a checkpoint")
        progress.part("evaluation", 2, 8)
        assert until(lambda: status(tmp_path)["doing"] is not None)
        beat = status(tmp_path)
        assert (beat["state"], beat["stage"], beat["step"], beat["steps"]) == ("running", "rl", 3, 10)
        assert beat["doing"] == ["evaluation", 2, 8]
        assert beat["pid"] == os.getpid()
    end = status(tmp_path)
    assert end["state"] == "finished" and end["error"] is None
    assert [note["text"] for note in end["notes"]] == ["a checkpoint"]  # type: ignore[attr-defined]


def test_the_way_it_ended_is_written(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Watch(tmp_path, None, SilentView()):
        raise KeyboardInterrupt
    assert status(tmp_path)["state"] == "interrupted"
    with pytest.raises(StropError), Watch(tmp_path, None, SilentView()):
        raise StropError("the disk is full")
    assert status(tmp_path)["state"] == "failed" and status(tmp_path)["error"] == "the disk is full"
    with pytest.raises(ZeroDivisionError), Watch(tmp_path, None, SilentView()):
        _ = 1 / 0
    assert status(tmp_path)["error"] == "ZeroDivisionError: division by zero"


def test_only_a_run_that_failed_carries_what_was_being_done(tmp_path: Path) -> None:
    failure = ZeroDivisionError()
    for error, kept in ((None, 1), (KeyboardInterrupt(), 1), (failure, 2)):
        with contextlib.suppress(KeyboardInterrupt, ZeroDivisionError), Watch(tmp_path, None, SilentView()) as watch:
            watch.view.note("a warning")
            watch.view.passing("going on after step 4")
            watch.write("running")
            beat = status(tmp_path)
            if error is not None:
                raise error
        for found, count in ((beat, 2), (status(tmp_path), kept)):
            told = [note["text"] for note in found["notes"]]  # type: ignore[attr-defined]
            assert told == ["a warning", "going on after step 4"][:count]


def test_time_in_which_the_whole_process_stood_still_does_not_count() -> None:
    progress = Progress()
    progress._latest = ("tokens", time.monotonic() - 1000)
    progress.excuse(990)
    assert 9 < progress.age < 12
    progress.excuse(990)  # never into the future
    assert progress.age < 2


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Watch(tmp_path / "file", None, SilentView()) as watch:
        watch.write("running")
    assert not (tmp_path / "file" / "status.json").exists()


def test_children_and_theirs_are_ended() -> None:
    sleep = "import time; time.sleep(600)"
    text = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{sleep}']); {sleep}"
    child = subprocess.Popen([sys.executable, "-c", text], start_new_session=True)
    assert until(lambda: len(descendants(child.pid)) > 1)
    grandchild = RegisteredWorker.of("grandchild", descendants(child.pid)[1])
    parent = RegisteredWorker.of("child", child.pid)
    assert [parent.alive, grandchild.alive] == [True, True]
    assert {child.pid, grandchild.pid} <= set(descendants(os.getpid()))
    kill_children(child.pid)
    assert until(lambda: not grandchild.alive)
    assert [parent.alive, grandchild.alive] == [True, False]
    child.kill()
    child.wait()


class Hanging(SilentView):
    """A terminal that does not take the second line."""

    def advance(self, step: int, metrics: Values) -> None:
        if step == 2:
            time.sleep(600)


def test_a_run_that_was_ended_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config: RunConfig = small_config("orchestration.watchdog_seconds=5")
    with pytest.raises(NoProgress):
        train(config, tmp_path / "stuck", Hanging())
    assert status(tmp_path / "stuck")["state"] == "stuck"
    # On a machine that does other work anything may take five seconds: the rest is not watched.
    monkeypatch.setattr("strop.run.run.Watch", lambda run, seconds, view: Watch(run, None, view))
    resume(tmp_path / "stuck", SilentView())
    assert status(tmp_path / "stuck")["state"] == "finished"
    train(config, tmp_path / "whole", SilentView())
    assert_same_run(tmp_path / "stuck", tmp_path / "whole")
