"""The fork server: a small interpreter that has imported the usual modules and forks a sandbox process a program.

It runs nothing foreign and sees neither program nor tests: those go through descriptors that it passes on unread. It
serves one sandbox at a time. When the trusted process ends, it kills what is in the sandbox and ends too.

    trusted process ── control socket ──> fork server ── clone into namespaces ──> first process ── fork ──> program
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from . import isolate, solution, tester
from .wire import frame

MESSAGE = 1 << 16
MOST_DESCRIPTORS = 16
PARENT_CHECK_SECONDS = 2.0


Work = Callable[[], NoReturn]


def main() -> Work:
    """Serve the control socket until it closes.

    Returns only in the children, with the function to call there: no frame of this module lies below the program's.
    """
    _raise_stack_limit()
    control = socket.socket(fileno=int(sys.argv[3]))
    config = isolate.Config(json.loads(control.recv(MESSAGE)))
    try:
        isolate.prepare(config)
    except isolate.StepFailed as error:
        control.send(json.dumps({"failed": [error.step, error.why]}).encode())
        return lambda: os._exit(0)
    _prepare(config)  # not before: from here on modules are looked for in /tmp first, which must not be the machine's
    gc.collect()
    gc.freeze()
    parent = os.getppid()
    control.send(b'{"ready": true}')
    while True:
        readable = select.select([control], [], [], PARENT_CHECK_SECONDS)[0]
        if not readable:
            # A copy of the other end may live on in a process that the trusted one forked.
            if os.getppid() != parent:
                os._exit(0)
            continue
        request, descriptors, _, _ = socket.recv_fds(control, MESSAGE, MOST_DESCRIPTORS)
        if not request:
            os._exit(0)
        work, left = _serve(control, config, json.loads(request), descriptors, parent)
        if work is not None:
            return work
        if left:
            os._exit(0)


def _prepare(config: isolate.Config) -> None:
    """What every sandbox process needs, made once."""
    os.environ.clear()
    os.environ.update(isolate.ENVIRONMENT)
    os.umask(0o022)
    solution.prepare_interpreter(config.packages)
    if config.has("seccomp") and isolate.filter_supported():
        isolate.seccomp_filter()


def _raise_stack_limit() -> None:
    """Deep recursion needs a large stack, for which the kernel lays out memory when a program is executed."""
    wanted = int(sys.argv[1])
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
        os.execv(sys.executable, sys.orig_argv)


def _serve(
    control: socket.socket,
    config: isolate.Config,
    request: dict[str, Any],
    descriptors: list[int],
    parent: int,
) -> tuple[Work | None, bool]:
    """Fork a sandbox process, wait for its end, report it; the descriptors of the request are closed here.

    Returns what is to be done in the child, None in the fork server; and whether the trusted process has ended.
    """
    try:
        pid = isolate.fork_into(config.namespaces) if config.namespaces else os.fork()
    except OSError as error:
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps({"failed": ["namespaces", str(error)]}).encode())
        return None, False
    if pid == 0:
        control.close()
        return _first_process(config, request, descriptors), False
    for descriptor in descriptors:
        os.close(descriptor)
    handle = os.pidfd_open(pid)
    socket.send_fds(control, [json.dumps({"pid": pid}).encode()], [handle])
    watched = [handle, control.fileno()]
    while handle not in (readable := select.select(watched, [], [], PARENT_CHECK_SECONDS)[0]):
        # Nothing is sent while a sandbox process runs: a control socket that can be read has closed.
        if readable or os.getppid() != parent:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None, True
    os.close(handle)
    _, status = os.waitpid(pid, 0)
    control.send(json.dumps({"reaped": status}).encode())
    return None, False


def _first_process(config: isolate.Config, request: dict[str, Any], descriptors: list[int]) -> Work:
    """The first process of a sandbox: isolate, fork the program, reap everything, report how the program ended."""
    status = descriptors[0]
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process of a namespace ignores what it does not handle
        if os.read(status, 1) != b"g":
            os._exit(0)
        _prefer_for_oom()
        if os.geteuid() == 0:
            for descriptor in descriptors[2:5]:
                os.fchown(descriptor, isolate.NOBODY, isolate.NOBODY)  # so that /dev/stdin can be opened
        isolate.enter(config, request["limits"])
        if select.select([status], [], [], 0)[0]:  # nothing more is ever sent: the trusted process is gone
            os._exit(0)
        isolate.prctl(isolate.PR_SET_CHILD_SUBREAPER, 1)
        pid = os.fork()
        if pid == 0:
            return _program(config, request, descriptors)
    except isolate.StepFailed as error:
        _send(status, ["failed", error.step, error.why])
        os._exit(1)
    except BaseException as error:  # nothing may unwind into the fork server's loop in this process
        _send(status, ["failed", "sandbox", f"{type(error).__name__}: {error}"])
        os._exit(1)
    for descriptor in {*descriptors[1:], 0, 1, 2}:
        os.close(descriptor)
    while True:
        ended, code = os.wait()
        if ended == pid:
            break
    _send(status, ["exit", os.waitstatus_to_exitcode(code)])
    if config.mode == "none":
        _kill_children()
    os._exit(0)


def _program(config: isolate.Config, request: dict[str, Any], descriptors: list[int]) -> Work:
    """The process that is to run foreign code, which it has read and compiled."""
    status, code_pipe, *standard = descriptors[:5]
    channels = descriptors[5:]
    try:
        os.chdir("/tmp")
        isolate.prctl(isolate.PR_SET_PDEATHSIG, signal.SIGKILL)
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
        isolate.disarm(config, request["limits"])
        _send(status, ["ready"])
        source = _read_all(code_pipe).decode("utf-8", "surrogatepass")
        try:
            code = solution.compiled("" if request["role"] == "tester" else source)
        except solution.SYNTAX_ERRORS as error:
            _send(status, ["syntax", f"{type(error).__name__}: {error}"[:300]])
            os._exit(1)
        _close_all_but(channels)
    except isolate.StepFailed as error:
        _send(status, ["failed", error.step, error.why])
        os._exit(1)
    except BaseException as error:  # no foreign code has run: the sandbox failed
        _send(status, ["failed", "program", f"{type(error).__name__}: {error}"])
        os._exit(1)
    if request["role"] == "main":
        return lambda: solution.run_main(code, source)
    if request["role"] == "solution":
        return lambda: solution.run(code, channels)
    return lambda: tester.run(source, channels)


def _send(status: int, message: list[Any]) -> None:
    os.write(status, frame(message))


def _read_all(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _close_all_but(kept: list[int]) -> None:
    begin = 3
    for descriptor in [*sorted(kept), 1 << 16]:
        os.closerange(begin, descriptor)
        begin = descriptor + 1


def _prefer_for_oom() -> None:
    """Where memory runs out, the sandbox ends before the fork server does."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:  # it only chooses whom the kernel ends first
        return


def _kill_children() -> None:
    """Without a namespace a sandbox's processes must be sought out: all that were orphaned came to this one."""
    for _ in range(1000):
        with open("/proc/self/task/" + str(os.getpid()) + "/children") as file:
            children = file.read().split()
        if not children:
            return
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)
