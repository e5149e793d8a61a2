"""Make the runs of an ablation: so many side by side, seed by seed, going on where an earlier process stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from strop.base.interrupt import on_interrupt
from strop.base.types import StropError
from strop.base.view import View, duration, percent
from strop.lab.ablation.manifest import Manifest, RunEntry, held, is_finished, merged, write_manifest
from strop.lab.ablation.processes import ThisMachine
from strop.lab.ablation.running import Ended, Job, Place, Running

LOSSES = 3  # of what a run is made on, after which it is not begun again
INTERVAL = 0.2  # seconds between two looks at the runs
KILL_AFTER = 600.0  # seconds within which a run that was asked to stop must have saved its step


class Stopped(StropError):
    """Ctrl-C: every run has saved its last finished step."""

    exit_code = 130


def execute(
    folder: Path,
    wanted: Manifest,
    view: View,
    jobs: int = 1,
    imports: Sequence[str] = (),
    place: Place | None = None,
) -> Manifest:
    """Make every run that is not finished; runs that fail are marked, and the others go on.

    Run folders that exist are resumed from their newest checkpoints. A run whose machine is lost goes on on another;
    one for which there is no room waits until another run ends.

    Args:
        folder: of the ablation; further seeds and variants may be added to what it holds.
        wanted: what to run (`manifest.plan`).
        jobs: how many runs side by side.
        imports: modules of pieces of one's own.
        place: where; None: on this machine, the cores and GPUs shared out. The caller closes it.

    Raises:
        InputError: the folder holds another ablation, or another process works on it.
        StropError: there is no room for any run.
        Stopped: Ctrl-C or SIGTERM.
    """
    manifest = merged(folder, wanted)
    with held(folder):
        manifest = merged(folder, wanted)  # again: another process may have ended in between
        write_manifest(folder, manifest)
        waiting = [run for run in manifest.runs if not is_finished(manifest.path(folder, run))]
        _make_bases(manifest, waiting, view)
        crew = _Crew(folder, manifest, waiting, view, jobs, imports, place or ThisMachine(jobs))
        try:
            with on_interrupt(crew.ask_to_stop):
                crew.work()
        finally:
            crew.close()
    if crew.stopping:
        done = sum(run.state == "finished" for run in crew.manifest.runs)
        raise Stopped(
            f"stopped; {done} of {len(manifest.runs)} runs are finished; the same command goes on with {folder}"
        )
    return crew.manifest


def _make_bases(manifest: Manifest, waiting: Sequence[RunEntry], view: View) -> None:
    """Make the embedded bases that several runs would otherwise make at once, each for itself."""
    from strop.training.embedded_base import located

    made = set()
    for run in waiting:
        config = manifest.config(run)
        if (config.model.path, run.seed) not in made:
            made.add((config.model.path, run.seed))
            located(config.model, run.seed, view)


class _Crew:
    """The runs at work."""

    def __init__(
        self, folder: Path, manifest: Manifest, waiting: list[RunEntry], view: View, jobs: int, imports: Sequence[str],
        place: Place,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.manifest = manifest
        self.waiting = waiting
        self.view = view
        self.jobs = jobs
        self.imports = imports
        self.place = place
        self.stopping = False
        self._slots: dict[int, tuple[RunEntry, Running]] = {}
        self._losses: dict[RunEntry, int] = {}
        self._full = False  # there was no room for one more; it may come when a run ends
        self._total = {run: manifest.config(run).steps for run in waiting}
        self._done: dict[RunEntry, int] = {}
        for run in manifest.runs:
            if run not in self._total:
                self.manifest = self.manifest.marked(run, "finished")

    def work(self) -> None:
        self.view.note(f"{len(self.manifest.runs)} runs, {len(self._total)} of them to make, {self.jobs} side by side")
        self.view.stage("steps of all runs", sum(self._total.values()))
        asked: float | None = None
        while self._slots or (self.waiting and not self.stopping):
            if self.stopping:
                asked = asked or time.monotonic()
                for _, running in self._slots.values():
                    running.ask()
                if time.monotonic() - asked > KILL_AFTER:
                    return
            else:
                self._start()
            self._look()
            time.sleep(INTERVAL)

    def ask_to_stop(self) -> None:
        # A signal may arrive while the view is drawing: nothing is printed from here.
        self.stopping = True

    def close(self) -> None:
        for run, running in self._slots.values():
            running.close()
            self.manifest = self.manifest.marked(run, "stopped")
        self._slots.clear()
        write_manifest(self.folder, self.manifest)

    def _start(self) -> None:
        started = False
        for slot in range(self.jobs):
            if slot in self._slots or not self.waiting or self._full:
                continue
            run = self.waiting.pop(0)
            running = self.place.start(self._job(run), slot)
            self._slots[slot] = run, running
            step = self._done[run] = running.steps.step
            self.manifest = self.manifest.marked(run, "running")
            self.view.note(f"{run.label}: {f'going on after step {step}' if step else 'begins'}")
            started = True
        if started:
            write_manifest(self.folder, self.manifest)

    def _job(self, run: RunEntry) -> Job:
        path, log = self.manifest.path(self.folder, run), self.manifest.log(self.folder, run)
        return Job(run.label, path, self.manifest.config(run).model_dump(mode="json"), log, self.imports)

    def _look(self) -> None:
        for slot, (run, running) in list(self._slots.items()):
            ended = running.poll()
            if running.steps.look():
                self._done[run] = running.steps.step
                self.view.advance(sum(self._done.values()), {})
                self.view.aside(run.label, running.steps.step, self._total[run])
            if ended is not None:
                self._end(slot, run, running, ended)

    def _end(self, slot: int, run: RunEntry, running: Running, ended: Ended) -> None:
        del self._slots[slot]
        running.close()
        self._full = ended.outcome == "unplaced"
        if ended.outcome == "finished" and not is_finished(self.manifest.path(self.folder, run)):
            ended = ended._replace(outcome="failed", error=f"ended without a summary; see {running.log}")
        if ended.outcome == "lost":
            ended = self._lost(run, ended)
        if ended.outcome == "stopped":
            self.manifest = self.manifest.marked(run, "stopped")
            self.view.note(f"{run.label}: stopped after step {running.steps.step}")
        elif ended.outcome == "unplaced":
            self._unplaced(run, ended)
        elif ended.outcome == "failed":
            self.manifest = self.manifest.marked(run, "failed", ended.error)
            self.view.note(f"{run.label}: failed, {ended.error}")
            self._done[run] = self._total[run]  # nothing of it is left to do
        elif ended.outcome == "finished":
            self.manifest = self.manifest.marked(run, "finished")
            rate = running.steps.pass_rate
            said = "" if rate is None else f", held-out pass rate {percent(rate)}"
            self.view.note(f"{run.label}: finished in {duration(ended.seconds)}{said}")
        write_manifest(self.folder, self.manifest)

    def _lost(self, run: RunEntry, ended: Ended) -> Ended:
        """Have a run whose machine is lost go on on another; a failure where that happens again and again."""
        if self.stopping:
            return ended._replace(outcome="stopped")
        count = self._losses[run] = self._losses.get(run, 0) + 1
        if count > LOSSES:
            return ended._replace(outcome="failed", error=f"lost {count} times, at last: {ended.error}")
        self.waiting.insert(0, run)
        self.manifest = self.manifest.marked(run, "stopped")
        self.view.note(f"{run.label}: lost, {ended.error}; it goes on elsewhere")
        return ended

    def _unplaced(self, run: RunEntry, ended: Ended) -> None:
        """Put a run back for which there is no room.

        Raises:
            StropError: no other run could make room for it.
        """
        self.waiting.insert(0, run)
        self.manifest = self.manifest.marked(run, "stopped" if self._done[run] else "waiting")
        if not self._slots and not self.stopping:
            raise StropError(str(ended.error))
        self.view.note(f"{run.label}: no room beside the other runs; it waits for one of them to end")
