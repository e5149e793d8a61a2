"""Spawned workers: messages both ways, deaths known at once and with their reason, nobody left behind."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forks import forking
from tests.orchestration.workers import hear
from tests.watching import alive, until

from strop.base.types import StropError
from strop.orchestration.processes import Processes, ProcessHandle
from strop.orchestration.workers import Death, Supervision, WorkerSpec, end

ECHO = "tests.orchestration.workers:echo"


def dies(launcher: Processes, handle: ProcessHandle) -> str:
    """Receive until the worker is dead; why it is."""
    while hear(launcher, handle):
        pass
    assert handle.death is not None
    return handle.death.reason


class Ended(threading.Thread):
    """Waits for a process beside the launcher, without taking its status; `at` is when the kernel said it had ended."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.at = 0.0
        self.start()

    def run(self) -> None:
        with contextlib.suppress(ChildProcessError):  # the launcher has been faster
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.at = time.monotonic()


class Kept(Processes):
    """Keeps its handles."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.handles: list[ProcessHandle] = []

    def launch(self, spec: WorkerSpec) -> ProcessHandle:
        self.handles.append(super().launch(spec))
        return self.handles[-1]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Processes]:
    found = Kept(tmp_path)
    yield found
    end(found, found.handles, seconds=0.5)


@pytest.fixture
def worker(launcher: Processes) -> ProcessHandle:
    handle = launcher.launch(WorkerSpec("echo-0", ECHO, {"a": 1}, threads=3, environment={"OF": "its own"}))
    assert hear(launcher, handle) == [("settings", {"a": 1}, "3")]
    return handle


def test_messages_go_both_ways_in_order(launcher: Processes, worker: ProcessHandle) -> None:
    big = os.urandom(20_000_000)  # a socket holds a hundredth of it
    for message in (1, big, "three"):
        worker.send(message)
    found: list[Any] = []
    while len(found) < 3:
        found += hear(launcher, worker)
    assert found == [1, big, "three"] and worker.death is None
    worker.send("surroundings")
    [(environment, stdin)] = hear(launcher, worker)
    assert environment["OF"] == "its own" and environment["PATH"] == os.environ["PATH"]
    assert environment["PYTHONPATH"].split(os.pathsep) == [entry for entry in sys.path if entry]
    assert stdin == os.devnull
    end(launcher, [worker])
    assert worker.process.status == 0


def test_a_death_is_known_at_once(launcher: Processes) -> None:
    """Counted from when the kernel has ended the worker: to free its memory takes the kernel a while by itself."""
    late: list[float] = []
    for number in range(5):
        with forking():
            worker = launcher.launch(WorkerSpec(f"echo-{number}", ECHO, None))
        hear(launcher, worker)
        ended = Ended(worker.pid)
        os.kill(worker.pid, signal.SIGKILL)
        launcher.wait([worker], 10)
        known = time.monotonic()
        ended.join()
        late.append(known - ended.at)
        assert worker.death is not None and worker.death.reason == "it was ended by SIGKILL" and not worker.death.fatal
        worker.send("too late")
        assert worker.receive() == []
    # The bar is 0.1 s. A machine with other work may miss it now and then, but who only looked once a second would
    # hardly meet it twice of five times. `bench/pipeline.py death` measures it: a few milliseconds.
    assert max(late) < 2.0 and sorted(late)[1] < 0.1, late


@pytest.mark.usefixtures("forked")
def test_what_was_sent_before_a_death_is_received(launcher: Processes, worker: ProcessHandle) -> None:
    worker.send("many")
    found: list[Any] = []
    while messages := hear(launcher, worker):
        found += messages
    assert [number for number, _ in found] == list(range(50))
    assert worker.death is not None


def death(handle: ProcessHandle) -> Death | None:
    """As it is now."""
    return handle.death


def over(handle: ProcessHandle) -> bool:
    """Whether its end is known, read or not."""
    return handle.end is not None


class Looked(deque[Any]):
    """An inbox: while it is looked at for the first time, the last message comes in and the worker ends."""

    def __init__(self, handle: ProcessHandle) -> None:
        super().__init__()
        self.handle: ProcessHandle | None = handle

    def __bool__(self) -> bool:
        found, handle, self.handle = len(self) > 0, self.handle, None
        if handle is not None:
            self.append("the last")
            handle.end = Death("it has ended")
        return found


def test_a_death_is_not_told_before_the_last_message(launcher: Processes) -> None:
    with forking():
        handle = launcher.launch(WorkerSpec("echo-0", ECHO, None))
    hear(launcher, handle)
    handle.inbox = Looked(handle)
    assert death(handle) is None and handle.receive() == ["the last"]
    assert death(handle) == Death("it has ended")
    handle.end = None
    handle.inbox.append("unread")
    handle.kill("for a reason")
    handle.kill("for another one")
    assert until(lambda: over(handle), 20)
    assert death(handle) is None and handle.receive() == ["unread"]
    assert death(handle) == Death("for a reason")
    silence = handle.silence
    time.sleep(0.01)
    assert handle.silence == silence  # for nobody listens any more


def test_nothing_is_heard_after_a_message_that_cannot_be_read(launcher: Processes) -> None:
    with forking():
        handle = launcher.launch(WorkerSpec("echo-0", ECHO, None))
    hear(launcher, handle)
    handle.send("nonsense")
    assert hear(launcher, handle) == []
    assert handle.death is not None and "Unpickling" in handle.death.reason


def test_whoever_is_dismissed_may_say_a_last_thing(launcher: Processes) -> None:
    with forking():
        handle = launcher.launch(WorkerSpec("echo-0", ECHO, None))
    hear(launcher, handle)
    handle.send("slowly")
    assert hear(launcher, handle) == ["begun"]
    handle.dismiss()
    assert hear(launcher, handle) == ["done"] and hear(launcher, handle) == []
    assert handle.death is not None and handle.death.reason == "it ended with status 0"


def test_who_ends_by_itself_is_quoted(launcher: Processes) -> None:
    with forking():
        handle = launcher.launch(WorkerSpec("echo-0", ECHO, None))
    hear(launcher, handle)
    handle.send("leave")
    assert dies(launcher, handle) == f"it ended with status 3 ({'z' * 300})"


def test_what_is_sent_to_a_worker_that_has_just_died_is_dropped(launcher: Processes) -> None:
    with forking():
        handle = launcher.launch(WorkerSpec("echo-0", ECHO, None))
    hear(launcher, handle)
    with launcher._changed:  # the launcher's thread has not seen it yet
        hung_up = select.poll()
        hung_up.register(handle.channel.socket, 0)
        os.kill(handle.pid, signal.SIGKILL)
        assert hung_up.poll(20_000)
        for _ in range(2):
            handle.send("too late")
    assert dies(launcher, handle) == "it was ended by SIGKILL"


def test_a_worker_that_cannot_be_started_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(launcher: Processes) -> None:
        before = set(os.listdir("/proc/self/fd"))  # those of workers of tests before this one may close meanwhile
        with pytest.raises(StropError, match="^echo-0: "):
            launcher.launch(WorkerSpec("echo-0", ECHO, None))
        assert set(os.listdir("/proc/self/fd")) <= before

    (tmp_path / "file").touch()
    fails(Processes(tmp_path / "file"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    fails(Processes(tmp_path))
    with pytest.raises((AttributeError, pickle.PicklingError)):  # rather than of the interpreter that is not there
        Processes(tmp_path).launch(WorkerSpec("echo-0", ECHO, lambda: None))


def test_a_worker_that_has_ended_leaves_nothing_open(tmp_path: Path) -> None:
    launcher, before = Processes(tmp_path), len(os.listdir("/proc/self/fd"))
    for _ in range(2):  # the watching thread ends with the last worker, and begins anew
        with forking():
            handle = launcher.launch(WorkerSpec("echo-0", ECHO, None))
        hear(launcher, handle)
        end(launcher, [handle])
        assert until(lambda: len(os.listdir("/proc/self/fd")) <= before, 20)


@pytest.mark.usefixtures("forked")
def test_last_words_say_whether_another_worker_would_do(launcher: Processes, worker: ProcessHandle) -> None:
    worker.send("refuse")
    assert dies(launcher, worker) == "this can never work" and worker.death is not None and worker.death.fatal
    other = launcher.launch(WorkerSpec("echo-1", ECHO, None))
    other.send("crash")
    assert dies(launcher, other) == "ZeroDivisionError: once" and other.death is not None and not other.death.fatal
    assert "ZeroDivisionError" in (launcher.folder / "logs" / "echo-1.txt").read_text()  # type: ignore[operator]


@pytest.mark.usefixtures("forked")
def test_an_entry_that_is_not_there_is_said(launcher: Processes) -> None:
    handle = launcher.launch(WorkerSpec("nobody", "tests.orchestration.nowhere:main", None))
    assert "No module named 'tests.orchestration.nowhere'" in dies(launcher, handle)


@pytest.mark.usefixtures("forked")
def test_who_stops_or_hangs_is_found_out(launcher: Processes, worker: ProcessHandle) -> None:
    worker.send("hang")
    other = launcher.launch(WorkerSpec("echo-1", ECHO, None))
    hear(launcher, other)
    begin = time.monotonic()
    other.send("a word")
    launcher.wait([worker, other], 60)  # until any of them has news
    assert other.receive() == ["a word"] and time.monotonic() - begin < 30
    os.kill(other.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 20
    stalls, is_silent = Supervision(60, 2.0), Supervision(2.5, 60)
    while stalls.overdue(worker) is None or is_silent.overdue(other) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert worker.silence < 2.5  # it hangs, and yet its heart beats
    other.kill("it has not answered")
    assert dies(launcher, other) == "it has not answered"


@pytest.mark.usefixtures("forked")
def test_the_roster_and_the_stacks(launcher: Processes, worker: ProcessHandle) -> None:
    assert launcher.folder is not None
    rows = json.loads((launcher.folder / "processes.json").read_text())
    assert [(row["role"], row["pid"]) for row in rows] == [("driver", os.getpid()), ("echo-0", worker.pid)]
    assert all(row["started"] > 0 and row["host"] for row in rows)
    assert os.getpgid(worker.pid) == worker.pid  # what is typed at the terminal is not for it
    stacks = launcher.folder / "stacks" / "echo-0.txt"
    deadline = time.monotonic() + 10
    while "in receive" not in stacks.read_text():
        assert time.monotonic() < deadline
        os.kill(worker.pid, signal.SIGUSR1)
        time.sleep(0.1)
    os.kill(worker.pid, signal.SIGINT)  # a Ctrl-C is not for workers
    worker.send("still here")
    assert hear(launcher, worker) == ["still here"]
    end(launcher, [worker])
    assert len(json.loads((launcher.folder / "processes.json").read_text())) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux alone")
def test_no_worker_outlives_its_controller() -> None:
    code = (
        "import time\n"
        "from strop.orchestration.workers import WorkerSpec\n"
        "from strop.orchestration.processes import Processes\n"
        "launcher = Processes()\n"
        f"handles = [launcher.launch(WorkerSpec(f'echo-{{n}}', {ECHO!r}, None)) for n in range(2)]\n"
        "for handle in handles:\n"
        "    while not handle.receive(): launcher.wait([handle], 5)\n"
        "handles[1].send('hang')\n"
        "print(*(handle.pid for handle in handles), flush=True)\n"
        "time.sleep(60)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(pids) == 2 and all(map(alive, pids))
    os.kill(pids[0], signal.SIGSTOP)  # not even a stopped one stays
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert until(lambda: not any(map(alive, pids)))
