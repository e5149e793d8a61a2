"""The protocols between the controller and its workers, which are spawned processes or Ray actors.

    launcher = Processes()
    handle = launcher.launch(WorkerSpec("generator-0", "strop.orchestration.generator:main", settings))
    handle.send(message)                     # never blocks
    launcher.wait([handle], seconds=0.1)     # until a message or a death is there
    for message in handle.receive(): ...     # never blocks; in order
    if handle.death is not None: ...         # set only after every message of the worker was received

A worker is a function `main(connection, settings)` named by `module:function`; it runs until the connection closes.
A message is any value that pickle can carry. The handle reads heartbeats and the last message of a failed worker, and
shows them in its properties `silence`, `stalled` and `death`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

CLOSING_SECONDS = 5.0
_LIVELY_SECONDS = 5.0  # heartbeats come every second, also on a machine that does other work


@dataclass(frozen=True)
class WorkerSpec:
    """A worker to launch.

    Attributes:
        role: the worker's name in messages and files (`stacks/ROLE.txt`); unique among the run's living workers.
        entry: `module:function`, called as `function(connection, settings)` in the worker.
        settings: the function's second argument; it is pickled.
        threads: the number of OpenMP threads. They sleep soon after their work is done, so an idle worker uses no core.
        environment: additional environment variables.
        gpus: the number of GPUs that a launcher on a cluster reserves for the worker; it sees no others.
        beside_controller: whether the worker must run on the controller's host.
    """

    role: str
    entry: str
    settings: Any
    threads: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    beside_controller: bool = False


@dataclass(frozen=True)
class Death:
    """Why a worker ended. `fatal`: a replacement would end for the same reason."""

    reason: str
    fatal: bool = False


class ControllerGone(Exception):
    """Raised in a worker when its controller has closed the connection: the normal end of its `main`."""


class ControllerConnection(Protocol):
    """A worker's end. Not thread-safe, except for the heartbeat thread."""

    @property
    def address(self) -> str:
        """Where workers of the same launcher reach this one's host; the loopback device's where all share one."""
        ...

    def send(self, message: object) -> None:
        """Send a message; may wait until the controller reads.

        Raises:
            ControllerGone: the controller has closed the connection.
        """
        ...

    def receive(self, seconds: float) -> list[Any]:
        """The messages that are in, in order; waits up to `seconds` for the first. Counts as progress.

        Raises:
            ControllerGone: the controller has closed the connection.
        """
        ...

    def progress(self) -> None:
        """Count as progress; called now and then during long work, where `receive` is not."""
        ...


class WorkerHandle(Protocol):
    """The controller's end."""

    @property
    def role(self) -> str: ...

    @property
    def pid(self) -> int | None:
        """The worker's process id, where it is known."""
        ...

    def send(self, message: object) -> None:
        """Queue a message and return at once. A message for a dead worker is dropped; `death` says why it died."""
        ...

    def receive(self) -> list[Any]:
        """The messages that are in, in order; does not wait."""
        ...

    @property
    def silence(self) -> float:
        """Seconds since the last message of the worker; heartbeats come every second."""
        ...

    @property
    def stalled(self) -> float:
        """For how many seconds, by its last heartbeat, the worker's work has stood still.

        This counts from the worker's last `receive`, or from its last `progress.made` where that is later.
        """
        ...

    @property
    def death(self) -> Death | None:
        """Why the worker ended; None while it runs, or while messages that it sent before were not received."""
        ...

    def dismiss(self) -> None:
        """Close the connection and return at once; the worker then ends by itself."""
        ...

    def kill(self, reason: str) -> None:
        """Kill the worker at once; `death` will give this reason."""
        ...


class WorkerLauncher(Protocol):
    """Starts workers. Several owners may share a launcher: each ends its handles (`end`)."""

    def attach(self, folder: Path) -> None:
        """Set the run's folder, where the launcher records its workers; before the first launch."""
        ...

    def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Start a worker and return without waiting for it.

        Raises:
            StropError: no worker can be started (no process, no place in the cluster).
        """
        ...

    def wait(self, handles: Sequence[WorkerHandle], seconds: float) -> None:
        """Sleep until one of the handles has a message or a death, at most `seconds`."""
        ...

    def close(self) -> None:
        """Release the launcher's own resources, after its workers have ended; may be called twice."""
        ...


def end(launcher: WorkerLauncher, handles: Sequence[WorkerHandle], seconds: float = CLOSING_SECONDS) -> None:
    """End workers: dismiss them, then kill those that still run after `seconds`."""
    for handle in handles:
        handle.dismiss()
    _await_deaths(launcher, handles, seconds)
    for handle in handles:
        if handle.death is None:
            handle.kill("it did not end when its connection was closed")
    _await_deaths(launcher, handles, seconds)


def _await_deaths(launcher: WorkerLauncher, handles: Sequence[WorkerHandle], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        for handle in handles:
            handle.receive()
        living = [handle for handle in handles if handle.death is None]
        left = deadline - time.monotonic()
        if not living or left <= 0:
            return
        launcher.wait(living, left)


def lively(handle: WorkerHandle) -> bool:
    """Whether the worker's work went on within the last seconds."""
    return max(handle.stalled, handle.silence) < _LIVELY_SECONDS


def overdue(handle: WorkerHandle, silence: float, stalled: float) -> str | None:
    """Why a living worker should be killed, or None.

    `silence` and `stalled` are the longest times allowed, in seconds. A stopped process is silent; a process that hangs
    in its code still sends heartbeats, but stalls.
    """
    if handle.silence > silence:
        return f"it has not answered for {handle.silence:.0f} s"
    if handle.stalled > stalled:
        return f"its work has stood still for {handle.stalled:.0f} s"
    return None
