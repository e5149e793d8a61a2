"""A pool of killable worker processes: jobs in, replies out, a dead or silent supervisor replaced.

    pool = Pool("package.module:serve", setup, WorkerLimits(seconds=2.0))  # serve(setup) returns the job function
    reply = pool.submit(job).result()                                      # jobs and replies are JSON

The pool starts a supervisor (`supervisor.py`), which forks the workers and kills those that take too long.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import struct
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

from strop_verify.child_process import connect_to_parent, start_module, thread_environment
from strop_verify.framing import Channel
from strop_verify.verdict import Status, VerifyError

RESTARTS = 3  # in a row, without a single result between them
CLOSING_SECONDS = 5.0

_NUMBER = struct.Struct(">Q")
Served = TypeVar("Served")


class WorkersLost(VerifyError):
    """The worker processes ended again and again."""


@dataclass(frozen=True)
class WorkerLimits:
    """How many workers there are, and what each may use.

    Attributes:
        workers: how many; None: one less than the cores this process may use, at least 1 and at most 8.
        seconds: wall time of one job before its worker is killed.
        retry_seconds: wall time of the one further try, in a fresh worker; then the reply is a `timeout`.
        memory_mib: address space that a worker may take beyond what the supervisor has.
    """

    workers: int | None = None
    seconds: float = 2.0
    retry_seconds: float = 0.6
    memory_mib: int = 1024


class JobReply(NamedTuple):
    """The reply to a job.

    Attributes:
        value: what the job's function returned; None where it failed.
        failure: `timeout` or `error` where the worker gave no value, else None.
        detail: why it failed.
        milliseconds: the time it took in the worker.
    """

    value: Any = None
    failure: Status | None = None
    detail: str = ""
    milliseconds: float = 0.0


def numbered(number: int, body: bytes = b"") -> bytes:
    """A message about job `number`."""
    return _NUMBER.pack(number) + body


def split_number(message: bytes) -> tuple[int, bytes]:
    """The number of the job that a message is about, and the rest of the message."""
    return _NUMBER.unpack_from(message)[0], message[_NUMBER.size :]


def write_reply(reply: JobReply) -> bytes:
    """A reply as JSON."""
    return json.dumps(reply).encode()


def read_reply(body: bytes) -> JobReply:
    """The reply that `write_reply` wrote."""
    value, failure, detail, milliseconds = json.loads(body)
    return JobReply(value, None if failure is None else Status(failure), detail, milliseconds)


class ServedProcess:
    """A program that serves this process over a socket, and its setup: `module` calls `connect` first of all.

    Args:
        module: the program; what it prints is kept for `end`.
        setup: JSON-able.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, module: str, setup: dict[str, Any]) -> None:
        output = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the process lives)
        self.child, end = start_module(module, thread_environment(1), output)  # a process that forks has one thread
        self.channel = Channel(end)
        self.channel.send(json.dumps({**setup, "path": sys.path}).encode())

    def end(self, grace: float) -> str:
        """Close the socket, wait at most `grace` seconds for the program to end, and kill it; returns how it ended."""
        self.channel.close()
        self.child.end(grace)
        reason = self.child.exit_reason()
        self.child.close()
        return reason


def connect(build: Callable[[dict[str, Any]], Served]) -> tuple[Channel, Served]:
    """In the program of a `ServedProcess`: the channel to its owner, and what `build` makes of the setup.

    An exception of `build`, which may import a user's module, ends the program with one line that its owner shows.
    """
    channel = Channel(connect_to_parent())
    setup = json.loads(channel.next())
    try:
        sys.path[:] = setup["path"]
        return channel, build(setup)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


@dataclass
class _OpenJob:
    """A job without a reply."""

    body: bytes
    future: Future[JobReply] = field(default_factory=Future)


