"""Workers as spawned processes: one socket and one watching thread each.

A worker is another interpreter, never a fork of this one, which has threads. Its thread reads what the worker sends and
waits on the kernel's handle of the process (pidfd): a death is known within milliseconds, also while the trainer
computes, and no worker ever waits for a controller that is busy. A worker that is killed while it sends cuts short only
its own message.

The second half is the program that a worker runs (`main`). It dies with its controller, however that one ends, and
ignores Ctrl-C. SIGUSR1 makes it write the stacks of its threads into `stacks/ROLE.txt` of the run's folder.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import IO, Any

from strop.base.types import StropError
from strop.orchestration.messages import Heartbeat
from strop.orchestration.process_registry import ProcessRegistry, RegisteredWorker
from strop.orchestration.workers import (
    HEARTBEAT_SECONDS,
    LOGS,
    LOOPBACK,
    ControllerGone,
    WorkerHandle,
    WorkerLauncher,
    WorkerSetup,
    WorkerSpec,
    environment_of,
    last_words,
    standing_since,
    written,
)
from strop_verify.child_process import ChildProcess, connect_to_parent, start_module
from strop_verify.framing import Channel

_LOOK_SECONDS = 0.5

WORKER = "strop.orchestration.processes"


class ProcessHandle(WorkerHandle):
    """A `WorkerHandle` to a spawned process."""

    def __init__(self, launcher: Processes, role: str, process: ChildProcess, end: socket.socket) -> None:
        super().__init__(role)
        self._launcher = launcher
        self.process = process
        self.worker = RegisteredWorker.of(role, process.pid)
        self.channel = Channel(end)
        self.hears = True  # its end of the socket is open
        self.wake, self.woken = socket.socketpair()  # a byte wakes the thread, which then sends what is queued
        self.wake.setblocking(False)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self.process.pid

    def send(self, message: object) -> None:
        """Queue a message."""
        self._launcher.send(self, written(message))

    def dismiss(self) -> None:
        """Close the worker's line."""
        self._launcher.dismiss(self)

    def kill(self, reason: str) -> None:
        """SIGKILL."""
        if self.killed(reason):
            self.process.kill()


class Processes(WorkerLauncher):
    """A `WorkerLauncher` of spawned processes.

    Args:
        folder: the run's folder, which gets `processes.json` (the running workers), `logs/ROLE.txt` (what they print)
            and `stacks/ROLE.txt` (their stacks, on SIGUSR1). None: nothing is written.
        registry: the running workers; shared with the launchers of the run's other workers.
    """

    def __init__(self, folder: Path | None = None, registry: ProcessRegistry | None = None) -> None:
        super().__init__(registry)
        self._registry.folder = folder

    def launch(self, spec: WorkerSpec) -> ProcessHandle:
        """Start a worker.

        Raises:
            StropError: no process can be started.
        """
        # Before the process: settings that cannot be sent leave none behind.
        setup = written(WorkerSetup.of(spec, self.folder))
        try:
            process, end = start_module(WORKER, environment_of(spec), self._log(spec.role))
        except OSError as error:
            raise StropError(f"{spec.role}: no process can be started: {error.strerror or error}") from error
        handle = ProcessHandle(self, spec.role, process, end)
        self._registry.add(handle.worker)
        self.send(handle, setup)
        threading.Thread(target=self._watch, args=(handle,), daemon=True, name=f"handle to {spec.role}").start()
        return handle

    def send(self, handle: ProcessHandle, content: bytes) -> None:
        """Queue a frame for a worker."""
        with self._changed:
            if not handle.hears or handle.end is not None:
                return
            try:
                handle.channel.send(content)
            except OSError:
                handle.hears = False  # the watch will say why
            if handle.channel.unsent:
                with contextlib.suppress(BlockingIOError):  # then it has been woken often enough
                    handle.wake.send(b"x")

    def dismiss(self, handle: ProcessHandle) -> None:
        """Close our side of a worker's line; what it still sends is received."""
        with self._changed:
            if handle.end is None:
                with contextlib.suppress(OSError):  # then it has closed its side, and ends by itself
                    handle.channel.socket.shutdown(socket.SHUT_WR)

    # ------------------------------------------------------------------ the thread of a worker

    def _watch(self, handle: ProcessHandle) -> None:
        """Send and receive until the worker is gone."""
        line, process = handle.channel.socket, handle.process.pidfd
        is_open, gone = True, False
        with selectors.DefaultSelector() as selector:
            selector.register(handle.woken, selectors.EVENT_READ)
            selector.register(line, selectors.EVENT_READ)
            if process is not None:
                selector.register(process, selectors.EVENT_READ)
            while not gone:
                if is_open:
                    with self._changed:
                        selector.modify(line, handle.channel.interest)
                # If this process was stopped, the first look may come back empty although there is much to read.
                ready = {key.fileobj: events for key, events in selector.select(_LOOK_SECONDS) or selector.select(0)}
                if handle.woken in ready:
                    handle.woken.recv(1 << 12)
                gone = process in ready
                if line in ready and not gone:
                    is_open = self._exchange(handle, bool(ready[line] & selectors.EVENT_READ))
                    if not is_open:
                        selector.unregister(line)
                        gone = process is None  # without the kernel's handle only a closed socket shows a death
                handle.looked = time.monotonic()
        self._reap(handle, is_open)

    def _exchange(self, handle: ProcessHandle, readable: bool) -> bool:
        """Whether there may be more of the worker."""
        bodies: list[bytes] = []
        is_open = True
        with self._changed:
            try:
                handle.channel.flush()
            except OSError:
                handle.hears = False
            try:
                for body in handle.channel.receive() if readable else ():
                    bodies.append(body)
            except (EOFError, OSError):
                is_open = handle.hears = False
        for body in bodies:  # not under the lock: a long message takes a while
            try:
                message = pickle.loads(body)
            except Exception as error:  # whatever it is, it must not end this thread, and nothing after it is heard
                handle.kill(f"it sent a message that cannot be read: {type(error).__name__}: {error}")
                return False
            with self._changed:
                handle.take([message])
                if handle.inbox:  # a heartbeat is nothing to wake up for
                    self._changed.notify_all()
        return is_open

    def _reap(self, handle: ProcessHandle, is_open: bool) -> None:
        """Take what an ended worker had sent and its exit status, and close its files."""
        while is_open:
            is_open = self._exchange(handle, True) and handle.channel.wait(0.0)
        if handle.process.pidfd is None:
            handle.process.kill()
        reason = handle.process.exit_reason()
        self._registry.remove(handle.worker)
        with self._changed:
            for end in (handle.channel, handle.wake, handle.woken):
                end.close()
            handle.finish(f"it {reason}")
            handle.process.close()
            self._changed.notify_all()

    def _log(self, role: str) -> IO[bytes]:
        if self.folder is None:
            return tempfile.TemporaryFile()
        path = self.folder / LOGS / f"{role}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+b")


