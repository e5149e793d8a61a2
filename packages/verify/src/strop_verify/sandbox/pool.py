"""Many programs at once: a fixed number of slots, each with a warm fork server, started when it is first needed.

    sandbox = Sandbox()
    run = sandbox.run("print(int(input()) + 1)", b"41\\n", seconds=6.0)
    run.ending.outcome, run.stdout                     # ended, b"42\\n"

`run` blocks and may be called from any number of threads. After a failure of the sandbox itself a program is tried once
more with a fresh fork server.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from strop_verify.sandbox.launchers import ForkServer
from strop_verify.sandbox.layers import SandboxCapabilities, require
from strop_verify.sandbox.limits import Ending, Limits, Outcome, ProgramRun, SandboxFailure
from strop_verify.sandbox.process import Role, SandboxProcess, finish

CLOSE_SECONDS = 60.0


class Slot:
    """Runs one program at a time: a fork server, and a second one where two programs talk to each other."""

    def __init__(self, capabilities: SandboxCapabilities, limits: Limits) -> None:
        self._capabilities, self._limits = capabilities, limits
        self._servers: list[ForkServer | None] = [None, None]
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def process(
        self, role: Role, source: str, stdin: bytes, seconds: float, channels: Sequence[int] = (),
        report: int | None = None, place: int = 0,
    ) -> Iterator[SandboxProcess]:  # fmt: skip
        """A sandbox process that ends with the block. After a failure of the sandbox a new fork server is started.

        Raises:
            SandboxFailure: it could not be started, or would not end.
        """
        server = self._server(place)
        try:
            process = SandboxProcess(server, role, source, stdin, self._limits, seconds, channels, report)
            try:
                yield process
            finally:
                process.close()
            if process.ending.outcome is Outcome.SANDBOX_ERROR:
                self._discard(place)
        except SandboxFailure:
            self._discard(place)
            raise

    def abort(self) -> None:
        """End what runs here, from another thread."""
        with self._lock:
            self._closed = True
            for server in self._servers:
                if server is not None:
                    server.abort()

    def close(self) -> None:
        """End the fork servers; nothing may run here any more."""
        self._closed = True
        for place in range(len(self._servers)):
            self._discard(place)

    def _server(self, place: int) -> ForkServer:
        with self._lock:
            server = self._servers[place]
            if self._closed:
                raise SandboxFailure("the sandbox is closed")
            if server is None:
                server = self._servers[place] = ForkServer(self._capabilities.plan, self._limits)
            return server

    def _discard(self, place: int) -> None:
        with self._lock:
            server, self._servers[place] = self._servers[place], None
        if server is not None:
            server.close()


class Sandbox:
    """Runs foreign programs isolated from the machine, `workers` at once.

    Args:
        limits: what each program may use.
        workers: programs at once; by default the usable cores.
        allow_unsafe: run them even where this machine cannot isolate them.
        capabilities: the layers of isolation to use; by default those that `probe` found.

    Raises:
        NoIsolation: this machine cannot isolate foreign programs.
    """

    def __init__(
        self, limits: Limits | None = None, workers: int | None = None, allow_unsafe: bool = False,
        capabilities: SandboxCapabilities | None = None,
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

    def run(self, program: str, stdin: bytes = b"", seconds: float = 6.0) -> ProgramRun:
        """Run a program to its end, at most `seconds` of wall clock; never raises for what the program does."""
        run = self._run(program, stdin, seconds)
        return self._run(program, stdin, seconds) if run.ending.outcome is Outcome.SANDBOX_ERROR else run

    def close(self) -> None:
        """End everything, also what still runs; afterwards no process or file of the sandbox is left."""
        if self._closed:
            return
        self._closed = True
        for slot in self._slots:
            slot.abort()
        for slot in [self._free.get(timeout=CLOSE_SECONDS) for _ in self._slots]:
            slot.close()
            self._free.put(slot)  # who still asks gets an error instead of waiting for ever

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, program: str, stdin: bytes, seconds: float) -> ProgramRun:
        with self.slot() as slot:
            try:
                with slot.process("main", program, stdin, seconds) as process:
                    return finish(process, seconds)
            except SandboxFailure as error:
                return ProgramRun(Ending(Outcome.SANDBOX_ERROR, str(error)))


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
