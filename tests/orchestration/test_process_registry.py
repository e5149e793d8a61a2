"""The registry tells the living from the dead, and every process that hangs says where."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from strop.base.types import InputError
from strop.orchestration.process_registry import (
    RegisteredWorker,
    dump_stacks,
    read_processes,
    register_dump,
    stacks_path,
    write_processes,
)
from strop_verify.child_process import process_state, start_ticks

WORKER = """
import sys, threading, time
from pathlib import Path
from strop.orchestration.process_registry import register_dump
register_dump(Path(sys.argv[1]))
def stuck_in_sleep():
    print("ready", flush=True)
    time.sleep(600)
def stuck_in_a_lock():
    lock = threading.Lock()
    lock.acquire()
    print("ready", flush=True)
    lock.acquire()
globals()[sys.argv[2]]()
"""


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said `ready`; killed at the end."""
    child = subprocess.Popen([sys.executable, "-c", *command], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@contextmanager
def hanging(run: Path, role: str, where: str) -> Iterator[RegisteredWorker]:
    with process(WORKER, str(stacks_path(run, role)), where) as child:
        yield RegisteredWorker.of(role, child.pid)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    workers = (RegisteredWorker.of("driver", os.getpid()), RegisteredWorker("generator-0", 77, 12, "elsewhere"))
    write_processes(tmp_path, workers)
    assert read_processes(tmp_path) == workers
    assert json.loads((tmp_path / "processes.json").read_text())[1] == {
        "role": "generator-0", "pid": 77, "started": 12, "host": "elsewhere",
    }  # fmt: skip


def test_a_folder_without_a_roster_has_no_processes_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    assert read_processes(tmp_path) == ()
    (tmp_path / "processes.json").write_text('[{"role": "driver"}]')
    with pytest.raises(InputError, match="processes.json"):
        read_processes(tmp_path)


def test_two_processes_of_one_role_are_refused(tmp_path: Path) -> None:
    here = RegisteredWorker.of("driver", os.getpid())
    with pytest.raises(ValueError):
        write_processes(tmp_path, [here, here])


def test_only_the_very_process_is_alive() -> None:
    here = RegisteredWorker.of("driver", os.getpid())
    assert here.alive
    assert not replace(here, started=here.started - 1).alive  # the id was given to another process since
    assert not replace(here, host="elsewhere").alive
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_state(child.pid) == "Z"
    assert start_ticks(child.pid) is None  # a zombie has ended
    child.wait()
    assert start_ticks(child.pid) is None


def test_every_process_writes_where_it_hangs(tmp_path: Path) -> None:
    sleeping, locked = ("generator-0", "stuck_in_sleep"), ("trainer-1", "stuck_in_a_lock")
    with hanging(tmp_path, *sleeping) as one, hanging(tmp_path, *locked) as other:
        write_processes(tmp_path, [RegisteredWorker.of("driver", os.getpid()), one, other])
        dump_stacks(tmp_path, read_processes(tmp_path), seconds=20)
        assert one.alive and other.alive  # being asked changes nothing
    assert "in stuck_in_sleep" in stacks_path(tmp_path, "generator-0").read_text()
    assert "in stuck_in_a_lock" in stacks_path(tmp_path, "trainer-1").read_text()
    assert "test_every_process_writes_where_it_hangs" in stacks_path(tmp_path, "driver").read_text()


def test_a_stopped_process_is_named_with_its_state(tmp_path: Path) -> None:
    with hanging(tmp_path, "trainer-0", "stuck_in_sleep") as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        while process_state(worker.pid) != "T":
            time.sleep(0.01)
        dump_stacks(tmp_path, [worker], seconds=0.3)
    assert "no stacks: the process did not answer (state T)" in stacks_path(tmp_path, "trainer-0").read_text()


def test_a_process_that_the_signal_would_end_is_spared(tmp_path: Path) -> None:
    with process("import time; print('ready', flush=True); time.sleep(600)") as child:
        worker = RegisteredWorker.of("verifier", child.pid)
        dump_stacks(tmp_path, [worker])
        assert child.poll() is None
    assert "no stacks: " in stacks_path(tmp_path, "verifier").read_text()


def test_the_dead_and_the_far_are_said_to_be_so(tmp_path: Path) -> None:
    here = RegisteredWorker.of("driver", os.getpid())
    gone = replace(here, role="generator-0", started=here.started + 1)
    far = replace(here, role="generator-1", host="node-7")
    dump_stacks(tmp_path, [gone, far])
    assert "no stacks: " in stacks_path(tmp_path, "generator-0").read_text()
    assert "(on node-7)" in stacks_path(tmp_path, "generator-1").read_text()


def test_the_file_is_there_before_anything_hangs(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    try:
        register_dump(tmp_path / "stacks" / "driver.txt")
        assert (tmp_path / "stacks" / "driver.txt").read_text() == ""
        os.kill(os.getpid(), signal.SIGUSR1)
        assert "test_the_file_is_there_before_anything_hangs" in (tmp_path / "stacks" / "driver.txt").read_text()
    finally:
        import faulthandler

        faulthandler.unregister(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, before)
