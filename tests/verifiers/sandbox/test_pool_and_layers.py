"""The pool, what it leaves behind, and the layers that a machine may lack."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from tests.verifiers.sandbox.machine import mounts, processes_below, run_all
from tests.watching import until

from strop.run.doctor import examine
from strop_verify.child_process import start_ticks
from strop_verify.sandbox import Limits, NoIsolation, Outcome, Sandbox, SandboxFailure, probe
from strop_verify.sandbox.launchers import ForkServer, outermost, plan_for
from strop_verify.sandbox.layers import SandboxCapabilities, attempt, require
from strop_verify.sandbox.process import descendants

SMALL = Limits(memory=256 << 20, output=1 << 20, processes=16)
ECHO = "print(input())"


def test_many_programs_at_once_come_back_in_order(sandbox: Sandbox) -> None:
    runs = run_all(sandbox, ECHO, [str(number).encode() for number in range(12)], 20.0)
    assert [run.stdout for run in runs] == [b"%d\n" % number for number in range(12)]


def test_nothing_is_left_after_closing(sandbox: Sandbox) -> None:
    sandbox.run(ECHO, b"warm")
    before, mounted, descriptors = processes_below(), mounts(), len(os.listdir("/proc/self/fd"))
    with Sandbox(SMALL, workers=2) as other:
        run_all(other, "import os\nos.fork()\nwhile True: pass", [b""] * 3, 0.3)
        assert processes_below() - before
    assert processes_below() <= before  # of which some may have ended: other tests have started them
    assert mounts() == mounted
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_closing_ends_what_runs() -> None:
    if not probe().isolated:
        pytest.skip("no isolation on this machine")
    before, sandbox = processes_below(), Sandbox(SMALL, workers=1)
    kinds = []
    thread = threading.Thread(target=lambda: kinds.append(sandbox.run("while True: pass", b"", 60.0).ending.outcome))
    thread.start()
    assert until(lambda: len(processes_below() - before) > 1)  # the fork server and the program
    sandbox.close()
    thread.join(60.0)
    assert kinds == [Outcome.SANDBOX_ERROR]
    assert sandbox.run(ECHO).ending.outcome is Outcome.SANDBOX_ERROR


def test_a_dead_fork_server_is_replaced(sandbox: Sandbox) -> None:
    assert sandbox.run(ECHO, b"1").stdout == b"1\n"
    for slot in sandbox._slots:
        if slot._servers[0] is not None:
            os.kill(slot._servers[0].pid, signal.SIGKILL)
    runs = run_all(sandbox, ECHO, [b"2"] * 4)
    assert [run.stdout for run in runs] == [b"2\n"] * 4


DRIVER = """
import sys, threading, time
from strop_verify.sandbox import Limits, Sandbox
sandbox = Sandbox(Limits(memory=256 << 20), workers=2)
for _ in range(2):
    program = "import os\\nos.fork()\\nos.setsid() if os.getpgrp() != os.getpid() else 0\\nwhile True: pass"
    threading.Thread(target=sandbox.run, args=(program, b"", 60.0), daemon=True).start()
print("running", flush=True)
time.sleep(60)
"""


def test_a_killed_trainer_leaves_nothing(sandbox: Sandbox) -> None:
    """SIGKILL to the trusted process: its fork servers see their sockets close, and take everything with them."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "running\n"
    assert until(lambda: len(descendants(driver.pid)) > 6)
    below = descendants(driver.pid)[1:]
    driver.kill()
    driver.wait()
    assert until(lambda: not any(start_ticks(pid) for pid in below))


def test_the_probe_holds_what_it_says() -> None:
    found = probe()
    assert probe() is found
    topics = {finding.subject: finding for finding in examine() if finding.subject.startswith("sandbox")}
    assert (topics["sandbox"].level == "ok") is found.isolated
    if found.isolated:
        assert {"sandbox seccomp", "sandbox proc", "sandbox user"} <= set(topics)


def test_a_fork_server_without_isolation_is_seen_through() -> None:
    plan, why = attempt("none")
    assert plan is None
    assert "files of the machine can be read" in why["trial"]


def test_without_isolation_it_refuses_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = SandboxCapabilities(plan_for("none", ("user", "proc", "ipc")), {"user": "forbidden"})
    monkeypatch.setattr("strop_verify.sandbox.layers.probe", lambda: bare)
    with pytest.raises(NoIsolation, match=r"user: forbidden.*allow_unsafe_sandbox"):
        Sandbox(SMALL)
    assert require(allow_unsafe=True) is bare


def test_unsafe_runs_still_end_and_leave_nothing(sandbox: Sandbox) -> None:
    before = processes_below()
    bare = SandboxCapabilities(plan_for("none", ("user", "proc", "ipc")))
    # Without a user namespace the kernel counts what every program of this user runs, other tests' attacks too.
    with Sandbox(replace(SMALL, processes=400), workers=1, capabilities=bare) as unsafe:
        assert unsafe.run(ECHO, b"x").stdout == b"x\n"
        fork = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True: time.sleep(1)\nprint(1)"
        assert unsafe.run(fork).ending.outcome is Outcome.ENDED
        hang = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
        assert unsafe.run(hang, seconds=0.5).ending.outcome is Outcome.TIMEOUT
        assert len(processes_below() - before) == 1  # its fork server
    assert processes_below() <= before


def test_the_user_namespace_holds_too() -> None:
    plan, why = attempt("user")
    if plan is None:
        pytest.skip(f"not on this machine: {why}")
    before = processes_below()
    with Sandbox(SMALL, workers=1, capabilities=replace(probe(), plan=plan)) as other:
        assert other.run(ECHO, b"x").stdout == b"x\n"
        assert other.run("1 / 0").ending.outcome is Outcome.RUNTIME_ERROR
        assert other.run("x = [0] * 10**9", seconds=20.0).ending.outcome is Outcome.MEMORY
        if os.geteuid() != 0:  # root is not held by the limit on processes in a user namespace
            bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
            assert other.run(bomb, seconds=1.0).ending.outcome is Outcome.TIMEOUT
        assert len(processes_below() - before) <= 1
    assert processes_below() <= before


@pytest.mark.parametrize("layer", ["user", "proc", "ipc", "seccomp"])
def test_a_machine_may_lack_an_optional_layer(layer: str) -> None:
    found = probe()
    if found.plan.mode not in ("root", "user") or (layer == "user" and found.plan.mode == "user"):
        pytest.skip("this layer is not optional here")
    ForkServer(plan_for(found.plan.mode, (layer,)), SMALL).close()
    lacking = replace(found, plan=plan_for(found.plan.mode, (layer,)))
    with Sandbox(SMALL, workers=1, capabilities=lacking) as other:
        assert other.run(ECHO, b"x").stdout == b"x\n"


def test_a_plan_without_an_interpreter_fails_loudly() -> None:
    if not probe().isolated:
        pytest.skip("no isolation on this machine")
    broken = replace(probe(), plan=replace(probe().plan, binds=("/nowhere",)))
    with Sandbox(SMALL, workers=1, capabilities=broken) as other:
        ending = other.run(ECHO, b"x").ending
        assert ending.outcome is Outcome.SANDBOX_ERROR
        with other.slot() as slot, pytest.raises(SandboxFailure), slot.process("main", "", b"", 1.0) as process:
            raise SandboxFailure(process.run.ending.detail)


def test_binds_inside_binds_are_left_out() -> None:
    assert outermost(["/usr/lib", "/usr", "/usrx", "/opt/a", "/opt/a"]) == ["/opt/a", "/usr", "/usrx"]
