"""Many programs at once: a fixed number of slots, each with a warm zygote that is started when it is first needed.

    sandbox = Sandbox()
    run = sandbox.run("print(int(input()) + 1)", b"41\\n", seconds=6.0)
    run.ending.kind, run.stdout                     # ended, b"42\\n"

`run` blocks and may be called from any number of threads; `run_all` gives the runs of many programs in order as they
are done; `run_async` is for asyncio. A failure of the sandbox itself is tried once more with a fresh zygote.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from strop.verifiers.sandbox.hosts import Host
from strop.verifiers.sandbox.layers import Capabilities, require
from strop.verifiers.sandbox.limits import Ending, Kind, Limits, Run, SandboxFailure
from strop.verifiers.sandbox.process import Role, Room, finish

CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class Job:
    """A program, its standard input and its wall-clock limit in seconds."""

    program: str
    stdin: bytes = b""
    seconds: float = 6.0


class Slot:
    """One place for work at a time: a host, and a second one where two programs talk to each other."""

    def __init__(self, capabilities: Capabilities, limits: Limits) -> None:
        self._capabilities, self._limits = capabilities, limits
        self._hosts: list[Host | None] = [None, None]
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def room(
        self, role: Role, source: str, stdin: bytes, seconds: float, channels: Sequence[int] = (),
        report: int | None = None, place: int = 0,
    ) -> Iterator[Room]:  # fmt: skip
        """A room that is gone when the block ends; after a failure of ours the next one has a new host.

        Raises:
            SandboxFailure: it could not be made, or would not end.
        """
        host = self._host(place)
        try:
            room = Room(host, role, source, stdin, self._limits, seconds, channels, report)
            try:
                yield room
            finally:
                room.close()
            if room.ending.kind is Kind.SANDBOX_ERROR:
                self._discard(place)
        except SandboxFailure:
            self._discard(place)
            raise

    def abort(self) -> None:
        """End what runs here, from another thread."""
        with self._lock:
            self._closed = True
            for host in self._hosts:
                if host is not None:
                    host.abort()

    def close(self) -> None:
        """End the hosts; nothing may run here any more."""
        self._closed = True
        for place in range(len(self._hosts)):
            self._discard(place)

    def _host(self, place: int) -> Host:
        with self._lock:
            host = self._hosts[place]
            if self._closed:
                raise SandboxFailure("the sandbox is closed")
            if host is None:
                host = self._hosts[place] = self._capabilities.host(self._limits)
            return host

    def _discard(self, place: int) -> None:
        with self._lock:
            host, self._hosts[place] = self._hosts[place], None
        if host is not None:
            host.close()


class Sandbox:
    """Runs foreign programs behind walls, `workers` at once.

    Args:
        limits: what each program may use.
        workers: programs at once; by default the usable cores.
        allow_unsafe: run them even where this machine has no walls.
        capabilities: what to build with; by default what `probe` found.

    Raises:
        NoIsolation: there are no walls here.
    """

    def __init__(
        self, limits: Limits | None = None, workers: int | None = None, allow_unsafe: bool = False,
        capabilities: Capabilities | None = None,
    ) -> None:  # fmt: skip
        self.limits = limits or Limits()
        self.capabilities = capabilities or require(allow_unsafe)
        self.workers = workers or len(os.sched_getaffinity(0))
        self._slots = [Slot(self.capabilities, self.limits) for _ in range(self.workers)]
        self._free: queue.LifoQueue[Slot] = queue.LifoQueue()
        for slot in self._slots:
            self._free.put(slot)
        self._closed = False
        atexit.register(_close, weakref.ref(self))

    @contextmanager
    def slot(self) -> Iterator[Slot]:
        """A slot for this thread, as soon as one is free."""
        slot = self._free.get()
        try:
            yield slot
        finally:
            self._free.put(slot)

    def run(self, program: str, stdin: bytes = b"", seconds: float = 6.0) -> Run:
        """Run a program to its end, at most `seconds` of wall clock; never raises for what the program does."""
        run = self._run(program, stdin, seconds)
        return self._run(program, stdin, seconds) if run.ending.kind is Kind.SANDBOX_ERROR else run

    async def run_async(self, program: str, stdin: bytes = b"", seconds: float = 6.0) -> Run:
        """`run` for asyncio: a thread waits."""
        import asyncio

        return await asyncio.to_thread(self.run, program, stdin, seconds)

    def run_all(self, jobs: Iterable[Job]) -> Iterator[Run]:
        """The runs of many programs, in order, `workers` at once."""
        with ThreadPoolExecutor(self.workers) as threads:
            yield from threads.map(lambda job: self.run(job.program, job.stdin, job.seconds), jobs)

    def close(self) -> None:
        """End everything, also what still runs; afterwards no process, group or file of the sandbox is left."""
        if self._closed:
            return
        self._closed = True
        for slot in self._slots:
            slot.abort()
        for _ in self._slots:
            self._free.get(timeout=CLOSE_SECONDS).close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, program: str, stdin: bytes, seconds: float) -> Run:
        with self.slot() as slot:
            try:
                with slot.room("main", program, stdin, seconds) as room:
                    return finish(room, seconds)
            except SandboxFailure as error:
                return Run(Ending(Kind.SANDBOX_ERROR, str(error)))


_shared: dict[tuple[int, Limits, int | None, bool], Sandbox] = {}
_sharing = threading.Lock()


def shared(limits: Limits, workers: int | None = None, allow_unsafe: bool = False) -> Sandbox:
    """The sandbox of this process with these settings, made at the first call and closed when the process ends."""
    key = (os.getpid(), limits, workers, allow_unsafe)
    with _sharing:
        if key not in _shared:
            _shared[key] = Sandbox(limits, workers, allow_unsafe)
        return _shared[key]


def _close(reference: weakref.ref[Sandbox]) -> None:
    sandbox = reference()
    if sandbox is not None:
        sandbox.close()
