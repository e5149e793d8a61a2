"""The scheduler of an ablation: runs in parallel, seed by seed, continued where an earlier process stopped.

Each run is a process of this machine, `strop train CONFIG.json --out RUN` or `strop train --resume RUN`, which ends
when this process does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strop.base.files import write_json, writing
from strop.base.imports import code_settings
from strop.base.interrupt import on_interrupt
from strop.base.metrics_file import read_metrics
from strop.base.progress import part
from strop.base.text import counted, duration, percent
from strop.base.types import InputError, StropError
from strop.base.view import View
from strop.lab.ablation.collect import collect
from strop.lab.ablation.manifest import Manifest, RunEntry, held, is_finished, merged, write_manifest
from strop.lab.scaling.fitting import FitSettings
from strop.run.folder import is_run
from strop_verify.child_process import ChildProcess, import_path, thread_environment

# The command line, in a process that dies with its parent, whose id is the first argument.
PROGRAM = """
import sys
from strop_verify.child_process import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
from strop.cli import main
main()
"""
INTERVAL = 0.2  # seconds between two looks at the runs
KILL_AFTER = 600.0  # seconds within which a run that was asked to stop must have saved its step


class AblationStopped(StropError):
    """Ctrl-C: every run has saved its last finished step."""

    exit_code = 130


def execute(
    folder: Path,
    wanted: Manifest,
    view: View,
    jobs: int = 1,
    imports: Sequence[str] = (),
    again: bool = True,
) -> Manifest:
    """Make every run that is not finished; runs that fail are marked, and the others go on.

    Run folders that exist are resumed from their newest checkpoints.

    Args:
        folder: of the ablation; further seeds and variants may be added to what it holds.
        wanted: what to run (`manifest.plan`).
        jobs: how many runs are made in parallel; they share the cores and GPUs of this machine.
        imports: the user's modules with pieces.
        again: whether runs that have failed are tried again.

    Raises:
        InputError: the folder holds another ablation, or another process works on it.
        AblationStopped: Ctrl-C or SIGTERM.
    """
    manifest = merged(folder, wanted)
    with held(folder):
        manifest = merged(folder, wanted)  # again: another process may have ended in between
        write_manifest(folder, manifest)
        waiting = [
            run for run in manifest.runs
            if not is_finished(manifest.path(folder, run)) and (again or run.state != "failed")
        ]  # fmt: skip
        _make_bases(manifest, waiting, view)
        scheduler = _Scheduler(folder, manifest, waiting, view, jobs, imports)
        try:
            with on_interrupt(scheduler.stop):
                scheduler.work()
        finally:
            scheduler.close()
    if scheduler.stopping:
        done = sum(run.state == "finished" for run in scheduler.manifest.runs)
        raise AblationStopped(
            f"stopped; {done} of {len(manifest.runs)} runs are finished; the same command goes on with {folder}"
        )
    return scheduler.manifest


def add_seeds(
    folder: Path, most: int, view: View, jobs: int, imports: Sequence[str], fits: FitSettings, margin: float
) -> None:
    """Run a further seed of every variant that is undecided, until none is or all of them have `most`."""
    while True:
        found = collect(folder, settings=fits, margin=margin)
        more = found.manifest.extended(found.undecided, most)
        if more == found.manifest:
            return
        execute(folder, more, view, jobs, imports, again=False)


def _make_bases(manifest: Manifest, waiting: Sequence[RunEntry], view: View) -> None:
    """Make the embedded bases that several runs would otherwise make at once, each for itself."""
    from strop.training.embedded_base import located

    made = set()
    for run in waiting:
        config = manifest.config(run)
        if (config.model.path, run.seed) not in made:
            made.add((config.model.path, run.seed))
            located(config.model, run.seed, view)


class AblationProgress:
    """How far a run is, read from its metrics.jsonl while that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self.step = 0
        self.pass_rate: float | None = None

    def look(self) -> bool:
        """Read the file where its size has changed; return whether the step has changed since."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size == self._size:
            return False
        before, self._size = self.step, size
        try:
            rows = read_metrics(self._path)
        except InputError:
            return False  # a resumed run is cutting off what came after its checkpoint
        rates = [row["evaluation/pass_rate"] for row in rows if row.get("evaluation/pass_rate") is not None]
        self.step = int(rows[-1]["step"] or 0) if rows else 0
        self.pass_rate = rates[-1] if rates else None
        return self.step != before


@dataclass(frozen=True)
class _Work:
    """A run in progress."""

    run: RunEntry
    process: ChildProcess
    progress: AblationProgress
    begun: float


class _Scheduler:
    """Starts runs while there are free slots, polls them, and keeps the manifest."""

    def __init__(
        self, folder: Path, manifest: Manifest, waiting: list[RunEntry], view: View, jobs: int, imports: Sequence[str]
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.waiting = waiting
        self.view = view
        self.jobs = jobs
        self.imports = imports
        self.stopping = False
        self._slots: dict[int, _Work] = {}
        self._total = {run: manifest.config(run).steps for run in waiting}
        self._done: dict[RunEntry, int] = {}
        for run in manifest.runs:
            if is_finished(manifest.path(folder, run)):
                self.manifest = self.manifest.marked(run, "finished")

    def work(self) -> None:
        """Until every run has ended, or all that were under way have stopped."""
        whole = counted(len(self.manifest.runs), "runs")
        self.view.note(f"{whole}, {len(self._total)} of them to make, {self.jobs} in parallel")
        self.view.stage("steps of all runs", sum(self._total.values()))
        asked: float | None = None
        while self._slots or (self.waiting and not self.stopping):
            if self.stopping:
                if asked is None:
                    asked = time.monotonic()
                    for work in self._slots.values():
                        work.process.terminate()
                if time.monotonic() - asked > KILL_AFTER:
                    return
            else:
                self._start()
            self._poll()
            time.sleep(INTERVAL)

    def stop(self) -> None:
        """Start nothing more, and have what is under way save its last step."""
        # A signal may arrive while the view is drawing: nothing is printed from here.
        self.stopping = True

    def close(self) -> None:
        """End what is still under way."""
        for work in self._slots.values():
            work.process.end()
            work.process.close()
            self.manifest = self.manifest.marked(work.run, "stopped" if work.progress.step else "waiting")
        self._slots.clear()
        write_manifest(self.folder, self.manifest)

    def _start(self) -> None:
        free = [slot for slot in range(self.jobs) if slot not in self._slots]
        for slot in free[: len(self.waiting)]:
            run = self.waiting.pop(0)
            progress = AblationProgress(self.manifest.path(self.folder, run) / "metrics.jsonl")
            progress.look()
            self._slots[slot] = _Work(run, self._process(run, slot), progress, time.monotonic())
            self._done[run] = progress.step
            part(run.label, progress.step, self._total[run])
            self.manifest = self.manifest.marked(run, "running")
            write_manifest(self.folder, self.manifest)
            self.view.note(f"{run.label}: {f'going on after step {progress.step}' if progress.step else 'begins'}")

    def _process(self, run: RunEntry, slot: int) -> ChildProcess:
        """Start the run, or go on with it; its output is appended to its log."""
        path, log = self.manifest.path(self.folder, run), self.manifest.log(self.folder, run)
        config = self.manifest.config(run).model_dump(mode="json")
        if is_run(path):
            arguments = ["train", "--resume", str(path)]
        else:
            given = path.with_suffix(".json")
            write_json(given, config)
            arguments = ["train", str(given), "--out", str(path)]
        with writing(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            output = log.open("a+b")
        allowed = [f"--allow={key}" for key, *_ in code_settings(config)]  # this process has checked them
        imports = [f"--import={module}" for module in self.imports]
        return ChildProcess(
            [sys.executable, "-c", PROGRAM, str(os.getpid()), *allowed, *arguments, "--plain", *imports],
            {**os.environ, "PYTHONPATH": import_path(), **environment(slot, self.jobs)},
            output,
        )

    def _poll(self) -> None:
        for slot, work in list(self._slots.items()):
            status = work.process.status
            if work.progress.look():
                self._done[work.run] = work.progress.step
                self.view.advance(sum(self._done.values()), {})
                part(work.run.label, work.progress.step, self._total[work.run])
            if status is not None:
                del self._slots[slot]
                part(work.run.label, self._total[work.run], self._total[work.run])
                self._end(work, status)
                work.process.close()
                write_manifest(self.folder, self.manifest)

    def _end(self, work: _Work, status: int) -> None:
        run, progress, log = work.run, work.progress, self.manifest.log(self.folder, work.run)
        error = None
        if status != 0 and self.stopping:
            self.manifest = self.manifest.marked(run, "stopped")
            self.view.note(f"{run.label}: stopped after step {progress.step}")
            return
        if status != 0:
            said = work.process.last_line().removeprefix("strop: ") if status > 0 else ""
            error = said or f"it {work.process.exit_reason()}; see {log}"
        elif not is_finished(self.manifest.path(self.folder, run)):
            error = f"ended without a summary; see {log}"
        self.manifest = self.manifest.marked(run, "failed" if error else "finished", error)
        if error is not None:
            self.view.note(f"{run.label}: failed, {error}")
            self._done[run] = self._total[run]  # none of its steps is left to do
        else:
            rate = "" if progress.pass_rate is None else f", held-out pass rate {percent(progress.pass_rate)}"
            self.view.note(f"{run.label}: finished in {duration(time.monotonic() - work.begun)}{rate}")


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
