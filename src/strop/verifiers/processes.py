"""The trainer's side of the worker processes: jobs in, results out, the supervisor started again when it dies."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

from strop.base import imports
from strop.base.types import Problem, StropError
from strop.verifiers.base import Verifier
from strop.verifiers.isolation import Isolation
from strop.verifiers.wire import SETUP, Channel, write_job

RESTARTS = 3  # in a row, without a single result between them
CLOSING_SECONDS = 5.0
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # a forking process has one
Result = dict[str, Any]


class WorkersLost(StropError):
    """The verifier's processes died again and again."""


class ProcessPool:
    """Runs verifiers in killable processes. Not thread-safe.

    A new pool answers at once; its supervisor takes a second to import what it needs, and jobs wait for it meanwhile.

    Args:
        verifier: the piece served; a job may name a variant of it.
        isolation: how many processes and how long they may take; by default what the verifier asks for.
    """

    def __init__(self, verifier: Verifier, isolation: Isolation | None = None) -> None:
        self.verifier = verifier
        self.isolation = isolation or verifier.isolated() or Isolation()
        self.workers = self.isolation.workers or default_workers()
        self.written = verifier.model_dump_json()
        self._owner = os.getpid()
        self._next = SETUP + 1
        self._open: dict[int, bytes] = {}
        self._restarts = 0
        self._closed = False
        self.generation = 0  # counts supervisors
        self._start()

    @property
    def pending(self) -> int:
        """Jobs whose result was not yet received."""
        return len(self._open)

    @property
    def owned(self) -> bool:
        """Whether this process made the pool; a fork of it must make its own."""
        return self._owner == os.getpid()

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    @property
    def unsent(self) -> bool:
        """Whether jobs wait for the supervisor to read; `receive` goes on sending."""
        return self._channel.unsent

    def fileno(self) -> int:
        """The descriptor that becomes readable when results are in; of another socket in each `generation`."""
        return self._channel.socket.fileno()

    def submit(
        self, operation: str, problem: Problem, text: str = "", truncated: bool = False, written: str | None = None
    ) -> int:
        """Start a job and return its number.

        Args:
            operation: `judge` or `refuses`.
            written: the verifier as JSON where it is not the pool's own.

        Raises:
            TypeError: the problem holds something that cannot be written as JSON.
            WorkersLost: the supervisor cannot be kept alive.
        """
        body = write_job(operation, written or self.written, problem, text, truncated)
        number, self._next = self._next, self._next + 1
        self._open[number] = body
        try:
            self._channel.send(number, body)
        except OSError:
            self._restart()
        return number

    def receive(self, seconds: float | None = 0.0) -> list[tuple[int, Result]]:
        """The results that are in; waits up to `seconds` (None: as long as it takes) where there are none.

        Raises:
            WorkersLost: the supervisor cannot be kept alive.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        found: list[tuple[int, Result]] = []
        while self._open:
            try:
                self._channel.flush()
                for number, body in self._channel.receive():
                    if self._open.pop(number, None) is not None:
                        found.append((number, json.loads(body)))
            except (EOFError, OSError):
                self._restart()
            if found:
                self._restarts = 0
                return found
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return found
            writable = [self._channel.socket] if self._channel.unsent else []
            select.select([self._channel.socket], writable, [], left)
        return found

    def close(self) -> None:
        """End the supervisor and its workers; may be called twice."""
        if self._closed or not self.owned:
            return
        self._closed = True
        self._end()
        self._errors.close()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (kept open as long as the supervisor lives)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "strop.verifiers.supervisor", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C is for the trainer, which ends the supervisor itself
                env={**os.environ, **_THREADS, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self._channel = Channel(ours)
        self.generation += 1
        setup = {
            "verifier": self.written,
            "isolation": self.isolation.model_dump(mode="json"),
            "workers": self.workers,
            "modules": imports.modules_named(self.written),
            "path": sys.path,
        }
        self._channel.send(SETUP, json.dumps(setup).encode())

    def _restart(self) -> None:
        """Another supervisor, to which every open job is given again."""
        self._end()
        if self._closed:
            raise WorkersLost("the verifier's processes were closed while verdicts were asked for")
        self._restarts += 1
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        self._errors.close()
        if self._restarts > RESTARTS:
            reason = said[-1] if said else f"exit status {self._process.returncode}"
            self._closed = True
            raise WorkersLost(f"the verifier's processes ended {self._restarts} times in a row: {reason}")
        try:
            self._start()
            for number, body in self._open.items():
                self._channel.send(number, body)
        except OSError:
            self._restart()

    def _end(self) -> None:
        self._channel.close()
        try:
            self._process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def default_workers() -> int:
    """One less than the cores this process may use, at least 1 and at most 8."""
    return max(1, min(8, len(os.sched_getaffinity(0)) - 1))


def run_all(pool: ProcessPool, operation: str, problems: Sequence[Problem]) -> list[Result]:
    """The results of one operation on many problems, in their order."""
    numbers = [pool.submit(operation, problem) for problem in problems]
    results: dict[int, Result] = {}
    while len(results) < len(numbers):
        results.update(pool.receive(None))
    return [results[number] for number in numbers]
