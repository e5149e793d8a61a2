"""The supervisor: a small process that has imported what jobs need, forks workers from itself, and kills them.

    caller ──jobs──▶ supervisor ──one at a time──▶ workers (forked from it in milliseconds, memory-limited)
           ◀replies──          ◀──────────────────

It is started as a program, never forked from a caller with threads. It has one thread and does not read the jobs: only
workers read what a policy wrote, so nothing can keep the supervisor from its clock. When the caller ends, however it
ends, the kernel kills the supervisor, and with it the workers.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from strop_verify.child_process import die_with_parent, exit_reason
from strop_verify.framing import Channel
from strop_verify.pool import (
    JobReply,
    WorkerLimits,
    connect,
    enter_worker,
    numbered,
    split_number,
    write_reply,
)
from strop_verify.verdict import Status

OUT_OF_MEMORY = 77  # exit status
Handler = Callable[[Any], Any]


@dataclass
class Job:
    """A job as it came; `failure` says why its first try gave no result."""

    number: int
    message: bytes
    failure: str = ""


@dataclass
class Worker:
    """A worker process, and the job that it is doing with its time limit."""

    pid: int
    channel: Channel
    job: Job | None = None
    begun: float = 0.0
    deadline: float = 0.0


class Supervisor:
    """Serves one caller until it closes its end."""

    def __init__(self, control: Channel, handle: Handler, limits: WorkerLimits, workers: int) -> None:
        self._control = control
        self._handle = handle
        self._limits = limits
        self._selector = selectors.DefaultSelector()
        self._queue: deque[Job] = deque()
        self._workers: list[Worker] = []
        self._selector.register(control.socket, control.interest, None)
        for _ in range(workers):
            self._fork()

    def serve(self) -> None:
        """Take jobs, hand them out, kill what takes too long; returns when the caller has closed its end."""
        try:
            self._serve_caller(selectors.EVENT_READ)  # jobs that came together with the setup
            while True:
                self._hand_out()
                self._watch()
                for key, events in self._selector.select(self._seconds_left()):
                    if key.data is None:
                        self._serve_caller(events)
                    elif key.data in self._workers:
                        self._serve_worker(key.data, events)
                self._kill_late()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass  # the caller has closed its end
        finally:
            for worker in self._workers:
                _kill(worker.pid)

    def _seconds_left(self) -> float | None:
        """Seconds until the first worker is late; None where none works."""
        deadlines = [worker.deadline for worker in self._workers if worker.job is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _watch(self) -> None:
        self._selector.modify(self._control.socket, self._control.interest, None)
        for worker in self._workers:
            self._selector.modify(worker.channel.socket, worker.channel.interest, worker)

    def _serve_caller(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._control.flush()
        if events & selectors.EVENT_READ:
            for message in self._control.receive():
                self._queue.append(Job(split_number(message)[0], message))

    def _serve_worker(self, worker: Worker, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                worker.channel.flush()
            if events & selectors.EVENT_READ:
                for message in worker.channel.receive():
                    number, _ = split_number(message)
                    if worker.job is not None and worker.job.number == number:
                        worker.job = None
                        self._control.send(message)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            if worker in self._workers:
                self._replace(worker)

    def _hand_out(self) -> None:
        for worker in self._workers:
            if not self._queue:
                return
            if worker.job is None:
                self._give(worker, self._queue.popleft(), self._limits.seconds)

    def _give(self, worker: Worker, job: Job, seconds: float) -> None:
        worker.job = job
        worker.begun = time.monotonic()
        worker.deadline = worker.begun + seconds
        with suppress(BrokenPipeError, ConnectionResetError):
            # Where it has died, the selector says so next, and the job is tried again.
            worker.channel.send(job.message)

    def _kill_late(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.job is not None and now >= worker.deadline:
                self._replace(worker, "took too long")

    def _replace(self, worker: Worker, late: str = "") -> None:
        """Kill a worker and fork another; its job gets one more try, in the new one."""
        self._workers.remove(worker)
        self._selector.unregister(worker.channel.socket)
        status = _kill(worker.pid)
        worker.channel.close()
        successor = self._fork()
        job = worker.job
        if job is None:
            return
        failure = late or f"the worker {'ran out of memory' if status == OUT_OF_MEMORY else exit_reason(status)}"
        if not job.failure:
            job.failure = failure
            self._give(successor, job, self._limits.retry_seconds)
            return
        detail = f"{failure} twice" if failure == job.failure else f"{job.failure}, then {failure}"
        failure_status = Status.TIMEOUT if late else Status.ERROR
        reply = JobReply(None, failure_status, detail, 1000 * (time.monotonic() - worker.begun))
        self._control.send(numbered(job.number, write_reply(reply)))

    def _fork(self) -> Worker:
        ours, theirs = socket.socketpair()
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            # Nothing of the supervisor's stays open: a worker that held the caller's socket would hide its end.
            self._selector.close()
            self._control.close()
            for other in self._workers:
                other.channel.close()
            ours.close()
            work(theirs, self._handle, self._limits, me)
        theirs.close()
        worker = Worker(pid, Channel(ours))
        self._workers.append(worker)
        self._selector.register(ours, worker.channel.interest, worker)
        return worker


def _kill(pid: int) -> int:
    """Kill a worker with all of its process group and reap it; returns its exit status, negative for a signal."""
    for send in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or has not yet made its group
            send(pid, signal.SIGKILL)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0


def work(end: socket.socket, handle: Handler, limits: WorkerLimits, parent: int) -> NoReturn:
    """Serve the supervisor at the other end of the socket; never returns into the code that called `fork`."""
    try:
        _confine(limits, parent)
        enter_worker()
        channel = Channel(end)
        while True:
            number, body = split_number(channel.next())
            channel.send_all(numbered(number, write_reply(_reply(handle, json.loads(body)))))
    except EOFError:
        os._exit(0)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException:  # the supervisor sees the exit status; nothing may unwind into its loop
        os._exit(1)


def _confine(limits: WorkerLimits, parent: int) -> None:
    """Die with the supervisor, lead a process group, write nowhere, and end first when memory runs out."""
    os.setpgid(0, 0)
    die_with_parent(parent)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + limits.memory_mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    gc.unfreeze()


def _reply(handle: Handler, job: Any) -> JobReply:
    begin = time.perf_counter()
    try:
        value = handle(job)
    except MemoryError:
        raise
    except RecursionError:
        return JobReply(None, Status.ERROR, "RecursionError in the verifier")
    except Exception as error:  # a user's function may raise anything; the reply says so
        return JobReply(None, Status.ERROR, f"{type(error).__name__} in the verifier: {str(error)[:120]}")
    return JobReply(value, milliseconds=1000 * (time.perf_counter() - begin))


def main() -> None:
    """Serve the process that started this one."""
    control, (handle, limits, workers) = connect(_built)
    gc.collect()
    gc.freeze()
    Supervisor(control, handle, limits, workers).serve()


def _built(setup: dict[str, Any]) -> tuple[Handler, WorkerLimits, int]:
    module, _, function = setup["serve"].partition(":")
    handle = getattr(importlib.import_module(module), function)(setup["setup"])
    return handle, WorkerLimits(**setup["limits"]), setup["workers"]


if __name__ == "__main__":
    main()
