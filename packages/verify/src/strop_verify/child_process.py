"""Child processes: started so that they die with this process, ended within a known time, their exit reason in words.

    child, end = start_module("package.program", {"OMP_NUM_THREADS": "1"}, log)   # here
    end = connect_to_parent()                                                     # in the program, first of all
    child.end(grace=5.0), child.exit_reason()                                     # -9, "was ended by SIGKILL"
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO

SPINS = "1000"


def wait_politely() -> None:
    """Let the threads of this process and of its children spin for microseconds only, if the user has said nothing.

    It has an effect here as long as torch has not been imported.
    """
    os.environ.update(_waiting())


def thread_environment(threads: int) -> dict[str, str]:
    """The environment variables that give the numerical libraries of a child so many threads."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)) | _waiting()


def _waiting() -> dict[str, str]:
    said = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ)
    return {} if said else {"GOMP_SPINCOUNT": SPINS}


_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 4096


class ChildProcess:
    """A running program, in its own process group: a Ctrl-C at the terminal does not reach it.

    Args:
        command: the program and its arguments.
        environment: all of its environment variables.
        output: the open file that gets what it prints, closed by `close`; None: what it prints is thrown away.
        pass_fds: descriptors of this process that it shall have too.
        folder: its working directory; None: that of this process.

    Raises:
        OSError: the program cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None = None,
        pass_fds: Sequence[int] = (), folder: str | None = None,
    ) -> None:  # fmt: skip
        stream = subprocess.DEVNULL if output is None else output
        self._output = output
        self._pidfd: int | None = None
        # Linux shares the processor among sessions: in a separate one a busy worker would keep this process waiting.
        try:
            self._process: subprocess.Popen[bytes] = _starter.start(
                lambda: subprocess.Popen(
                    command, env=environment, cwd=folder, pass_fds=pass_fds, process_group=0,
                    stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                )
            )  # fmt: skip
        except OSError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, negative for the signal that ended it; None while it runs."""
        return self._process.poll()

    @property
    def pidfd(self) -> int | None:
        """The kernel's handle of it, readable once it has ended; None where the kernel has no such handles."""
        if self._pidfd is None and hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self._pidfd = os.pidfd_open(self.pid)
        return self._pidfd

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill it, and what it started that is still in its process group (SIGKILL)."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.kill()

    def end(self, grace: float = 0.0) -> int:
        """Wait at most `grace` seconds for it to end by itself, kill it where it has not; returns its exit status."""
        try:
            return self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def exit_reason(self) -> str:
        """How it ended, to follow its name, with the last line that it printed where it failed."""
        status = self._process.wait()
        line = self.last_line() if status > 0 else ""
        return exit_reason(status) + (f" ({line})" if line else "")

    def last_line(self) -> str:
        """The last line that it printed, at most 300 characters of it; empty where nothing was printed or kept."""
        if self._output is None:
            return ""
        self._output.seek(max(self._output.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def close(self) -> None:
        """Close the output and the kernel's handle; may be called twice."""
        if self._output is not None:
            self._output.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def start_module(
    module: str, environment: Mapping[str, str], output: IO[bytes] | None = None
) -> tuple[ChildProcess, socket.socket]:
    """Start `python -m module` with this process's environment, the variables in `environment` and this import path.

    The program calls `connect_to_parent` first of all. Returns the child, and our end of the socket that joins us.

    Raises:
        OSError: it cannot be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid())]
        everything = {**os.environ, "PYTHONPATH": import_path(), **environment}
        try:
            child = ChildProcess(command, everything, output, [theirs.fileno()])
        except OSError:
            ours.close()
            raise
    return child, ours


def import_path() -> str:
    """This process's import path as the variable PYTHONPATH has it."""
    return os.pathsep.join(entry for entry in sys.path if entry)


def connect_to_parent() -> socket.socket:
    """In a program that `start_module` started: die with the parent from now on; returns our end of the socket."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    os.set_inheritable(descriptor, False)  # what this program starts must not keep the connection open
    return socket.socket(fileno=descriptor)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, even if it is stopped then.

    Args:
        parent: the parent's process id; where that one has ended already, this process ends at once.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def exit_reason(status: int) -> str:
    """The meaning of an exit status, to follow the name of a process: "was ended by SIGKILL", "ended with status 3"."""
    return f"was ended by {signal_name(-status)}" if status < 0 else f"ended with status {status}"


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def start_ticks(pid: int) -> int | None:
    """When a live process of this machine began, in clock ticks since boot; None if it is dead or a zombie.

    A process that is given the same id later has begun at another time.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def process_state(pid: int) -> str:
    """The kernel's letter: R running, S sleeping, D in the disk, T stopped by a signal, Z dead; `?` where unknown."""
    fields = _stat(pid)
    return "?" if fields is None else fields[0]


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in brackets and may itself hold spaces and brackets.
    return text.rpartition(")")[2].split()


_Start = tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]


class _Starter:
    """Starts every child in one thread that lives as long as this process.

    The kernel takes for the parent of a child, whose end is a signal to it, the thread that started it: a child that
    was started in a thread of a pool would die with that thread.
    """

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[_Start] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, function: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Call `function` in that thread; returns and raises what it does."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="child processes")
                self._thread.start()
        future: Future[subprocess.Popen[bytes]] = Future()
        self._wanted.put((function, future))
        return future.result()

    def _run(self) -> None:
        while True:
            function, future = self._wanted.get()
            try:
                future.set_result(function())
            except BaseException as error:  # it is raised again where the child was asked for
                future.set_exception(error)


_starter = _Starter()


def _renew_starter() -> None:
    global _starter
    _starter = _Starter()


os.register_at_fork(after_in_child=_renew_starter)  # a fork has none of its parent's threads