# ---------------------------------------------------------------------- the worker's side


class SocketConnection:
    """A `ControllerConnection` over a stream socket. A heartbeat thread may send too."""

    address = LOOPBACK

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel(end)
        self._sending = threading.Lock()
        self._came_round = time.monotonic()

    def send(self, message: object) -> None:
        """Send a message; waits while the controller does not read."""
        try:
            with self._sending:
                self._channel.send_all(written(message))
        except OSError as error:
            raise ControllerGone from error

    def receive(self, seconds: float) -> list[Any]:
        """The messages that are in; waits up to `seconds` for the first."""
        self.progress()
        deadline = time.monotonic() + seconds
        found: list[Any] = []
        while True:
            try:
                for body in self._channel.receive():
                    found.append(pickle.loads(body))
            except EOFError as error:
                if not found:
                    raise ControllerGone from error
            self.progress()
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            self._channel.wait(left)

    def first(self) -> Any:
        """The first message, however long it takes; what came with it is received later."""
        try:
            return pickle.loads(self._channel.next())
        except EOFError as error:
            raise ControllerGone from error

    def progress(self) -> None:
        """Count as progress."""
        self._came_round = time.monotonic()

    def beat(self) -> None:
        """Send a heartbeat."""
        self.send(Heartbeat(standing_since(self._came_round)))


def _beat_for_ever(connection: SocketConnection) -> None:
    with contextlib.suppress(ControllerGone):
        while True:
            connection.beat()
            time.sleep(HEARTBEAT_SECONDS)
    os._exit(1)  # whatever the main thread does: its results are no longer wanted


def main() -> None:
    """Run one worker to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = SocketConnection(connect_to_parent())
    status = 0
    try:
        setup = connection.first()
        threading.Thread(target=_beat_for_ever, args=(connection,), daemon=True, name="heartbeat").start()
        assert isinstance(setup, WorkerSetup)
        setup.run(connection)
    except ControllerGone:
        pass  # the normal end
    except Exception as error:  # whatever it is, the controller must hear of it
        status = 1
        traceback.print_exc()
        with contextlib.suppress(ControllerGone):
            connection.send(last_words(error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # no thread of a library may keep a worker that is done


if __name__ == "__main__":
    main()
