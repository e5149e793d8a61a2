"""The scheduler of an ablation: runs in parallel, seed by seed, continued where an earlier process stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strop.base.interrupt import on_interrupt
from strop.base.metrics_file import read_metrics
from strop.base.text import counted, duration, percent
from strop.base.types import InputError, StropError
from strop.base.view import View
from strop.lab.ablation.manifest import Manifest, RunEntry, held, is_finished, merged, write_manifest
from strop.lab.ablation.run_process import Ended, RunJob, RunProcess, environment

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
) -> Manifest:
    """Make every run that is not finished; runs that fail are marked, and the others go on.

    Run folders that exist are resumed from their newest checkpoints.

    Args:
        folder: of the ablation; further seeds and variants may be added to what it holds.
        wanted: what to run (`manifest.plan`).
        jobs: how many runs are made in parallel; they share the cores and GPUs of this machine.
        imports: the user's modules with pieces.

    Raises:
        InputError: the folder holds another ablation, or another process works on it.
        AblationStopped: Ctrl-C or SIGTERM.
    """
    manifest = merged(folder, wanted)
    with held(folder):
        manifest = merged(folder, wanted)  # again: another process may have ended in between
        write_manifest(folder, manifest)
        waiting = [run for run in manifest.runs if not is_finished(manifest.path(folder, run))]
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
    process: RunProcess
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
            if run not in self._total:
                self.manifest = self.manifest.marked(run, "finished")

    def work(self) -> None:
        """Until every run has ended, or all that were under way have stopped."""
        whole = counted(len(self.manifest.runs), "runs")
        self.view.note(f"{whole}, {len(self._total)} of them to make, {self.jobs} in parallel")
        self.view.stage("steps of all runs", sum(self._total.values()))
        asked: float | None = None
        while self._slots or (self.waiting and not self.stopping):
            if self.stopping:
                asked = asked or time.monotonic()
                for work in self._slots.values():
                    work.process.stop()
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
            work.process.close()
            self.manifest = self.manifest.marked(work.run, "stopped" if work.progress.step else "waiting")
        self._slots.clear()
        write_manifest(self.folder, self.manifest)

    def _start(self) -> None:
        free = [slot for slot in range(self.jobs) if slot not in self._slots]
        for slot in free[: len(self.waiting)]:
            run = self.waiting.pop(0)
            path, log = self.manifest.path(self.folder, run), self.manifest.log(self.folder, run)
            progress = AblationProgress(path / "metrics.jsonl")
            progress.look()
            job = RunJob(path, self.manifest.config(run).model_dump(mode="json"), log, self.imports)
            self._slots[slot] = _Work(run, RunProcess(job, environment(slot, self.jobs)), progress, time.monotonic())
            self._done[run] = progress.step
            self.manifest = self.manifest.marked(run, "running")
            write_manifest(self.folder, self.manifest)
            self.view.note(f"{run.label}: {f'going on after step {progress.step}' if progress.step else 'begins'}")

    def _poll(self) -> None:
        for slot, work in list(self._slots.items()):
            ended = work.process.poll()
            if work.progress.look():
                self._done[work.run] = work.progress.step
                self.view.advance(sum(self._done.values()), {})
                self.view.aside(work.run.label, work.progress.step, self._total[work.run])
            if ended is not None:
                del self._slots[slot]
                work.process.close()
                self._end(work, ended)
                write_manifest(self.folder, self.manifest)

    def _end(self, work: _Work, ended: Ended) -> None:
        run, progress = work.run, work.progress
        if ended.outcome == "finished" and not is_finished(self.manifest.path(self.folder, run)):
            ended = Ended("failed", f"ended without a summary; see {self.manifest.log(self.folder, run)}")
        self.manifest = self.manifest.marked(run, ended.outcome, ended.error if ended.outcome == "failed" else None)
        if ended.outcome == "finished":
            rate = "" if progress.pass_rate is None else f", held-out pass rate {percent(progress.pass_rate)}"
            self.view.note(f"{run.label}: finished in {duration(time.monotonic() - work.begun)}{rate}")
        elif ended.outcome == "failed":
            self.view.note(f"{run.label}: failed, {ended.error}")
            self._done[run] = self._total[run]  # none of its steps is left to do
        else:
            self.view.note(f"{run.label}: stopped after step {progress.step}")
