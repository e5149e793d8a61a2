"""Workers as spawned processes: one socket each, watched by a thread that hears of a death at once.

A worker is another interpreter (never a fork of this one, which has threads) in a session of its own, so that a Ctrl-C
at the terminal is the controller's alone. The watching thread reads what comes in and waits on the kernel's handle of
every process (pidfd): a death is known within milliseconds, also while the trainer computes, and no worker ever waits
for a controller that is busy. One connection each: a worker that is killed while it sends cuts its own message short,
and nobody else's.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from strop.base.types import StropError
from strop.orchestration.connection import Death, Link, WorkerSpec
from strop.orchestration.messages import Failed, Heartbeat
from strop.orchestration.process_registry import Roster, Worker
from strop.orchestration.worker_process import setup_of, thread_environment, written
from strop.verifiers.wire import Channel

LOGS = "logs"
_LONGEST_REASON = 300
_LOOK_SECONDS = 0.5

WORKER = "strop.orchestration.worker_process"


class ProcessLink:
    """A `Link` to a spawned process. Its fields are the launcher's to change, under the launcher's lock."""

    def __init__(
        self, launcher: Processes, role: str, process: subprocess.Popen[bytes], end: socket.socket, log: IO[bytes]
    ) -> None:
        self._launcher = launcher
        self._role = role
        self.process = process
        self.worker = Worker.of(role, process.pid)
        self.channel = Channel(end)
        self.pidfd = _handle(process.pid)
        self.inbox: deque[Any] = deque()
        self.heard = time.monotonic()
        self.said: Failed | None = None
        self.killed: str | None = None
        self.end: Death | None = None
        self.hears = True  # its end of the socket is open
        self.log = log
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
        """Seconds without a word of the worker while somebody listened, which a process at rest does not."""
        return max(self._launcher.looked - self.heard, 0.0)

    @property
    def death(self) -> Death | None:
        """Why the worker is no more, once all it sent was received."""
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
        folder: the run's folder, which gets `processes.json` (who lives), `logs/ROLE.txt` (what they print) and
            `stacks/ROLE.txt` (their stacks, on SIGUSR1). None: none of these.
        roster: who lives; shared with the launchers of the run's other workers.
    """

    def __init__(self, folder: Path | None = None, roster: Roster | None = None) -> None:
        self._roster = roster or Roster()
        self._roster.folder = self.folder = folder
        self.looked = time.monotonic()  # when the watching thread had last read all there was
        self._changed = threading.Condition()
        self._links: list[ProcessLink] = []
        self._thread: threading.Thread | None = None
        self._wake: socket.socket | None = None

    def attach(self, folder: Path) -> None:
        """The run's folder."""
        self._roster.folder = self.folder = folder

    def launch(self, spec: WorkerSpec) -> ProcessLink:
        """Start a worker.

        Raises:
            StropError: no process can be started.
        """
        folder = None if self.folder is None else self.folder.resolve()
        setup = written(setup_of(spec, folder))  # before the process: settings that cannot be sent leave none behind
        path = {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        with contextlib.ExitStack() as opened:
            try:
                log = opened.enter_context(self._log(spec.role))
                ours, theirs = map(opened.enter_context, socket.socketpair())
                process = subprocess.Popen(
                    [sys.executable, "-m", WORKER, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env={**os.environ, **thread_environment(spec), **path, **spec.environment},
                )
            except OSError as error:
                raise StropError(f"{spec.role}: no process can be started: {error.strerror or error}") from error
            theirs.close()
            link = ProcessLink(self, spec.role, process, ours, log)
            opened.pop_all()  # the link's from now on
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
        """Sleep until one of the links has a message or a death to tell, at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: any(_has_news(link) for link in links), seconds)

    def close(self) -> None:
        """Nothing: the watching thread ends with the last worker."""

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
            link.channel.send(0, content)
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
                        self._bury(link, selector, known)
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
                self._bury(link, selector, known)

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
                for _, body in link.channel.receive() if readable else ():
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

    def _bury(self, link: ProcessLink, selector: selectors.BaseSelector, known: set[ProcessLink]) -> None:
        """The worker has ended: take what it had sent, and say why."""
        if link.channel.socket in selector.get_map():
            while self._exchange(link, True) and _readable(link.channel.socket):
                pass
            selector.unregister(link.channel.socket)
        if link.pidfd is None:
            link.process.kill()
        status = link.process.wait()
        known.discard(link)
        with self._changed:
            link.channel.close()
            if link.pidfd is not None:
                os.close(link.pidfd)
            link.end = self._obituary(link, status)
            link.log.close()
            self._links.remove(link)
            self._roster.remove(link.worker)
            self._changed.notify_all()

    def _obituary(self, link: ProcessLink, status: int) -> Death:
        if link.said is not None:
            return Death(link.said.error, link.said.fatal)
        if link.killed is not None:
            return Death(link.killed)
        how = f"it was ended by {signal.Signals(-status).name}" if status < 0 else f"it ended with status {status}"
        link.log.seek(0, os.SEEK_END)
        link.log.seek(max(link.log.tell() - 4096, 0))
        lines = link.log.read().decode(errors="replace").strip().splitlines()
        return Death(f"{how} ({lines[-1][:_LONGEST_REASON]})" if lines and status > 0 else how)

    def _log(self, role: str) -> IO[bytes]:
        if self.folder is None:
            return tempfile.TemporaryFile()
        path = self.folder / LOGS / f"{role}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+b")


def _handle(pid: int) -> int | None:
    """The kernel's handle of a child, readable once it has ended; None where there are no such things."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _has_news(link: Link) -> bool:
    assert isinstance(link, ProcessLink)  # a launcher waits for its own links
    return bool(link.inbox) or link.end is not None


def _readable(end: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(end, selectors.EVENT_READ)
        return bool(selector.select(0))
