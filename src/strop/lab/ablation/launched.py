"""Runs in workers that a launcher starts, such as actors on the nodes of a Ray cluster.

A worker makes its run in a subprocess beside it, the same as on this machine; what the two say to each other is when to
stop, and how it ended. Folder and metrics are read from the file system, which every node must share.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from strop.base.types import InputError, StropError
from strop.lab.ablation.manifest import FILE
from strop.lab.ablation.processes import Process
from strop.lab.ablation.running import Ended, Job, Outcome, Steps
from strop.orchestration.connection import Launcher, Line, Link, WorkerSpec, end, overdue

ENTRY = "strop.lab.ablation.launched:main"
SILENCE = 60.0  # seconds without a word after which a worker is given up
INTERVAL = 0.2
SHARED = ("STROP_CACHE", "XDG_CACHE_HOME", "HF_HOME")  # of the environment, what a node of a running cluster lacks


@dataclass(frozen=True)
class Stop:
    """Save the last finished step and end."""


@dataclass(frozen=True)
class Needs:
    """What each run reserves."""

    cpus: float = 1.0
    gpus: int = 0


def ray_place(address: str | None, jobs: int, needs: Needs, placement_seconds: float = 120.0) -> Launched:
    """Runs as actors of the Ray cluster at `address`, else RAY_ADDRESS, else one of this machine with room for `jobs`.

    Raises:
        InputError: ray is not installed.
        StropError: no cluster is reached.
    """
    from strop.orchestration.ray_workers import RayWorkers
    from strop.orchestration.settings import RaySettings

    settings = RaySettings(address=address, cpus=needs.cpus, placement_seconds=placement_seconds)
    launcher = RayWorkers(settings, math.ceil(jobs * needs.cpus))
    launcher.connect()
    return Launched(launcher, needs)


class Launched:
    """A `Place` over a launcher. Launching, which may wait for room, has a thread of its own."""

    def __init__(self, launcher: Launcher, needs: Needs) -> None:
        self._launcher = launcher
        self._needs = needs
        self._wanted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._launch, daemon=True, name="launching runs").start()

    def start(self, job: Job, slot: int) -> LaunchedRun:
        """Begin a run, once there is room for it."""
        environment = {name: os.environ[name] for name in SHARED if name in os.environ}
        threads = max(1, int(self._needs.cpus))
        spec = WorkerSpec(f"{job.label} ({slot})", ENTRY, job, threads, environment, self._needs.gpus)
        run = LaunchedRun(self._launcher, spec, job)
        self._wanted.put(run.launch)
        return run

    def close(self) -> None:
        """Leave the cluster."""
        self._wanted.put(None)
        self._launcher.close()

    def _launch(self) -> None:
        while (launch := self._wanted.get()) is not None:
            launch()


class LaunchedRun:
    """A `Running` over a link."""

    def __init__(self, launcher: Launcher, spec: WorkerSpec, job: Job) -> None:
        self.steps = Steps(job.folder / "metrics.jsonl")
        self.steps.look()
        self.log = job.log
        self._launcher = launcher
        self._spec = spec
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._refused: str | None = None
        self._asked = self._told = self._closed = False
        self._begun = time.monotonic()

    def launch(self) -> None:
        """Start the worker; for the launching thread."""
        if self._asked or self._closed:
            self._refused = "stopped before there was room for it"
            return
        try:
            link = self._launcher.launch(self._spec)
        except StropError as error:
            self._refused = f"{error} (here: --cpus and --gpus)"
            return
        except Exception as error:  # whatever the cluster does: the run must not be waited for without an end
            self._refused = f"{type(error).__name__}: {error}".splitlines()[0]
            return
        if not self._keep(link):
            end(self._launcher, [link], 0.0)

    def _keep(self, link: Link) -> bool:
        """Whether the worker is still wanted; while it started, the run may have been closed."""
        with self._lock:
            self._link = None if self._closed else link
            return not self._closed

    def poll(self) -> Ended | None:
        """How it ended."""
        if self._refused is not None:
            return self._ended("stopped" if self._asked else "unplaced", self._refused)
        link = self._link
        if link is None:
            return self._ended("stopped", None) if self._asked else None
        if self._asked and not self._told:
            self._told = True
            link.send(Stop())
        late = overdue(link, SILENCE, math.inf)
        if late is not None:
            link.kill(late)
        for message in link.receive():
            assert isinstance(message, Ended)
            return message
        if link.death is None:
            return None
        return self._ended("failed" if link.death.fatal else "lost", link.death.reason)

    def ask(self) -> None:
        """Ask it to stop."""
        self._asked = True

    def close(self) -> None:
        """End the worker, and its run with it."""
        with self._lock:
            self._closed = True
            link, self._link = self._link, None
        if link is not None:
            end(self._launcher, [link])

    def _ended(self, outcome: Outcome, error: str | None) -> Ended:
        return Ended(outcome, error, time.monotonic() - self._begun)


def main(line: Line, job: Job) -> None:
    """The worker: make the run in a child process until it ends or the controller closes the connection.

    Raises:
        InputError: this node does not see the ablation's folder.
    """
    out = job.log.parent.parent
    if not (out / FILE).is_file():
        raise InputError(f"{os.uname().nodename} does not see {out}; put it where all nodes do, with --out")
    process = Process(job, {})
    try:
        while (ended := process.poll()) is None:
            for message in line.receive(INTERVAL):
                assert isinstance(message, Stop)
                process.ask()
        line.send(ended)
    finally:
        process.close()
