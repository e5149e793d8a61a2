"""A sandbox process as the trusted process sees it: pipes in, pipes out, clocks, and the end of everything.

A `SandboxProcess` starts when it is made; `pump` moves bytes and enforces limits until something happened; when
`finished` is true, the last process in its sandbox has ended. What comes out is output of the program, and is trusted
in nothing else.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from strop_verify.child_process import signal_name
from strop_verify.sandbox.guest.wire import FrameError, FrameReader, frame
from strop_verify.sandbox.launchers import ForkServer
from strop_verify.sandbox.limits import Ending, Limits, Outcome, ProgramRun, SandboxFailure

PAGE = os.sysconf("SC_PAGE_SIZE")
MOST = 4096
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def descendants(pid: int) -> list[int]:
    """`pid` and every process below it, as far as they can be seen."""
    found, position = [pid], 0
    while position < len(found) and len(found) < MOST:
        current = found[position]
        position += 1
        try:
            for thread in os.listdir(f"/proc/{current}/task"):
                found += map(int, Path(f"/proc/{current}/task/{thread}/children").read_text().split())
        except _GONE:
            continue
    return found


def tree_bytes(pid: int, shared: int, limit: int) -> int:
    """Memory of `pid` and all below it.

    Each process shares `shared` bytes with the fork server that forked it, and forks share with one another. The sum of
    resident sizes counts these again and again, so where it exceeds `limit` the proportional sizes decide.
    """
    processes = descendants(pid)
    resident = shared
    for process in processes:
        try:
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except _GONE:
            continue
        resident += max(0, pages * PAGE - shared)
    if resident <= limit:
        return resident
    proportional = [_proportional(process) for process in processes]
    return resident if None in proportional else sum(size for size in proportional if size is not None)


def kill_tree(pid: int) -> None:
    """Kill all below `pid`, then `pid`: stopped first, so that none can fork meanwhile."""
    for _ in range(100):
        below = descendants(pid)[1:]
        for signal_number in (signal.SIGSTOP, signal.SIGKILL):
            for process in below:
                _send(process, signal_number)
        if not below:
            break
        time.sleep(0.005)
    _send(pid, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _proportional(pid: int) -> int | None:
    """The proportional set size; 0 for a process that is gone, None where it may not be read."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except PermissionError:
        return None
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


Role = Literal["main", "solution", "tester"]

CHUNK = 1 << 16
STDERR_KEPT = 4096
SETUP_SECONDS = 60.0
REAP_SECONDS = 30.0
WATCH_SECONDS = 0.02


