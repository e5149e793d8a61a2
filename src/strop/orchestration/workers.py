"""Workers: how the controller starts them, talks to them, watches them and replaces them.

    team = Team(Processes(), [WorkerSpec("generator-0", "strop.orchestration.fleet:main", settings)], Supervision())
    team.start(folder)
    team.handles[0].send(message)               # never blocks
    team.wait(seconds=0.1)                      # until a message or a death is there
    for message in team.handles[0].receive(): ...
    if team.check(0) is not None:               # it died, or was killed because it hung
        team.replace(0)

A worker is a function `main(connection, settings)` named by `module:function`; it runs until the connection closes.
Workers are spawned processes (`processes`) or Ray actors (`ray_workers`). A message is any value that pickle can carry.
The handle reads heartbeats and the last message of a failed worker itself.
"""

from __future__ import annotations

import importlib
import pickle
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from strop.base import progress
from strop.base.imports import command
from strop.base.session import Code, accept, carried
from strop.base.types import StropError
from strop.engines.protocol import EngineLost
from strop.orchestration.messages import Failed, Heartbeat, Ready
from strop.orchestration.process_registry import ProcessRegistry, register_dump, stacks_path
from strop_verify.child_process import thread_environment

CLOSING_SECONDS = 5.0
HEARTBEAT_SECONDS = 1.0
LOGS = "logs"
LOOPBACK = "127.0.0.1"
_LIVELY_SECONDS = 5.0  # heartbeats come every second, also on a busy machine


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
        team: its place among workers of one node, which are launched in a row, and how many they are.
    """

    role: str
    entry: str
    settings: Any
    threads: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    beside_controller: bool = False
    team: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Death:
    """Why a worker ended. `fatal`: a replacement would end so too. `early`: it failed before it sent `Ready`."""

    reason: str
    fatal: bool = False
    early: bool = False


# ---------------------------------------------------------------------- the worker's side


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


@dataclass(frozen=True)
class WorkerSetup:
    """The first message to a worker: what to run.

    Attributes:
        spec: the worker, its settings pickled: they may be made of the user's own code.
        path: the controller's import path.
        code: the user's own code that the settings need.
        folder: the run's folder, where it is known.
    """

    spec: WorkerSpec
    path: tuple[str, ...]
    code: Code
    folder: Path | None

    @classmethod
    def of(cls, spec: WorkerSpec, folder: Path | None) -> WorkerSetup:
        """The first message to the worker of `spec`.

        Raises:
            InputError: something of the script or notebook in the settings cannot be carried.
        """
        settings = written(spec.settings)
        code = carried(settings.decode("latin-1"))
        folder = None if folder is None else folder.resolve()
        return cls(replace(spec, settings=settings), tuple(sys.path), code, folder)

    def run(self, connection: ControllerConnection) -> None:
        """Run the worker to its end: with the controller's import path, the user's code, and a file for its stacks.

        Raises:
            Exception: whatever the worker's entry raises.
        """
        sys.path[:] = self.path
        accept(self.code)
        if self.folder is not None:
            register_dump(stacks_path(self.folder, self.spec.role))
        module, _, function = self.spec.entry.partition(":")
        entry = vars(importlib.import_module(module))[function]
        entry(connection, pickle.loads(self.spec.settings))


def written(message: object) -> bytes:
    """A message as it is sent: pickled. Both ends are processes of this run and of the same user."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def environment_of(spec: WorkerSpec) -> dict[str, str]:
    """A worker's environment variables in addition to the controller's."""
    return {**thread_environment(spec.threads), **spec.environment}


def standing_since(came_round: float) -> float:
    """Seconds for which this worker's work has stood still: since its loop last went round, at time `came_round`.

    What this process has made since (`progress.made`, such as a micro-batch of a long update) counts as well.
    """
    return min(time.monotonic() - came_round, progress.CURRENT.age)


def last_words(error: BaseException) -> Failed:
    """The message of a worker that an exception ends.

    It is fatal for a `StropError`, which another worker would raise too, except for an `EngineLost`.
    """
    said = str(error) if isinstance(error, StropError) else f"{type(error).__name__}: {error}"
    comes_again = isinstance(error, StropError) and not isinstance(error, EngineLost)
    return Failed(said, comes_again)


