"""Workers as spawned processes: one socket each, watched by a thread that learns of a death at once.

A worker is another interpreter, never a fork of this one, which has threads. The watching thread reads what comes in
and waits on the kernel's handle of every process (pidfd): a death is known within milliseconds, also while the trainer
computes, and no worker ever waits for a controller that is busy. Each worker has a connection of its own: one that is
killed while it sends cuts short its own message, and no other worker's.
"""

from __future__ import annotations

import contextlib
import pickle
import selectors
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from strop.base.child_process import ChildProcess, start_module
from strop.base.framing import Channel
from strop.base.types import StropError
from strop.orchestration.connection import Death, Link, WorkerSpec
from strop.orchestration.messages import Failed, Heartbeat
from strop.orchestration.process_registry import Roster, Worker
from strop.orchestration.worker_process import LOOPBACK, setup_of, thread_environment, written

LOGS = "logs"
_LOOK_SECONDS = 0.5

WORKER = "strop.orchestration.worker_process"


class ProcessLink:
    """A `Link` to a spawned process. Its fields are the launcher's to change, under the launcher's lock."""

    def __init__(self, launcher: Processes, role: str, process: ChildProcess, end: socket.socket) -> None:
        self._launcher = launcher
        self._role = role
        self.process = process
        self.worker = Worker.of(role, process.pid)
        self.channel = Channel(end)
        self.pidfd = process.pidfd
        self.inbox: deque[Any] = deque()
        self.heard = time.monotonic()
        self.said: Failed | None = None
        self.killed: str | None = None
        self.end: Death | None = None
        self.hears = True  # its end of the socket is open
        self.stalled = 0.0

    @property
    def role(self) -> str:
        """The worker's name."""
        return self._role

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self.process.pid

    @property
    def silence(self) -> float:
        """Seconds without a message of the worker, counted only while this process itself was running and reading."""
        return max(self._launcher.looked - self.heard, 0.0)

    @property
    def death(self) -> Death | None:
        """Why the worker ended, once all that it sent was received; None before."""
        end = self.end  # first: the inbox has all that was sent before the end is known
        return None if self.inbox else end

    def send(self, message: object) -> None:
        """Queue a message."""
        self._launcher.send(self, written(message))

    def receive(self) -> list[Any]:
        """The messages that are in."""
        found: list[Any] = []
        while self.inbox:
            found.append(self.inbox.popleft())
        return found

    def dismiss(self) -> None:
        """Close the worker's line."""
        self._launcher.dismiss(self)

    def kill(self, reason: str) -> None:
        """SIGKILL."""
        if self.killed is None:
            self.killed = reason
            self.process.kill()


