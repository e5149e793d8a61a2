"""Runs of an ablation as child processes of this machine: started, asked to stop, ended with their parent."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from strop.base.files import writing
from strop.base.imports import require
from strop.base.plain_view import PlainView
from strop.base.types import InputError, StropError
from strop.lab.ablation.manifest import FILE
from strop.orchestration.ray_workers import RayWorkers
from strop.orchestration.settings import RaySettings
from strop_verify.child_process import connect_to_parent, import_path, start_module, thread_environment
from strop_verify.framing import Channel

Outcome = Literal["finished", "failed", "stopped", "lost"]


class RunJob(NamedTuple):
    """A run to make: its name, its folder, its configuration as plain data, and where what it says is written."""

    label: str
    folder: Path
    config: Mapping[str, Any]
    log: Path
    imports: Sequence[str] = ()


class Ended(NamedTuple):
    """How a job ended.

    Attributes:
        outcome: `stopped`: it was asked to, and can go on; `lost`: what it ran on is gone, it can go on elsewhere.
        error: one line; None where all went well.
    """

    outcome: Outcome
    error: str | None = None


class Running(Protocol):
    """A job under way."""

    def poll(self) -> Ended | None:
        """How it ended; None while it runs, or waits for room to run.

        Raises:
            StropError: it can never run here.
        """
        ...

    def stop(self) -> None:
        """Ask it to save its last finished step and end; may be called again."""
        ...

    def close(self) -> None:
        """End it at once where it still runs, and let go of what it holds."""
        ...


class Runner(Protocol):
    """Starts runs."""

    def start(self, job: RunJob, slot: int) -> Running:
        """Begin a job, in place `slot` of those side by side (from 0), and return without waiting for it."""
        ...

    def close(self) -> None:
        """Let go of the runner; its jobs are closed before."""
        ...


class LocalRunner:
    """Child processes, each with its share of the cores, and where there are several GPUs one of them.

    Args:
        jobs: how many run side by side.
    """

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs

    def start(self, job: RunJob, slot: int) -> RunProcess:
        """Begin a run."""
        return RunProcess(job, environment(slot, self._jobs))

    def close(self) -> None:
        """There is nothing to let go of."""


class RunProcess:
    """A run in a child process.

    Args:
        job: what to run; what it prints is appended to its log.
        environment: variables besides those of this process.
    """

    def __init__(self, job: RunJob, environment: Mapping[str, str]) -> None:
        self._job = job
        self._stopping = False
        with writing(job.log):
            job.log.parent.mkdir(parents=True, exist_ok=True)
            log = job.log.open("a+b")
        self._child, end = start_module("strop.lab.ablation.runners", environment, log)
        self._channel = Channel(end)
        work = {"folder": str(job.folder), "config": dict(job.config), "imports": list(job.imports)}
        with contextlib.suppress(OSError):  # it died at once; `poll` says how
            self._channel.send_all(json.dumps(work).encode())

    def poll(self) -> Ended | None:
        """How it ended; None while it runs."""
        status = self._child.status
        if status is None:
            return None
        answer = self._answer()
        error = answer["error"] if answer else f"it {self._child.exit_reason()}; see {self._job.log}"
        if self._stopping and status != 0:
            return Ended("stopped", error)
        return Ended("finished" if error is None else "failed", error)

    def stop(self) -> None:
        """Ask it to save its last finished step and end."""
        if not self._stopping and self._child.status is None:
            self._stopping = True
            self._child.terminate()

    def close(self) -> None:
        """End it at once where it still runs, and let go of its files."""
        self._child.end()
        self._child.close()
        self._channel.close()

    def _answer(self) -> dict[str, Any] | None:
        """The answer of a run that has ended; None where it was killed before."""
        with contextlib.suppress(EOFError):
            for message in self._channel.receive():
                answer: dict[str, Any] = json.loads(message)
                return answer
        return None


def environment(slot: int, jobs: int) -> dict[str, str]:
    """The cores, and where there are several the GPU, of the run in place `slot` of `jobs` side by side."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = os.environ.get("OMP_NUM_THREADS", "")
    most = min(cores, int(given)) if given.isdecimal() and int(given) > 0 else cores
    found = thread_environment(max(1, min(most, cores // jobs)))
    gpus = _gpus()
    if jobs > 1 and len(gpus) > 1:
        found["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return found


def _gpus() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def main() -> int:
    """Do the job and return the exit code."""
    channel = Channel(connect_to_parent())
    job: dict[str, Any] = json.loads(channel.next())
    error, code = None, 0
    try:
        _run(Path(job["folder"]), job["config"], job["imports"])
    except StropError as problem:
        error, code = str(problem), problem.exit_code
    except KeyboardInterrupt:
        error, code = "stopped at once", 130
    except Exception as problem:  # whatever a variant does wrong is recorded, and the other variants go on
        traceback.print_exc()
        error, code = f"{type(problem).__name__}: {problem}".splitlines()[0], 1
    if error is not None:
        sys.stderr.write(f"{error}\n")
    channel.send_all(json.dumps({"error": error}).encode())
    return code


def _run(folder: Path, data: dict[str, Any], imports: list[str]) -> None:
    from strop.base.imports import allow_module, allow_settings, code_settings
    from strop.config.parse import parse
    from strop.run.folder import RunFolder, is_run
    from strop.run.run import resume, train

    for module in imports:
        allow_module(module)
    config = parse(data, str(folder), to_run=False)  # what was allowed is the business of the process that asks
    allow_settings(key for key, *_ in code_settings(data))
    view = PlainView(sys.stderr)
    try:
        if not is_run(folder):
            train(config, folder, view)
            return
        kept = RunFolder.open(folder)
        if parse(kept.read_json("config.json"), str(kept.config_path), to_run=False) != config:
            raise InputError(f"{kept.config_path} is not that of the ablation; remove {folder} to run it again")
        resume(folder, view)
    finally:
        view.close()



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


if __name__ == "__main__":
    sys.exit(main())
