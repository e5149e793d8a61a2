"""The trainer's side of the worker processes: jobs in, results out, a dead or silent supervisor replaced."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strop.base.carried import carried
from strop.base.child_process import start_module
from strop.base.framing import Channel
from strop.base.threads import thread_environment
from strop.base.types import Problem, Status, StropError, Verdict
from strop.verifiers.base import Verifier
from strop.verifiers.isolation import Isolation
from strop.verifiers.jobs import HEARTBEAT, Result, numbered, read_result, split_number, write_job

RESTARTS = 3  # in a row, without a single result between them
CLOSING_SECONDS = 5.0
QUIET_SECONDS = 1.0  # after which a supervisor with open jobs is asked whether it still runs
ANSWER_SECONDS = 10.0  # for that answer: a supervisor only passes messages on, and answers within milliseconds
START_SECONDS = 300.0  # for its first message: sympy is imported in a second, a user's module may take longer


class WorkersLost(StropError):
    """The verifier's processes ended again and again."""


@dataclass
class _OpenJob:
    """A job without a result; `silences` counts the supervisors that stopped answering while they had it."""

    message: bytes
    silences: int = 0


class ProcessPool:
    """Runs verifiers in killable processes. Not thread-safe.

    A new pool takes jobs at once; its supervisor first imports what it needs, and the jobs wait for that.

    A supervisor that ends is replaced and gets the open jobs again. One that stays silent (a stopped process) is killed
    and replaced as well; a job that two supervisors left in silence has the status `timeout`.

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
        self._next = HEARTBEAT + 1
        self._open: dict[int, _OpenJob] = {}
        self._restarts = 0
        self._closed = False
        self._start()

    @property
    def owned(self) -> bool:
        """Whether this process made the pool; a fork of it must make its own."""
        return self._owner == os.getpid()

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._supervisor.pid

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
        number = self._next
        message = numbered(number, write_job(operation, written or self.written, problem, text, truncated))
        self._next += 1
        self._open[number] = _OpenJob(message)
        try:
            self._channel.send(message)
        except OSError:
            self._restart()
        return number

    def receive(self, seconds: float | None = 0.0) -> list[tuple[int, Result]]:
        """The results that are in; waits up to `seconds` (None: as long as it takes) where there are none.

        Raises:
            WorkersLost: the supervisor cannot be kept alive.
        """
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while self._open:
            found = self._collect() or self._check_heartbeat()
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            self._channel.wait(min(left, QUIET_SECONDS))
        return []

    def completed(self, numbers: Sequence[int]) -> Iterator[tuple[int, Result]]:
        """The results of these jobs as they come, each with the place of its number; those of other jobs are dropped.

        Raises:
            WorkersLost: the supervisor cannot be kept alive.
        """
        places = {number: place for place, number in enumerate(numbers)}
        while places:
            for number, result in self.receive(None):
                if number in places:
                    yield places.pop(number), result

    def close(self) -> None:
        """End the supervisor and its workers; may be called twice."""
        if self._closed or not self.owned:
            return
        self._closed = True
        self._end(CLOSING_SECONDS)
        self._supervisor.close()

    def _collect(self) -> list[tuple[int, Result]]:
        """The results that are in; does not wait."""
        found: list[tuple[int, Result]] = []
        lost = False
        try:
            self._channel.flush()
            for message in self._channel.receive():
                number, body = split_number(message)
                self._heard, self._answer_due = time.monotonic(), math.inf
                if self._open.pop(number, None) is not None:
                    found.append((number, read_result(body)))
        except (EOFError, OSError):
            lost = True
        if found:
            self._restarts = 0
        if lost:
            self._restart()
        return found

    def _check_heartbeat(self) -> list[tuple[int, Result]]:
        """Ask a quiet supervisor whether it runs and replace one that did not answer; returns the jobs given up."""
        now = time.monotonic()
        if now >= self._answer_due:
            return self._replace_silent()
        if self._answer_due == math.inf and now - self._heard >= QUIET_SECONDS:
            self._answer_due = now + ANSWER_SECONDS
            try:
                self._channel.send(numbered(HEARTBEAT))
            except OSError:
                self._restart()
        return []

    def _replace_silent(self) -> list[tuple[int, Result]]:
        detail = "the verifier's processes did not answer twice"
        given_up = [number for number, job in self._open.items() if job.silences]
        for number in given_up:
            del self._open[number]
        for job in self._open.values():
            job.silences += 1
        self._end(0.0)
        self._restart("it did not answer and was killed")
        return [(number, Result(Verdict(0.0, Status.TIMEOUT, detail), detail)) for number in given_up]

    def _start(self) -> None:
        output = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the supervisor lives)
        try:
            one_thread = thread_environment(1)  # a process that forks has no other
            self._supervisor, end = start_module("strop.verifiers.supervisor", one_thread, output)
        except OSError as error:
            self._closed = True
            raise WorkersLost(f"the verifier's processes cannot be started: {error}") from error
        self._channel = Channel(end)
        self._heard = time.monotonic()
        self._answer_due = self._heard + START_SECONDS
        setup = {
            "verifier": self.written,
            "isolation": self.isolation.model_dump(mode="json"),
            "workers": self.workers,
            "code": carried(self.written),
            "path": sys.path,
        }
        self._channel.send(json.dumps(setup).encode())

    def _restart(self, reason: str = "") -> None:
        """Start another supervisor and give it every open job.

        Raises:
            WorkersLost: the pool was closed, or that happened too often, or no process can be started.
        """
        if self._closed:
            raise WorkersLost("the verifier's processes were closed while verdicts were asked for")
        self._end(CLOSING_SECONDS)
        self._restarts += 1
        reason = reason or f"it {self._supervisor.exit_reason()}"
        self._supervisor.close()
        if self._restarts > RESTARTS:
            self._closed = True
            raise WorkersLost(f"the verifier's supervisor ended {self._restarts} times in a row: {reason}")
        try:
            self._start()
            for job in self._open.values():
                self._channel.send(job.message)
        except OSError:
            self._restart()

    def _end(self, grace: float) -> None:
        self._channel.close()
        self._supervisor.end(grace)


def default_workers() -> int:
    """One less than the cores this process may use, at least 1 and at most 8."""
    return max(1, min(8, len(os.sched_getaffinity(0)) - 1))
