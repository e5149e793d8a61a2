"""A run of an ablation in a child process of this machine, which ends when its parent does."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from strop.base.files import writing
from strop.base.plain_view import PlainView
from strop.base.types import InputError, StropError
from strop_verify.child_process import connect_to_parent, start_module, thread_environment
from strop_verify.framing import Channel


class RunJob(NamedTuple):
    """A run to make: its folder, its configuration as plain data, its log file, and the user's modules with pieces."""

    folder: Path
    config: Mapping[str, Any]
    log: Path
    imports: Sequence[str] = ()


class Ended(NamedTuple):
    """How a run ended. A stopped run was asked to stop, and can go on; `error` is one line."""

    outcome: Literal["finished", "failed", "stopped"]
    error: str | None = None


class RunProcess:
    """A run in a child process.

    Args:
        job: what to run; its output is appended to its log.
        environment: environment variables to add to those of this process.
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
        with contextlib.suppress(OSError):  # it died at once; `poll` returns how
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
        """End it at once where it still runs, and close its files."""
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
    """Environment variables of a run, in place `slot` of `jobs`: its share of the cores, and one of several GPUs."""
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
    """Make the run that the parent sends, send how it ended, and return the exit code."""
    channel = Channel(connect_to_parent())
    job: dict[str, Any] = json.loads(channel.next())
    error, code = None, 0
    try:
        _run(Path(job["folder"]), job["config"], job["imports"])
    except StropError as problem:
        error, code = str(problem), problem.exit_code
    except KeyboardInterrupt:
        error, code = "stopped at once", 130
    except Exception as problem:  # any error of a variant is recorded, and the other variants go on
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
    config = parse(data, str(folder), to_run=False)  # the parent has checked what the user allowed
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


if __name__ == "__main__":
    sys.exit(main())