class SandboxProcess:
    """One program in a new sandbox, with everything that it starts there.

    Args:
        fork_server: starts it; it starts no other one meanwhile.
        role: how the program runs: as `main`, as a `solution` that answers requests, as the `tester`.
        source: the program.
        stdin: all of its standard input.
        limits: see `Limits`.
        seconds: about how long it may run, for the limit on processor time.
        channels: descriptors that the program gets on top of the standard three; the caller closes them.
        report: a descriptor to read frames from, which this object closes; None for none.
    """

    def __init__(
        self, fork_server: ForkServer, role: Role, source: str, stdin: bytes, limits: Limits, seconds: float,
        channels: Sequence[int] = (), report: int | None = None,
    ) -> None:  # fmt: skip
        self._fork_server, self._limits = fork_server, limits
        self.messages: deque[list[Any]] = deque()
        self.stdout = bytearray()
        self._stderr = bytearray()
        self._written = 0
        self._status_frames, self._report_frames = FrameReader(CHUNK), FrameReader(limits.output)
        self._pending: dict[int, memoryview] = {}  # what is still to be written, by descriptor
        self._reading: dict[int, str] = {}
        self._verdict: tuple[Outcome, str] | None = None  # why we ended it
        self._exit: int | None = None
        self._gone = False
        self.began: float | None = None  # when the program itself began
        self._ended: float | None = None
        self._created = self._watched = time.monotonic()
        self._start(role, source, stdin, seconds, channels, report)

    @property
    def finished(self) -> bool:
        """Whether no process of the sandbox is left, and all that the program wrote is here."""
        return self._gone and not self._reading

    @property
    def dying(self) -> bool:
        """Whether the program has ended or was killed; the rest of the sandbox ends within milliseconds."""
        return self._exit is not None or self._verdict is not None or self._gone

    @property
    def ending(self) -> Ending:
        """How it ended, once `finished`."""
        kind, detail = self._judge()
        seconds = (self._ended or time.monotonic()) - (self.began or self._created)
        return Ending(kind, detail, seconds)

    @property
    def run(self) -> ProgramRun:
        """The ending with all output, once `finished`."""
        return ProgramRun(self.ending, bytes(self.stdout), bytes(self._stderr))

    def write(self, descriptor: int, data: bytes) -> None:
        """Write to a pipe of the program's while pumping; the descriptor is non-blocking and stays the caller's."""
        self._pending[descriptor] = memoryview(bytes(self._pending.get(descriptor, b"")) + data)

    def end(self, kind: Outcome, detail: str) -> None:
        """Kill every process of the sandbox; the first reason given counts."""
        if self._verdict is None:
            self._verdict = (kind, detail)
            self._ended = time.monotonic()
        if not self._gone:
            self._kill()

    def close(self) -> None:
        """Kill what is left, wait for its end, close every descriptor; the fork server can then start the next one.

        Raises:
            SandboxFailure: it would not end.
        """
        try:
            if not self._gone:
                self.end(Outcome.KILLED, "no longer needed")
                deadline = time.monotonic() + REAP_SECONDS
                while not self._gone:
                    if time.monotonic() > deadline:
                        raise SandboxFailure("a sandbox process did not end after SIGKILL")
                    pump([self], 0.05)
        finally:
            for descriptor in list(self._reading):
                self._close_reading(descriptor)
            for descriptor in self._owned:
                os.close(descriptor)
            self._owned.clear()
            self._status.close()

    def _start(
        self, role: Role, source: str, stdin: bytes, seconds: float, channels: Sequence[int], report: int | None
    ) -> None:
        self._status, status = socket.socketpair()
        pipes = [os.pipe() for _ in range(4)]
        (code_in, code_out), (in_in, in_out), (out_in, out_out), (err_in, err_out) = pipes
        theirs = [status.fileno(), code_in, in_in, out_out, err_out]
        self._owned = {code_out, in_out}
        self._reading = {self._status.fileno(): "status", out_in: "stdout", err_in: "stderr"}
        if report is not None:
            self._reading[report] = "report"
        try:
            request = {"role": role, "limits": self._limits.wire(seconds)}
            self._pid, self._handle = self._fork_server.launch(request, [*theirs, *channels])
        except SandboxFailure:
            self._gone = True
            self._status.close()
            for descriptor in (*self._owned, out_in, err_in, *(() if report is None else (report,))):
                os.close(descriptor)
            raise
        finally:
            status.close()
            for descriptor in theirs[1:]:
                os.close(descriptor)
        self._owned.add(self._handle)
        for descriptor in (*self._reading, code_out, in_out):
            os.set_blocking(descriptor, False)
        self._pending = {code_out: memoryview(source.encode("utf-8", "surrogatepass")), in_out: memoryview(stdin)}
        self._status.send(b"g")

    def _events(self, poll: select.poll) -> None:
        for descriptor in self._reading:
            poll.register(descriptor, select.POLLIN)
        for descriptor in self._pending:
            poll.register(descriptor, select.POLLOUT)
        if not self._gone:
            poll.register(self._fork_server.done(), select.POLLIN)

    def _handle_event(self, descriptor: int) -> None:
        if descriptor in self._pending:
            self._write(descriptor)
        elif descriptor in self._reading:
            self._read(descriptor)
        elif not self._gone and descriptor == self._fork_server.done():
            self._gone = True
            self._ended = self._ended or time.monotonic()
            self._pending.clear()
            try:
                self._fork_server.collect()
            except SandboxFailure as error:
                self._verdict = self._verdict or (Outcome.SANDBOX_ERROR, str(error))
                self._kill()
                for stream in list(self._reading):  # no message comes when the last writer ends
                    self._close_reading(stream)

    def _write(self, descriptor: int) -> None:
        data = self._pending[descriptor]
        try:
            data = data[os.write(descriptor, data[:CHUNK]) :] if data else data
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):  # the program does not read on
            data = memoryview(b"")
        if data:
            self._pending[descriptor] = data
            return
        del self._pending[descriptor]
        if descriptor in self._owned:  # end of file for the program
            self._owned.discard(descriptor)
            os.close(descriptor)

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._close_reading(descriptor)
            return
        stream = self._reading[descriptor]
        try:
            if stream == "status":
                for message in self._status_frames.feed(data):
                    self._note(message)
            elif stream == "report":
                self._count(len(data))
                self.messages.extend(self._report_frames.feed(data))
            elif self._verdict is None:  # what comes after the end was decided is thrown away
                self._count(len(data))
                if stream == "stdout":
                    self.stdout += data
                else:
                    self._stderr = (self._stderr + data)[-STDERR_KEPT:]
        except FrameError as error:
            self._close_reading(descriptor)
            self.end(Outcome.KILLED, f"the answers are not readable: {error}")

    def _count(self, size: int) -> None:
        self._written += size
        if self._written > self._limits.output:
            self.end(Outcome.KILLED, f"more than {self._limits.output} bytes of output")
            self.stdout.clear()

    def _note(self, message: list[Any]) -> None:
        """A message of the sandbox's first process; the program never has this socket."""
        if message[0] == "ready":
            self.began = time.monotonic()
        elif message[0] == "exit":
            self._exit = message[1]
            self._ended = self._ended or time.monotonic()
        elif message[0] == "syntax":
            self._verdict = self._verdict or (Outcome.SYNTAX_ERROR, message[1])
        elif message[0] == "failed":
            self._verdict = (Outcome.SANDBOX_ERROR, f"{message[1]}: {message[2]}")

    def _close_reading(self, descriptor: int) -> None:
        name = self._reading.pop(descriptor)
        if name != "status":  # the socket object closes its own
            os.close(descriptor)

    def _kill(self) -> None:
        if self._fork_server.isolated:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        else:
            kill_tree(self._pid)

    def _watch(self) -> None:
        """Every few milliseconds, look at the memory of the process tree and at a sandbox that does not get ready."""
        now = time.monotonic()
        if self._gone or now - self._watched < WATCH_SECONDS:
            return
        self._watched = now
        if self.began is None:
            if now - self._created > SETUP_SECONDS:
                self.end(Outcome.SANDBOX_ERROR, f"the sandbox was not ready after {SETUP_SECONDS:.0f} s")
            return
        if tree_bytes(self._pid, self._fork_server.resident, self._limits.memory) > self._limits.memory:
            self.end(Outcome.MEMORY, f"more than {self._limits.memory >> 20} MiB")

    def _judge(self) -> tuple[Outcome, str]:
        if self._verdict is not None:
            return self._verdict
        if self.began is None:
            return Outcome.SANDBOX_ERROR, "the sandbox ended before the program began"
        if self._exit is None:
            return Outcome.KILLED, "the sandbox ended and did not report how the program did"
        code = self._exit
        if code == 0:
            return Outcome.ENDED, ""
        last = self._stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
        if code > 0:
            kind = Outcome.MEMORY if last.startswith("MemoryError") else Outcome.RUNTIME_ERROR
            return kind, last or f"exit code {code}"
        if -code == signal.SIGKILL:
            return Outcome.KILLED, "killed by its own signal"
        if -code == signal.SIGXCPU:
            return Outcome.TIMEOUT, "processor time"
        return Outcome.RUNTIME_ERROR, f"killed by {signal_name(-code)}"


def pump(processes: Sequence[SandboxProcess], timeout: float) -> None:
    """Wait at most `timeout` seconds for anything to happen in the sandboxes of `processes`, and handle it."""
    poll = select.poll()
    for process in processes:
        process._events(poll)
    wait = max(0.0, min(timeout, WATCH_SECONDS))
    for descriptor, _ in poll.poll(wait * 1000):
        for process in processes:
            process._handle_event(descriptor)
    for process in processes:
        process._watch()


def finish(process: SandboxProcess, deadline: float) -> ProgramRun:
    """Pump until the program has ended; kill it at `deadline`, seconds after it began."""
    while not process.finished:
        now = time.monotonic()
        if process.began is not None and now - process.began > deadline:
            process.end(Outcome.TIMEOUT, f"more than {deadline:g} s")
        remaining = WATCH_SECONDS if process.began is None else process.began + deadline - now + 0.001
        pump([process], remaining)
    return process.run


def send(process: SandboxProcess, descriptor: int, message: list[Any]) -> None:
    """Write a frame to a channel of the sandbox process."""
    process.write(descriptor, frame(message))
