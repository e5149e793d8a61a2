"""Runs of an ablation on the nodes of a Ray cluster, which must share the file system.

Each run has an actor, which reserves its cores and GPUs, waits in Ray's queue for them, and makes the run in a
subprocess as on one machine. Ray never restarts it: a run that is lost goes on from its checkpoint, as the scheduler
decides.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any, NamedTuple

from strop.base.imports import require
from strop.base.types import InputError, StropError
from strop.lab.ablation.manifest import FILE
from strop.lab.ablation.runners import Ended, RunJob, RunProcess
from strop.orchestration.ray_workers import RayWorkers
from strop.orchestration.settings import RaySettings
from strop_verify.child_process import import_path, thread_environment

INTERVAL = 0.2
SHARED = ("STROP_CACHE", "XDG_CACHE_HOME", "HF_HOME")  # of the environment, what a node of a running cluster lacks


class Needs(NamedTuple):
    """The cores and GPUs that each run reserves on one node."""

    cpus: float = 1.0
    gpus: int = 0


class RayRunner:
    """A `Runner` on the cluster at `address`, else RAY_ADDRESS, else one of this machine with room for `jobs`.

    Args:
        needs: what each run reserves.
        patience: seconds after which a run is refused that no node of the cluster could ever hold.

    Raises:
        InputError: ray is not installed.
        StropError: no cluster is reached.
    """

    def __init__(self, address: str | None, jobs: int, needs: Needs, patience: float = 120.0) -> None:
        self._cluster = RayWorkers(RaySettings(address=address, cpus=needs.cpus), math.ceil(jobs * needs.cpus))
        self._cluster.connect()
        self._ray = require("ray", extra="ray", purpose="Ray clusters")
        self._needs = needs
        self._patience = patience

    def start(self, job: RunJob, slot: int) -> RayRun:
        """Queue a run."""
        environment = {name: os.environ[name] for name in SHARED if name in os.environ}
        environment |= thread_environment(max(1, int(self._needs.cpus))) | {"PYTHONPATH": import_path()}
        options = self._ray.remote(RunActor).options(
            num_cpus=self._needs.cpus, num_gpus=self._needs.gpus, max_restarts=0, max_task_retries=0,
            max_concurrency=2, runtime_env={"env_vars": environment},
        )  # fmt: skip
        return RayRun(self._ray, options.remote(), job, self._needs, time.monotonic() + self._patience)

    def close(self) -> None:
        """Leave the cluster."""
        self._cluster.close()


class RayRun:
    """A `Running` over an actor."""

    def __init__(self, ray: Any, actor: Any, job: RunJob, needs: Needs, deadline: float) -> None:
        self._ray = ray
        self._actor = actor
        self._needs = needs
        self._deadline = deadline
        self._placed = actor.ready.remote()
        self._result = actor.run.remote(job)
        self._stopping = False

    def poll(self) -> Ended | None:
        """How it ended; None while it runs, or waits for room in the cluster.

        Raises:
            StropError: no node could ever hold it.
        """
        exceptions = self._ray.exceptions
        if not self._is_done(self._placed):
            self._refuse_impossible()
            return Ended("stopped", "stopped before there was room for it") if self._stopping else None
        if not self._is_done(self._result):
            return None
        try:
            ended: Ended = self._ray.get(self._result)
        except exceptions.RayTaskError as error:
            return Ended("failed", str(error.cause).splitlines()[0])
        except exceptions.RayError as error:  # its process or its node has died
            return Ended("lost", " ".join(str(error).split())[:300])
        return ended

    def stop(self) -> None:
        """Ask it to stop."""
        if not self._stopping:
            self._stopping = True
            self._actor.stop.remote()

    def close(self) -> None:
        """End the actor, and its run with it."""
        self._ray.kill(self._actor)

    def _is_done(self, reference: Any) -> bool:
        return bool(self._ray.wait([reference], timeout=0)[0])

    def _refuse_impossible(self) -> None:
        wanted = {"CPU": self._needs.cpus, "GPU": float(self._needs.gpus)}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(kind, 0.0) >= count for kind, count in wanted.items()) for node in nodes):
            return
        if time.monotonic() > self._deadline:
            asked = " and ".join(f"{count:g} {kind}" for kind, count in wanted.items() if count)
            most = " and ".join(f"{max(node.get(kind, 0.0) for node in nodes):g} {kind}" for kind in wanted)
            raise StropError(
                f"a run asks for {asked} on one node (--cpus and --gpus), and no node of the Ray cluster has more than "
                f"{most}; lower them, or add nodes"
            )


class RunActor:
    """The actor that Ray starts on a node: one run in a subprocess."""

    def __init__(self) -> None:
        self._stopping = False

    def ready(self) -> None:
        """Answer as soon as the actor has its place."""

    def stop(self) -> None:
        """Have the run save its last finished step and end."""
        self._stopping = True

    def run(self, job: RunJob) -> Ended:
        """Make the run, until it ends or is asked to stop.

        Raises:
            InputError: this node does not see the ablation's folder.
        """
        out = job.log.parent.parent
        if not (out / FILE).is_file():
            raise InputError(f"{os.uname().nodename} does not see {out}; put it where all nodes do, with --out")
        process = RunProcess(job, {})
        try:
            while (ended := process.poll()) is None:
                if self._stopping:
                    process.stop()
                time.sleep(INTERVAL)
            return ended
        finally:
            process.close()