class Processes:
    """A `Launcher` of spawned processes.

    Args:
        folder: the run's folder, which gets `processes.json` (the running workers), `logs/ROLE.txt` (what they print)
            and `stacks/ROLE.txt` (their stacks, on SIGUSR1). None: nothing is written.
        roster: the running workers; shared with the launchers of the run's other workers.
    """

    address = LOOPBACK

    def __init__(self, folder: Path | None = None, roster: Roster | None = None) -> None:
        self._roster = roster or Roster()
        self._roster.folder = self.folder = folder
        self.looked = time.monotonic()  # when the watching thread had last read all there was
        self._changed = threading.Condition()
        self._links: list[ProcessLink] = []
        self._thread: threading.Thread | None = None
        self._wake: socket.socket | None = None

    def attach(self, folder: Path) -> None:
        """Set the run's folder."""
        self._roster.folder = self.folder = folder

    def launch(self, spec: WorkerSpec) -> ProcessLink:
        """Start a worker.

        Raises:
            StropError: no process can be started.
        """
        folder = None if self.folder is None else self.folder.resolve()
        setup = written(setup_of(spec, folder))  # before the process: settings that cannot be sent leave none behind
        try:
            environment = {**thread_environment(spec), **spec.environment}
            process, end = start_module(WORKER, environment, self._log(spec.role))
        except OSError as error:
            raise StropError(f"{spec.role}: no process can be started: {error.strerror or error}") from error
        link = ProcessLink(self, spec.role, process, end)
        with self._changed:
            self._links.append(link)
            self._queue(link, setup)
            self._roster.add(link.worker)
            if self._thread is None:
                self._wake, woken = socket.socketpair()
                self._wake.setblocking(False)
                self._thread = threading.Thread(target=self._watch, args=(woken,), daemon=True, name="workers")
                self._thread.start()
        self._nudge()
        return link

    def wait(self, links: Sequence[Link], seconds: float) -> None:
        """Sleep until one of the links has a message or a death, at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: any(_has_news(link) for link in links), seconds)

    def close(self) -> None:
        """Do nothing: the watching thread ends with the last worker."""

    def send(self, link: ProcessLink, content: bytes) -> None:
        """Queue a frame for a worker."""
        with self._changed:
            self._queue(link, content)
            unsent = link.hears and link.channel.unsent
        if unsent:
            self._nudge()

    def dismiss(self, link: ProcessLink) -> None:
        """Close our side of a worker's line; what it still sends is received."""
        with self._changed:
            if link.end is None:
                with contextlib.suppress(OSError):  # then it has closed its side, and ends by itself
                    link.channel.socket.shutdown(socket.SHUT_WR)

    # ------------------------------------------------------------------ inside

    def _queue(self, link: ProcessLink, content: bytes) -> None:
        if not link.hears or link.end is not None:
            return
        try:
            link.channel.send(content)
        except OSError:
            link.hears = False  # the watch will say why

    def _nudge(self) -> None:
        """Let the watching thread look at what is to be sent."""
        with self._changed, contextlib.suppress(BlockingIOError):  # then it has been nudged often enough
            if self._wake is not None:
                self._wake.send(b"x")

    def _watch(self, woken: socket.socket) -> None:
        """The thread: until the last worker is gone."""
        with selectors.DefaultSelector() as selector, woken:
            selector.register(woken, selectors.EVENT_READ)
            known: set[ProcessLink] = set()
            while True:
                with self._changed:
                    if not self._links:
                        assert self._wake is not None
                        self._wake.close()
                        self._thread = self._wake = None
                        return
                    self._register(selector, known)
                # After a rest of this process the first look may come back empty although there is much to read.
                for key, events in selector.select(_LOOK_SECONDS) or selector.select(0):
                    if key.fileobj is woken:
                        woken.recv(1 << 12)
                        continue
                    link, what = key.data
                    if what == "process":
                        selector.unregister(key.fileobj)
                        self._reap(link, selector, known)
                    elif link in known:
                        self._serve(link, events, selector, known)
                self.looked = time.monotonic()

    def _register(self, selector: selectors.BaseSelector, known: set[ProcessLink]) -> None:
        for link in self._links:
            if link not in known:
                known.add(link)
                selector.register(link.channel.socket, link.channel.interest, (link, "socket"))
                if link.pidfd is not None:
                    selector.register(link.pidfd, selectors.EVENT_READ, (link, "process"))
            elif link.channel.socket in selector.get_map():
                selector.modify(link.channel.socket, link.channel.interest, (link, "socket"))

    def _serve(self, link: ProcessLink, events: int, selector: selectors.BaseSelector, known: set[ProcessLink]) -> None:
        """Send and receive what can be."""
        if not self._exchange(link, bool(events & selectors.EVENT_READ)):
            selector.unregister(link.channel.socket)
            if link.pidfd is None:  # without the kernel's handle a closed socket is all that tells of a death
                self._reap(link, selector, known)

    def _exchange(self, link: ProcessLink, readable: bool) -> bool:
        """Whether there may be more of the worker."""
        bodies: list[bytes] = []
        is_open = True
        with self._changed:
            try:
                link.channel.flush()
            except OSError:
                link.hears = False
            try:
                for body in link.channel.receive() if readable else ():
                    bodies.append(body)
            except (EOFError, OSError):
                is_open = link.hears = False
        for body in bodies:  # not under the lock: a long message takes a while
            try:
                message = pickle.loads(body)
            except Exception as error:  # whatever it is, it must not end this thread, and nothing after it is heard
                link.kill(f"it sent a message that cannot be read: {type(error).__name__}: {error}")
                return False
            self._take(link, message)
        return is_open

    def _take(self, link: ProcessLink, message: Any) -> None:
        with self._changed:
            link.heard = time.monotonic()
            if isinstance(message, Heartbeat):
                link.stalled = message.stalled
            elif isinstance(message, Failed):
                link.said = message
            else:
                link.inbox.append(message)
                self._changed.notify_all()

    def _reap(self, link: ProcessLink, selector: selectors.BaseSelector, known: set[ProcessLink]) -> None:
        """Take what an ended worker had sent, its exit status, and let go of its files."""
        if link.channel.socket in selector.get_map():
            while self._exchange(link, True) and link.channel.wait(0.0):
                pass
            selector.unregister(link.channel.socket)
        if link.pidfd is None:
            link.process.kill()
        reason = link.process.exit_reason()
        known.discard(link)
        with self._changed:
            link.channel.close()
            link.end = _death(link, reason)
            link.process.close()
            self._links.remove(link)
            self._roster.remove(link.worker)
            self._changed.notify_all()

    def _log(self, role: str) -> IO[bytes]:
        if self.folder is None:
            return tempfile.TemporaryFile()
        path = self.folder / LOGS / f"{role}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+b")


def _death(link: ProcessLink, exit_reason: str) -> Death:
    """Why a worker ended: what it said of it, else why it was killed, else how its process ended."""
    if link.said is not None:
        return Death(link.said.error, link.said.fatal)
    return Death(link.killed or f"it {exit_reason}")


def _has_news(link: Link) -> bool:
    assert isinstance(link, ProcessLink)  # a launcher waits for its own links
    return bool(link.inbox) or link.end is not None