class Pool:
    """Runs jobs in killable processes; any thread may submit them. A thread of the pool passes jobs and replies on.

    A new pool takes jobs at once; its supervisor first imports what it needs, and the jobs wait for that.

    A supervisor that ends is replaced and gets the open jobs again.

    Args:
        serve: `module:function`. The supervisor calls it once with `setup`; it returns the function that the workers
            call with each job. What it imports and builds, all workers share.
        setup: its argument, JSON-able.
        limits: how many processes there are and what they may use.

    Raises:
        WorkersLost: the supervisor cannot be started.
    """

    def __init__(self, serve: str, setup: Any = None, limits: WorkerLimits | None = None) -> None:
        self.limits = limits or WorkerLimits()
        self.workers = self.limits.workers or default_workers()
        self._serve, self._setup = serve, setup
        self._owner = os.getpid()
        self._next = 0
        self._new: deque[_OpenJob] = deque()
        self._open: dict[int, _OpenJob] = {}
        self._restarts = 0
        self._closed = ""  # why it takes no more jobs
        self._lock = threading.Lock()  # of the two above that submitting threads change: `_new` and `_closed`
        self._start()
        self._wake = os.eventfd(0)
        self._thread = threading.Thread(target=self._run, daemon=True, name="worker pool")
        self._thread.start()

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._supervisor.child.pid

    def submit(self, job: Any) -> Future[JobReply]:
        """Start a job; its future raises `WorkersLost` if the supervisor cannot be kept alive.

        Raises:
            TypeError: the job cannot be written as JSON.
            WorkersLost: the pool is closed.
        """
        begun = _OpenJob(json.dumps(job).encode())
        begun.future.set_running_or_notify_cancel()  # it cannot be cancelled
        with self._lock:
            if self._closed:
                raise WorkersLost(self._closed)
            self._new.append(begun)
            os.eventfd_write(self._wake, 1)
        return begun.future

    def close(self) -> None:
        """End the supervisor and its workers; jobs without a reply raise `WorkersLost`. May be called twice."""
        if self._owner != os.getpid():
            return  # a fork has a copy of the object, and neither the thread nor the processes
        with self._lock:
            if not self._closed:
                self._closed = "the worker processes were closed"
                os.eventfd_write(self._wake, 1)
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                self._wait()
                with self._lock:
                    if self._closed:
                        self._supervisor.end(CLOSING_SECONDS)
                        raise WorkersLost(self._closed)
                    taken = list(self._new)
                    self._new.clear()
                self._begin(taken)
                if self._open:
                    self._collect()
        except WorkersLost as error:
            with self._lock:
                self._closed = str(error)
                os.close(self._wake)
            for job in (*self._open.values(), *self._new):
                job.future.set_exception(error)

    def _wait(self) -> None:
        """Sleep until there is a new job, a reply, or room for what is unsent."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._open:
            poll.register(self._channel.socket, select.POLLIN | (select.POLLOUT if self._channel.unsent else 0))
        if any(descriptor == self._wake for descriptor, _ in poll.poll()):
            os.eventfd_read(self._wake)

    def _begin(self, jobs: list[_OpenJob]) -> None:
        first, self._next = self._next, self._next + len(jobs)
        numbers = dict(enumerate(jobs, first))
        self._open |= numbers
        try:
            for number, job in numbers.items():
                self._channel.send(numbered(number, job.body))
        except OSError:
            self._restart()

    def _collect(self) -> None:
        """Pass on the replies that are in; does not wait."""
        try:
            self._channel.flush()
            for message in self._channel.receive():
                number, body = split_number(message)
                job = self._open.pop(number, None)
                if job is not None:
                    self._restarts = 0
                    job.future.set_result(read_reply(body))
        except (EOFError, OSError):
            self._restart()

    def _start(self) -> None:
        setup = {
            "serve": self._serve, "setup": self._setup, "limits": asdict(self.limits), "workers": self.workers
        }  # fmt: skip
        try:
            self._supervisor = ServedProcess("strop_verify.supervisor", setup)
        except OSError as error:
            raise WorkersLost(f"the worker processes cannot be started: {error}") from error
        self._channel = self._supervisor.channel

    def _restart(self) -> None:
        """Start another supervisor and give it every open job.

        Raises:
            WorkersLost: that happened too often, or no process can be started.
        """
        ended = self._supervisor.end(CLOSING_SECONDS)
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise WorkersLost(f"the supervisor of the workers ended {self._restarts} times in a row: it {ended}")
        self._start()
        try:
            for number, job in self._open.items():
                self._channel.send(numbered(number, job.body))
        except OSError:
            self._restart()


def default_workers() -> int:
    """One less than the cores this process may use, at least 1 and at most 8."""
    return max(1, min(8, len(os.sched_getaffinity(0)) - 1))


_lock = threading.Lock()
_shared: dict[tuple[int, str, WorkerLimits], Pool] = {}


def submit(serve: str, setup: Any, limits: WorkerLimits, job: Any) -> Future[JobReply]:
    """Start a job in the pool that all calls with this `serve` and these limits share; returns its future reply.

    The pool is made at the first call, with that call's `setup`, and ends with this process. Thread-safe. After a
    fork the child makes its own.

    Raises:
        WorkersLost: the worker processes cannot be started.
    """
    key = (os.getpid(), serve, limits)
    with _lock:
        if key not in _shared:
            _shared[key] = Pool(serve, setup, limits)
        return _shared[key].submit(job)


def close_shared() -> None:
    """End the shared pools of this process; the next call makes new ones."""
    with _lock:
        for key in [key for key in _shared if key[0] == os.getpid()]:
            _shared.pop(key).close()


atexit.register(close_shared)


_is_worker = False


def enter_worker() -> None:
    """Called once in a new worker."""
    global _is_worker
    _is_worker = True


def in_worker() -> bool:
    """Whether this process is a worker, which is killed from outside when it hangs."""
    return _is_worker
