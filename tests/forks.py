"""Programs forked from the test instead of started anew: the same program and sockets, without seconds of imports."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import pytest
import torch

from strop.lab.ablation.scheduler import PROGRAM

MODULES = ("strop.orchestration.processes", "strop.__main__")


class Fork:
    """A child of this process that runs the `main` of a module; what `ChildProcess` uses of `subprocess.Popen`."""

    def __init__(
        self, command: Sequence[str], *, stdout: IO[bytes], env: Mapping[str, str], **_ignored: Any
    ) -> None:
        self.returncode: int | None = None
        self._reaping = threading.Lock()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.dup2(stdout.fileno(), 1)
                os.dup2(stdout.fileno(), 2)
                os.setpgid(0, 0)
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                os.environ.update(env)
                torch.set_num_threads(1)
                if command[1] == "-c":  # a run of an ablation
                    sys.argv = ["-c", *command[3:]]
                    exec(command[2], {})
                sys.argv = list(command[2:])
                code = importlib.import_module(command[2]).main() or 0
                sys.stdout.flush()
                sys.stderr.flush()
            except SystemExit as ended:
                code = int(ended.code or 0)
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:  # nothing of the test may go on in the child
                traceback.print_exc()
            os._exit(code)

    def terminate(self) -> None:
        """SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Its status, as subprocess has it; None while it lives."""
        with self._reaping:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it had not, within so many seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
            time.sleep(0.001)
        return status

    def _signal(self, number: signal.Signals) -> None:
        with self._reaping:
            if self.returncode is None:  # until its status is taken no other process has its id
                os.kill(self.pid, number)


@contextmanager
def forking() -> Iterator[None]:
    """Workers, runs of ablations and runs of `strop smoke` are forked inside; what else is started, as ever."""
    starts: Any = subprocess.Popen

    def started(command: Sequence[str], **options: Any) -> Any:
        if (command[1] == "-m" and command[2] in MODULES) or command[1:3] == ["-c", PROGRAM]:
            return Fork(command, **options)
        return starts(command, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strop_verify.child_process.subprocess.Popen", started)
        yield