# ---------------------------------------------------------------------- the controller's side


class WorkerHandle(ABC):
    """The controller's end of a worker. A thread of the launcher fills it under the launcher's lock.

    Attributes:
        role: the worker's name.
        inbox: messages that are in and were not received.
        heard: when the last message came.
        looked: when this process last looked for messages; it does not while it is itself stopped.
        stalled: for how many seconds, by its last heartbeat, the worker's work has stood still: since its last
            `receive`, or its last `progress.made` where that is later.
        end: why the worker ended; None while it runs.
        ready: it has sent `Ready`.
    """

    def __init__(self, role: str) -> None:
        self.role = role
        self.inbox: deque[Any] = deque()
        self.heard = self.looked = time.monotonic()
        self.stalled = 0.0
        self.end: Death | None = None
        self.ready = False
        self._failed: Failed | None = None
        self._killed: str | None = None

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The worker's process id, where it is known."""

    @abstractmethod
    def send(self, message: object) -> None:
        """Queue a message and return at once. A message for a dead worker is dropped; `death` says why it died."""

    @abstractmethod
    def dismiss(self) -> None:
        """Close the connection and return at once; the worker then ends by itself."""

    @abstractmethod
    def kill(self, reason: str) -> None:
        """Kill the worker at once; `death` will give this reason."""

    def receive(self) -> list[Any]:
        """The messages that are in, in order; does not wait."""
        found: list[Any] = []
        while self.inbox:
            found.append(self.inbox.popleft())
        return found

    @property
    def silence(self) -> float:
        """Seconds without a message of the worker, counted only while this process looked for one."""
        return max(self.looked - self.heard, 0.0)

    @property
    def lively(self) -> bool:
        """Whether the worker's work went on within the last seconds."""
        return max(self.stalled, self.silence) < _LIVELY_SECONDS

    @property
    def death(self) -> Death | None:
        """Why the worker ended; None while it runs, or while messages that it sent before were not received."""
        end = self.end  # first: the inbox has all that was sent before the end is known
        return None if self.inbox else end

    # ------------------------------------------------------------------ for the launcher

    def take(self, messages: Sequence[Any]) -> None:
        """Keep messages that have come; heartbeats and the message of a worker that fails are read here."""
        self.heard = self.looked = time.monotonic()
        for message in messages:
            if isinstance(message, Heartbeat):
                self.stalled = message.stalled
            elif isinstance(message, Failed):
                self._failed = message
            else:
                self.ready = self.ready or isinstance(message, Ready)
                self.inbox.append(message)

    def killed(self, reason: str) -> bool:
        """Note why the worker is killed; whether this is the first reason given."""
        first = self._killed is None
        self._killed = self._killed or reason
        return first

    def finish(self, exit_reason: str) -> None:
        """Note that the worker ended: for the reason that it gave, else that of `killed`, else `exit_reason`."""
        if self._failed is not None:
            self.end = Death(self._failed.error, self._failed.fatal, early=not self.ready)
        else:
            self.end = Death(self._killed or exit_reason)


class WorkerLauncher(ABC):
    """Starts workers. Several owners may share a launcher: each ends its own handles (`end`).

    Args:
        registry: the running workers; shared with the launchers of the run's other workers.
    """

    def __init__(self, registry: ProcessRegistry | None = None) -> None:
        self._registry = registry or ProcessRegistry()
        self._changed = threading.Condition()

    @property
    def folder(self) -> Path | None:
        """The run's folder, once it is known: workers are recorded there."""
        return self._registry.folder

    def attach(self, folder: Path) -> None:
        """Set the run's folder, before the first launch."""
        self._registry.folder = folder

    @abstractmethod
    def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Start a worker and return without waiting for it.

        Raises:
            StropError: no worker can be started (no process, no place in the cluster).
        """

    def wait(self, handles: Sequence[WorkerHandle], seconds: float) -> None:
        """Sleep until one of the handles has a message or a death, at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: any(handle.inbox or handle.end for handle in handles), seconds)

    def close(self) -> None:  # noqa: B027 (a launcher without resources has nothing to release)
        """Release the launcher's own resources, after its workers have ended; may be called twice."""


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


