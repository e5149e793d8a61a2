"""Child processes: they die with their parent, end within a known time, and say why they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
from tests.watching import alive, until

from strop_verify.child_process import ChildProcess, exit_reason


def python(code: str, output: bool = False) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", code], os.environ, tempfile.TemporaryFile() if output else None)


def test_a_child_ends_by_itself_within_the_grace_period() -> None:
    child = python("import sys; print('a line'); sys.exit('the reason')", output=True)
    assert child.end(grace=30.0) == 1 and child.status == 1
    assert child.exit_reason() == "ended with status 1 (the reason)"
    child.close()
    child.close()


def test_a_child_shares_the_processor_as_we_do_and_no_signal_of_the_terminal() -> None:
    child = python("import time; time.sleep(600)")
    assert os.getsid(child.pid) == os.getsid(0) and os.getpgid(child.pid) == child.pid
    assert child.end() == -signal.SIGKILL
    child.close()


def test_a_child_that_does_not_end_is_killed_with_what_it_started() -> None:
    code = "import subprocess, time\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\ntime.sleep(600)"
    child = python(code, output=True)
    while not child.last_line():
        time.sleep(0.01)
    begin = time.monotonic()
    assert child.end(grace=0.2) == -signal.SIGKILL and time.monotonic() - begin > 0.2
    assert child.exit_reason() == "was ended by SIGKILL" and until(lambda: not alive(int(child.last_line())))
    child.close()


def test_exit_reasons_name_signals() -> None:
    assert [exit_reason(status) for status in (0, 3, -15, -40)] == [
        "ended with status 0", "ended with status 3", "was ended by SIGTERM", "was ended by signal 40"
    ]  # fmt: skip


def test_a_program_that_is_not_there_is_an_error_here() -> None:
    with pytest.raises(FileNotFoundError):
        ChildProcess(["/nowhere"], {})


PARENT = """
import sys, threading, time
from strop_verify.child_process import start_module
kept = []
def start():
    child, end = start_module("tests.base.dying", {})
    kept.append(end)
    print(child.pid, end.recv(1) == b"r", flush=True)
threading.Thread(target=start).start()
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux alone")
def test_a_child_outlives_the_thread_that_started_it_and_dies_with_the_process_even_if_stopped() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, ready = parent.stdout.readline().split()
    assert ready == "True"
    time.sleep(0.5)  # the thread has ended
    assert alive(int(pid))
    os.kill(int(pid), signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert until(lambda: not alive(int(pid)))


def test_a_forked_process_starts_children_too() -> None:
    assert python("pass").end(grace=30.0) == 0  # the thread that starts them is there, and the fork has none
    pid = os.fork()
    if pid == 0:
        threading.Timer(60.0, os._exit, (2,)).start()
        os._exit(python("pass").end(grace=30.0))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
