"""Runs of an ablation as subprocesses of this machine: started, asked to stop, ended with their parent."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from strop.base.files import writing
from strop.lab.ablation.runner import Ended, Job

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class LocalRunner:
    """Subprocesses, each with its share of the cores, and where there are several GPUs one of them.

    Args:
        jobs: how many run side by side.
    """

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs

    def start(self, job: Job, slot: int) -> RunProcess:
        """Begin a run."""
        return RunProcess(job, environment(slot, self._jobs))

    def close(self) -> None:
        """There is nothing to let go of."""


class RunProcess:
    """A subprocess that makes a run (`run_process.py`).

    Args:
        job: what it does; its log is appended to.
        environment: on top of this process's own.
    """

    def __init__(self, job: Job, environment: Mapping[str, str]) -> None:
        self._job = job
        self._stopping = False
        with writing(job.log):
            job.log.parent.mkdir(parents=True, exist_ok=True)
            self._log = job.log.open("ab")
        # A session of its own: a Ctrl-C on the terminal reaches the parent alone, which asks every child once.
        self._child = subprocess.Popen(
            [sys.executable, "-m", "strop.lab.ablation.run_process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        work = {"folder": str(job.folder), "config": dict(job.config), "imports": list(job.imports)}
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once; `poll` says how
            self._child.stdin.write(json.dumps(work).encode() + b"\n")
            self._child.stdin.flush()

    def poll(self) -> Ended | None:
        """How it ended; None while it runs."""
        code = self._child.poll()
        if code is None:
            return None
        error = self._error(f"ended {_by(code)}; see {self._job.log}")
        if self._stopping and code != 0:
            return Ended("stopped", error)
        return Ended("finished" if error is None else "failed", error)

    def stop(self) -> None:
        """Ask it to save its last finished step and end."""
        if not self._stopping and self._child.poll() is None:
            self._stopping = True
            self._child.terminate()

    def close(self) -> None:
        """End it at once where it still runs, and let go of its files."""
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        assert self._child.stdin is not None and self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it died before it had read its job
            self._child.stdin.close()
        self._child.stdout.close()
        self._log.close()

    def _error(self, silent: str) -> str | None:
        """The error that its last line says, or none; `silent` where it has not come to say one."""
        assert self._child.stdout is not None
        lines = self._child.stdout.read().splitlines()
        try:
            said: Any = json.loads(lines[-1]) if lines else None
        except ValueError:
            said = None  # killed while it wrote
        error: str | None = said["error"] if isinstance(said, dict) and "error" in said else silent
        return error


def _by(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"


def environment(slot: int, jobs: int) -> dict[str, str]:
    """The cores, and where there are several the GPU, of the run in place `slot` of `jobs` side by side."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = os.environ.get("OMP_NUM_THREADS", "")
    most = min(cores, int(given)) if given.isdecimal() and int(given) > 0 else cores
    found = threads(min(most, cores // jobs))
    gpus = _gpus()
    if jobs > 1 and len(gpus) > 1:
        found["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return found


def threads(count: int) -> dict[str, str]:
    """The variables by which libraries take so many threads, one at least."""
    return dict.fromkeys(THREADS, str(max(1, count)))


def _gpus() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
