"""A run of an ablation as a subprocess: started, watched through its metrics, asked to stop, ended with its parent."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.base.files import writing
from strop.lab.ablation.running import Ended, Job

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Steps:
    """Follows the metrics.jsonl of a run as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.step = 0
        self.pass_rate: float | None = None

    def look(self) -> bool:
        """Read what is new; whether a step was done since."""
        before = self.step
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = self.step = 0  # a resumed run has cut off what came after its checkpoint
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return False
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            row = json.loads(line)
            self.step = max(self.step, int(row["step"]))  # an evaluation beside training comes late
            self.pass_rate = row.get("evaluation/pass_rate", self.pass_rate)
        return self.step != before


class ThisMachine:
    """Runs as subprocesses, each with its share of the cores, and where there are several GPUs one of them.

    Args:
        jobs: how many run side by side.
    """

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs

    def start(self, job: Job, slot: int) -> Process:
        """Begin a run."""
        return Process(job, environment(slot, self._jobs))

    def close(self) -> None:
        """There is nothing to let go of."""


class Process:
    """A running subprocess.

    Args:
        job: what it does; its log is appended to.
        environment: on top of this process's own.
    """

    def __init__(self, job: Job, environment: Mapping[str, str]) -> None:
        self.steps = Steps(job.folder / "metrics.jsonl")
        self.steps.look()
        self.log = job.log
        self._asked = False
        self._begun = time.monotonic()
        with writing(job.log):
            job.log.parent.mkdir(parents=True, exist_ok=True)
            self._log = job.log.open("ab")
        # A session of its own: a Ctrl-C on the terminal reaches the parent alone, which asks every child once.
        self._child = subprocess.Popen(
            [sys.executable, "-m", "strop.lab.ablation.job"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        work = {"folder": str(job.folder), "config": dict(job.config), "imports": list(job.imports)}
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(work).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # it died at once; `poll` says how

    @property
    def pid(self) -> int:
        return self._child.pid

    def poll(self) -> Ended | None:
        """How it ended; None while it runs."""
        code = self._child.poll()
        if code is None:
            return None
        said = self._said()
        error = said["error"] if said else f"ended {_by(code)}; see {self.log}"
        seconds = time.monotonic() - self._begun
        if self._asked and code != 0:
            return Ended("stopped", error, seconds)
        return Ended("failed" if error is not None else "finished", error, seconds)

    def ask(self) -> None:
        """Ask it to save its last finished step and end."""
        if not self._asked and self._child.poll() is None:
            self._asked = True
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

    def _said(self) -> dict[str, Any] | None:
        assert self._child.stdout is not None
        lines = self._child.stdout.read().splitlines()
        try:
            value = json.loads(lines[-1]) if lines else None
        except ValueError:
            return None  # killed while it wrote
        return value if isinstance(value, dict) and "error" in value else None


def _by(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"


def environment(slot: int, jobs: int) -> dict[str, str]:
    """The cores, and where there are several the GPU, of the run in place `slot` of `jobs` side by side."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = os.environ.get("OMP_NUM_THREADS", "")
    most = min(cores, int(given)) if given.isdecimal() and int(given) > 0 else cores
    found = dict.fromkeys(THREADS, str(max(1, min(most, cores // jobs))))
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
