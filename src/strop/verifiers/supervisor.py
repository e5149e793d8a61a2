"""The supervisor: a small process that has imported what verdicts need, forks workers from itself, and kills them.

    trainer ──jobs──▶ supervisor ──one at a time──▶ workers (forked from it in milliseconds, memory-limited)
            ◀verdicts──          ◀──────────────────

It is started as a program, never forked from a trainer with threads. It has one thread and reads no job: what a policy
wrote is only ever looked at in a worker. When the trainer is gone, however it ended, the supervisor goes too, and the
workers with it.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from strop.base.types import Status, Verdict
from strop.verifiers.isolation import Isolation
from strop.verifiers.wire import SETUP, Channel, write_result
from strop.verifiers.worker import OUT_OF_MEMORY, load, read_frame, work

HEARTBEAT = 0.5


@dataclass
class Job:
    """A job on its way; `failure` says what its first try came to."""

    number: int
    body: bytes
    failure: str = ""


@dataclass
class Worker:
    """A worker process, and the job it is at with its limits."""

    pid: int
    channel: Channel
    job: Job | None = None
    begun: float = 0.0
    deadline: float = 0.0


class Supervisor:
    """Serves one trainer until it closes its end."""

    def __init__(self, control: Channel, isolation: Isolation, workers: int) -> None:
        self._control = control
        self._isolation = isolation
        self._selector = selectors.DefaultSelector()
        self._parent = os.getppid()
        self._queue: deque[Job] = deque()
        self._workers: list[Worker] = []
        self._selector.register(control.socket, control.interest, None)
        for _ in range(workers):
            self._fork()

    def serve(self) -> None:
        """Take jobs, hand them out, kill what takes too long; returns when the trainer is gone."""
        try:
            while os.getppid() == self._parent:
                self._hand_out()
                self._watch()
                for key, events in self._selector.select(self._patience()):
                    if key.data is None:
                        self._hear_trainer(events)
                    elif key.data in self._workers:
                        self._hear_worker(key.data, events)
                self._kill_late()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass  # the trainer has closed its end: the normal end
        finally:
            for worker in self._workers:
                _kill(worker.pid)

    def _patience(self) -> float:
        deadlines = [worker.deadline for worker in self._workers if worker.job is not None]
        return min([HEARTBEAT, *(max(0.0, deadline - time.monotonic()) for deadline in deadlines)])

    def _watch(self) -> None:
        self._selector.modify(self._control.socket, self._control.interest, None)
        for worker in self._workers:
            self._selector.modify(worker.channel.socket, worker.channel.interest, worker)

    def _hear_trainer(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._control.flush()
        if events & selectors.EVENT_READ:
            for number, body in self._control.receive():
                self._queue.append(Job(number, body))

    def _hear_worker(self, worker: Worker, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                worker.channel.flush()
            if events & selectors.EVENT_READ:
                for number, body in worker.channel.receive():
                    if worker.job is not None and worker.job.number == number:
                        worker.job = None
                        self._control.send(number, body)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            if worker in self._workers:
                self._replace(worker, "")

    def _hand_out(self) -> None:
        for worker in self._workers:
            if not self._queue:
                return
            if worker.job is None:
                self._give(worker, self._queue.popleft(), self._isolation.seconds)

    def _give(self, worker: Worker, job: Job, seconds: float) -> None:
        worker.job = job
        worker.begun = time.monotonic()
        worker.deadline = worker.begun + seconds
        with suppress(BrokenPipeError, ConnectionResetError):
            # Where it has died, the selector says so next, and the job is tried again.
            worker.channel.send(job.number, job.body)

    def _kill_late(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.job is not None and now >= worker.deadline:
                self._replace(worker, "took too long")

    def _replace(self, worker: Worker, late: str) -> None:
        """Kill a worker and fork another; its job gets one more try, in the new one."""
        self._workers.remove(worker)
        self._selector.unregister(worker.channel.socket)
        failure = late or _obituary(_kill(worker.pid))
        if late:
            _kill(worker.pid)
        worker.channel.close()
        successor = self._fork()
        job = worker.job
        if job is None:
            return
        if not job.failure:
            job.failure = failure
            self._give(successor, job, self._isolation.retry_seconds)
            return
        status = Status.TIMEOUT if late else Status.ERROR
        detail = f"{failure} twice" if failure == job.failure else f"{job.failure}, then {failure}"
        spent = 1000 * (time.monotonic() - worker.begun)
        self._control.send(job.number, write_result(Verdict(0.0, status, detail), detail, spent))

    def _fork(self) -> Worker:
        ours, theirs = socket.socketpair()
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            # Nothing of the supervisor's stays open: a worker that held the trainer's socket would hide its end.
            self._selector.close()
            self._control.close()
            for other in self._workers:
                other.channel.close()
            ours.close()
            work(theirs, self._isolation, me)
        theirs.close()
        worker = Worker(pid, Channel(ours))
        self._workers.append(worker)
        self._selector.register(ours, worker.channel.interest, worker)
        return worker


def _kill(pid: int) -> int:
    """Kill a child with all of its group and take its exit status, negative for a signal."""
    for send in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or has not yet made its group
            send(pid, signal.SIGKILL)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0


def _obituary(exit_code: int) -> str:
    if exit_code == OUT_OF_MEMORY:
        return "the worker ran out of memory"
    if exit_code < 0:
        return f"the worker was killed by signal {-exit_code}"
    return f"the worker ended with exit status {exit_code}"


def main() -> None:
    """Serve the trainer at the other end of the socket whose descriptor is the first argument."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.setblocking(True)
    first = _setup(control)
    isolation = Isolation.model_validate(first["isolation"])
    try:
        load(first["verifier"], first["modules"], first["path"]).warm()
    except Exception as error:  # importing a user's module may raise anything; the trainer shows the last line
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    gc.collect()
    gc.freeze()
    Supervisor(Channel(control), isolation, first["workers"]).serve()


def _setup(control: socket.socket) -> dict[str, Any]:
    number, body = read_frame(control)
    assert number == SETUP
    setup: dict[str, Any] = json.loads(body)
    return setup


if __name__ == "__main__":
    main()
