"""Runs of an ablation as child processes of this machine: started, asked to stop, ended with their parent."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from strop.base.child_process import start_module
from strop.base.files import writing
from strop.base.framing import Channel
from strop.base.threads import thread_environment
from strop.lab.ablation.runner import Ended, RunJob


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
    """A run in a child process (`run_process.py`).

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
        self._child, end = start_module("strop.lab.ablation.run_process", environment, log)
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
