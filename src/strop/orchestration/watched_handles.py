"""Parts of the launchers of both processes and Ray actors: handles that the launcher's threads fill, and waiting."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strop.orchestration.connection import Death, WorkerHandle
from strop.orchestration.messages import Failed, Heartbeat
from strop.orchestration.process_registry import ProcessRegistry


class WatchedHandle:
    """The receiving half of a `WorkerHandle`. A thread of the launcher fills it under the launcher's lock.

    Attributes:
        role: the worker's name.
        inbox: messages that are in and were not received.
        heard: when the last message came.
        looked: when this process last looked for messages; it does not while it is itself stopped.
        stalled: see `WorkerHandle.stalled`.
        end: why the worker ended; None while it runs.
    """

    def __init__(self, role: str) -> None:
        self.role = role
        self.inbox: deque[Any] = deque()
        self.heard = self.looked = time.monotonic()
        self.stalled = 0.0
        self.end: Death | None = None
        self._failed: Failed | None = None
        self._killed: str | None = None

    @property
    def silence(self) -> float:
        """Seconds without a message of the worker, counted only while this process looked for one."""
        return max(self.looked - self.heard, 0.0)

    @property
    def death(self) -> Death | None:
        """Why the worker ended, once all that it sent was received; None before."""
        end = self.end  # first: the inbox has all that was sent before the end is known
        return None if self.inbox else end

    def receive(self) -> list[Any]:
        """The messages that are in."""
        found: list[Any] = []
        while self.inbox:
            found.append(self.inbox.popleft())
        return found

    def take(self, messages: Sequence[Any]) -> None:
        """Keep messages that have come; heartbeats and the message of a worker that fails are read here."""
        self.heard = self.looked = time.monotonic()
        for message in messages:
            if isinstance(message, Heartbeat):
                self.stalled = message.stalled
            elif isinstance(message, Failed):
                self._failed = message
            else:
                self.inbox.append(message)

    def killed(self, reason: str) -> bool:
        """Note why the worker is killed; whether this is the first reason given."""
        first = self._killed is None
        self._killed = self._killed or reason
        return first

    def finish(self, exit_reason: str) -> None:
        """Note that the worker ended: for the reason that it gave, else that of `killed`, else `exit_reason`."""
        if self._failed is not None:
            self.end = Death(self._failed.error, self._failed.fatal)
        else:
            self.end = Death(self._killed or exit_reason)


class WatchingLauncher:
    """The half of a `Launcher` that is the same whatever runs the workers.

    Args:
        registry: the running workers; shared with the launchers of the run's other workers.
    """

    def __init__(self, registry: ProcessRegistry | None) -> None:
        self._registry = registry or ProcessRegistry()
        self._changed = threading.Condition()

    def attach(self, folder: Path) -> None:
        """Set the run's folder."""
        self._registry.folder = folder

    def wait(self, handles: Sequence[WorkerHandle], seconds: float) -> None:
        """Sleep until one of the handles has a message or a death, at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: any(map(_has_news, handles)), seconds)


def _has_news(handle: WorkerHandle) -> bool:
    assert isinstance(handle, WatchedHandle)  # a launcher waits for its own handles
    return bool(handle.inbox) or handle.end is not None
