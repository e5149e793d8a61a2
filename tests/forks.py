"""A program forked from the test, asked and ended as `subprocess.Popen` would have it."""

from __future__ import annotations

import os
import signal


class Fork:
    """A child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def terminate(self) -> None:
        """SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Its status, as subprocess has it; None while it lives."""
        return self._ask(os.WNOHANG)

    def wait(self) -> int:
        """Its status, once it has ended."""
        status = self._ask(0)
        assert status is not None
        return status

    def _ask(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def _signal(self, number: signal.Signals) -> None:
        if self.returncode is None:  # until its status is taken the pid is nobody else's
            os.kill(self.pid, number)
