"""A program of somebody else's that must not outlive us: started, watched, quoted where it fails, ended with its own.

    server = GuardedProcess(["serve", "--port", "8000"], os.environ, Path(tempfile.mkdtemp()))
    ...
    raise StropError(f"it cannot be reached{server.failed()}")      # ; it ended with code 1; its log, …, says: …

A shell in front of the program holds a pipe to this process and ends the whole group when that closes: there is no way
for this process to die that leaves the program behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_GRACE_SECONDS = 5.0
_GUARD = (
    f'exec 3<&0 </dev/null; (trap "" TERM; read -r _ <&3; kill -TERM 0; sleep {_GRACE_SECONDS:g}; kill -KILL 0) & '
    'exec "$@" 3<&-'
)
_TAIL_BYTES = 20_000
_TAIL_LINES = 3


class GuardedProcess:
    """`command` in a process group of its own, so that Ctrl-C at the terminal is not for it.

    `place` is a folder of its own, which gets its log; it goes with the program, unless that has failed.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], place: Path) -> None:
        self.place = place
        self._failed = False
        # Linux shares the processor among sessions: in one of its own, a busy server would keep this process waiting.
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,
            )

    @property
    def _log(self) -> Path:
        return self.place / "log.txt"

    @property
    def pid(self) -> int:
        """The program's process id, which is its group's too."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def failed(self) -> str:
        """End it without waiting; how it ended, the first error in its log, and where that is, for an error message."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # a connection breaks before its process is gone
            self._process.wait(0.5)
        code, self._failed = self._process.returncode, True
        self._release()
        said = self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip() and "WARNING" not in line]
        errors = [found[0] for line in lines if (found := re.search(r"\w+(Error|Exception): .*", line))]
        words = " | ".join(errors[:1] or lines[-_TAIL_LINES:]) or "nothing"
        ending = "" if code is None else f"; it ended with code {code}"
        if code is not None and code < 0:
            ending = f"; it was killed by {signal.Signals(-code).name}"
        return f"{ending}; its log, {self._log}, says: {words}"

    def stop(self) -> None:
        """End it and everything it has started; its folder goes too, unless its log says why it failed."""
        self._release()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):  # it has just gone
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if not self._failed:
            shutil.rmtree(self.place, ignore_errors=True)

    def _release(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
