"""vLLM's worker process: started, asked, watched, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from strop.base.types import InputError, StropError
from strop.engines.vllm import worker
from strop.engines.vllm.settings import Vllm
from strop.engines.vllm.worker import Closed, Frames

_TAIL_BYTES = 4000
_TAIL_LINES = 3
_GRACE_SECONDS = 5.0

# Nothing of the worker listens beyond the loopback or asks a server of anybody.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core in the worker itself: a step is a call
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


class WorkerLost(StropError):
    """The worker died, or did not answer in time; it has been ended."""


class VllmProcess:
    """One worker and the socket to it. Its output goes to an unnamed file, whose end is quoted when it fails.

    The worker dies with the thread that made this object (the kernel's parent-death signal): make it in a thread that
    lives as long as the engine.

    Raises:
        InputError: no interpreter is named, or there is none where it is named.
    """

    def __init__(self, settings: Vllm) -> None:
        python = settings.interpreter()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **_ENVIRONMENT}
        if settings.eager:
            environment["TORCHDYNAMO_DISABLE"] = "1"
        try:
            # -I: neither our PYTHONPATH nor this folder may stand in the way of what the other environment has. A
            # session of its own: Ctrl-C at the terminal is the run's to handle.
            self._process = subprocess.Popen(
                [python, "-I", str(Path(worker.__file__)), str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            self._log.close()
            raise InputError(f"engine.python={python}: cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
        self._socket = ours
        self._frames = Frames(ours)
        self._ended = False

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the worker runs."""
        return not self._ended and self._process.poll() is None

    def ask(
        self, command: str, fields: dict[str, Any], blobs: tuple[bytes, ...], seconds: float | None
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a command and wait for its answer, `seconds` at most (None: for as long as the worker lives).

        Raises:
            InputError: the worker refused it, and nothing has changed.
            StropError: vLLM failed at it; the worker's log says where.
            WorkerLost: there is no worker any more.
        """
        self._socket.settimeout(seconds)
        begin = time.monotonic()
        try:
            self._frames.send({**fields, "command": command}, blobs)
            answer, parts = self._frames.receive()
        except Closed as error:
            self._wait(_GRACE_SECONDS)
            ending = self._ending()
            raise WorkerLost(f"vLLM's worker {ending} during {command!r}{self.end()}") from error
        except TimeoutError as error:
            waited = time.monotonic() - begin
            message = f"vLLM's worker did not answer {command!r} within {waited:.0f} s and was ended"
            raise WorkerLost(message + self.end()) from error
        except BaseException:  # an interrupt, or a frame that is none: whatever comes next would be misread
            self.end()
            raise
        match answer.pop("outcome"):
            case "done":
                return answer, parts
            case "refused":
                raise InputError(f"vLLM: {answer['reason']}")
        raise StropError(f"vLLM failed at {command!r}: {answer['reason']}")

    def end(self) -> str:
        """End the worker and everything it started; what it said last, for an error message."""
        if self._ended:
            return ""
        self._ended = True
        self._socket.close()
        if self._process.poll() is None:
            self._signal(signal.SIGKILL)
        self._wait(_GRACE_SECONDS)
        said = self._tail()
        self._log.close()
        return said

    def stop(self) -> None:
        """Let the worker end by itself; it is ended where it does not."""
        if self.alive:
            with suppress(Closed, TimeoutError):  # it has gone, or hangs: `end` sees to it
                self._socket.settimeout(_GRACE_SECONDS)
                self._frames.send({"command": "stop"})
                self._wait(_GRACE_SECONDS)
        self.end()

    def _wait(self, seconds: float) -> None:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has just gone
            os.killpg(self._process.pid, number)

    def _ending(self) -> str:
        code = self._process.returncode
        if code is not None and code < 0:
            return f"was killed by signal {-code} ({signal.Signals(-code).name})"
        return f"ended with exit code {code}"

    def _tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _TAIL_BYTES))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f"; its last words: {' | '.join(lines[-_TAIL_LINES:])}" if lines else ""