# ---------------------------------------------------------------------- supervision


@dataclass(frozen=True)
class Supervision:
    """When a worker is killed, and how many deaths its team survives.

    Attributes:
        silence: seconds without a sign of life after which a worker is killed.
        stall: seconds without progress of a living worker's own loop after which it is killed: beyond the longest step
            of an engine, and beyond the loading of a model.
        restarts: how many deaths a team survives.
    """

    silence: float = 60.0
    stall: float = 900.0
    restarts: int = 10

    def overdue(self, handle: WorkerHandle) -> str | None:
        """Why a living worker should be killed, or None.

        A stopped process is silent; a process that hangs in its code still sends heartbeats, but stalls.
        """
        if handle.silence > self.silence:
            return f"it has not answered for {handle.silence:.0f} s"
        if handle.stalled > self.stall:
            return f"its work has stood still for {handle.stalled:.0f} s"
        return None


class Team:
    """Workers of one owner: watched, killed where they hang, and replaced by others of the same spec.

    Args:
        launcher: starts the workers.
        specs: one for each.
        supervision: when a worker is killed, and how many deaths are survived.

    Attributes:
        handles: the present workers, in the order of `specs`.
    """

    def __init__(self, launcher: WorkerLauncher, specs: Sequence[WorkerSpec], supervision: Supervision) -> None:
        self._launcher = launcher
        self._specs = specs
        self._supervision = supervision
        self._folder = Path()
        self._deaths = 0
        self._came_up: set[int] = set()  # places whose worker has been ready before
        self.handles: list[WorkerHandle] = []

    def start(self, folder: Path | None = None) -> None:
        """Launch the workers of the run in `folder`."""
        if folder is not None:
            self._launcher.attach(folder)
            self._folder = folder
        for spec in self._specs:  # one by one: `close` ends those that were launched
            self.handles.append(self._launcher.launch(spec))

    def wait(self, seconds: float, handles: Sequence[WorkerHandle] | None = None) -> None:
        """Sleep until a worker (of `handles`, where given) has a message or a death, at most `seconds`."""
        self._launcher.wait(self.handles if handles is None else handles, seconds)

    def check(self, number: int, busy: bool) -> Death | None:
        """The death of a worker, if it is dead. One that hangs is killed; a `busy` and lively one progresses."""
        handle = self.handles[number]
        if handle.death is not None:
            return handle.death
        reason = self._supervision.overdue(handle)
        if reason is not None:
            handle.kill(reason)
        elif busy and handle.lively:
            progress.made(f"work of {handle.role}")  # its loop went round with work, so something was made
        return None

    def replace(self, number: int) -> Death:
        """Start another worker in the place of a dead one; the death of that one.

        One that fails before any in its place was ready is not replaced: that is a matter of settings.

        Raises:
            StropError: another worker would meet the same end, it is one death too many, or none can be started.
        """
        role, death = self.handles[number].role, self.handles[number].death
        assert death is not None
        self._deaths += 1
        if self.handles[number].ready:
            self._came_up.add(number)
        if death.fatal or (death.early and number not in self._came_up):
            raise StropError(f"{role}: {death.reason}")
        if self._deaths > self._supervision.restarts:
            raise StropError(
                f"{role} died: {death.reason}. orchestration.restarts={self._supervision.restarts} allows no more "
                f"deaths; see its log in {self._folder / LOGS}, then go on with: "
                f"{command('train --resume', self._folder)}"
            )
        self.handles[number] = self._launcher.launch(self._specs[number])
        return death

    def await_deaths(self, seconds: float) -> None:
        """Wait until all workers are dead, at most `seconds`; what they still say is dropped."""
        _await_deaths(self._launcher, self.handles, seconds)

    def close(self, kill: str | None = None) -> None:
        """End the workers, at once where a reason to `kill` them is given; may be called twice."""
        for handle in self.handles:
            if kill is not None and handle.death is None:
                handle.kill(kill)
        end(self._launcher, self.handles)
