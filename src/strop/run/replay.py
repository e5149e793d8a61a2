"""Trains again from the rollouts that a run stored, and compares every step with what the run recorded of it.

    for done in replay(RunFolder.open("runs/first"), SilentView(), begin=40):
        print(done.step, done.difference or "equal")    # ends at the first difference

Nothing is generated or judged: the same learner gets the same groups in the same order. On the same machine with the
same number of threads, everything is equal bit for bit, at any lag: what the clock decided is in the batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from strop.base import progress, rollout_table
from strop.base.batch_record import BatchRecord, inputs_of
from strop.base.metrics import values
from strop.base.types import FloatArray, Group, InputError
from strop.base.view import View
from strop.config.parse import parse
from strop.run.assembly import learner_of
from strop.run.curriculum import Stages
from strop.run.folder import RunFolder, config_of_step
from strop.training import checkpoint
from strop.training.samples import TrainResult

COLUMNS = ("values", "advantages", "trainer_logprobs")  # of trained tokens, in the order in which they arise


@dataclass(frozen=True)
class Replayed:
    """A step that was trained again: the first thing in which it differs, None if it is equal, and its seconds."""

    step: int
    difference: str | None
    seconds: float


def replay(folder: RunFolder, view: View, begin: int = 0, end: int | None = None) -> Iterator[Replayed]:
    """Train again the steps after `begin`, 0 or that of a checkpoint, up to `end` (None: the last); see `Replayed`.

    Raises:
        StropError: there is no such checkpoint, or no rollouts of a step; or what a step was given was not recorded.
    """
    for process, stored in stored_steps(folder, view, begin, end):
        done = process.replayed(stored)
        yield done
        if done.difference is not None:
            return


class StoredStep(NamedTuple):
    """What a run stored of a step: the file of its rollouts, its record and its metrics."""

    step: int
    path: Path
    record: BatchRecord
    row: Mapping[str, float | None]

    def groups(self) -> list[Group]:
        """The groups that the learner took."""
        return rollout_table.read_groups(self.path)[self.record.skipped :]


def stored_steps(
    folder: RunFolder, view: View, begin: int, end: int | None
) -> Iterator[tuple[TrainingProcess, StoredStep]]:
    """Each step of `replay`, with what is to train it; it must be trained before the next one is asked for."""
    last = max(folder.rollout_steps(), default=0) if end is None else end
    if folder.fine_tunes or last <= begin:
        raise InputError(f"{folder.path} has no rollouts after step {begin}, so that there is nothing to replay")
    rows = {int(row["step"] or 0): row for row in folder.read_metrics()}
    with TemporaryDirectory(prefix="strop-replay-") as scratch, ExitStack() as stack:
        process: TrainingProcess | None = None
        for step in range(begin + 1, last + 1):
            path = folder.rollouts_path(step)
            if not path.is_file():
                raise InputError(f"{folder.path} has no rollouts of step {step}")
            record, data = rollout_table.read_record(path), config_of_step(folder, step)
            if process is None or (process.data, process.made) != (data, record.made):
                root = folder.checkpoints.resolve() if process is None else process.save(Path(scratch), step - 1)
                found = checkpoint.load(root, step - 1) if step > 1 else None
                stack.close()
                process = TrainingProcess(data, record.made, stack, Path(scratch), view)
                if found is not None:
                    process.go_on(found, root)
            progress.part("steps", step - begin - 1, last - begin)
            yield process, StoredStep(step, path, record, rows.get(step, {}))


class TrainingProcess:
    """What one process of the run had of training: the learner, and the stage that it was in.

    Args:
        data: the configuration.
        made: see `BatchRecord`.
        stack: closes the learner.
        scratch: a folder for files of workers.
        view: shows what is loaded.
    """

    def __init__(
        self, data: Mapping[str, Any], made: Mapping[str, Any], stack: ExitStack, scratch: Path, view: View
    ) -> None:
        self.data, self.made = data, made
        config = parse(dict(data), "config.json")
        if config.model.replay_routing:
            raise InputError("model.replay_routing: a run does not store which experts were chosen; it has no replay")
        if made["torch"] != torch.__version__:
            view.note(f"recorded with torch {made['torch']}, and this is {torch.__version__}: bits may differ")
        torch.set_num_threads(made["threads"])
        self.learner = stack.enter_context(learner_of(config, made["chosen"], scratch, view))
        self.stages = Stages(config)
        self.stages.enter(self.learner, 0)

    def go_on(self, found: checkpoint.Checkpoint, root: Path) -> None:
        """Restore a checkpoint below `root`, as a resume does."""
        self.stages.load(found.state["loop"]["curriculum"])
        self.stages.enter(self.learner, found.step)
        self.learner.load(root, found.step)
        if found.state["config"] != self.data:
            self.stages.replan(self.learner, found.step)

    def save(self, root: Path, step: int) -> Path:
        """Write the checkpoint after `step` below `root`, and return that."""
        state = {"loop": {"curriculum": self.stages.state()}, "config": self.data}
        self.learner.save(checkpoint.CheckpointEntry(root, step, state), {})
        self.learner.settle(wait=True)
        return root

    def replayed(self, stored: StoredStep) -> Replayed:
        """Train a step again."""
        begin, (step, path, record, row) = time.perf_counter(), stored
        groups = stored.groups()
        difference: str | None = None
        if inputs_of(groups) != record.inputs:
            difference = f"{path} does not hold what was trained on: a value in it was changed"
        else:
            result = self.learner.learn(groups, set(record.kept), step - 1, record.states)
            difference = _difference(path, groups, result, row)
            if difference is None and self.learner.digest() != record.weights:
                difference = "the weights after it"
        if self.stages.advance(step):
            self.stages.enter(self.learner, step)
        return Replayed(step, difference, time.perf_counter() - begin)


def _difference(
    path: Path, groups: Sequence[Group], result: TrainResult | None, row: Mapping[str, float | None]
) -> str | None:
    """The first value that is not the recorded one: of a token, in the order in which they arise, else a metric."""
    if result is None:
        return "none of its groups is trained on"
    trained = {sample.id: sample for sample in result.samples}
    rollouts = [(group.ticket, rollout.completion) for group in groups for rollout in group.rollouts]
    found = [rollout_table.learned(ticket, completion, trained) for ticket, completion in rollouts]
    for name, recorded in rollout_table.read_arrays(path, COLUMNS).items():
        for (ticket, completion), before, now in zip(rollouts, recorded[-len(rollouts) :], found, strict=True):
            if not np.array_equal(before, now.get(name, before[:0]), equal_nan=True):
                place = f"sample {completion.index} of group {ticket}"
                return f"{name} of {place}{_first(before, now.get(name, before[:0]))}"
    for name, value in values(result.metrics).items():
        if name in row and repr(row[name]) != repr(None if value is None else float(value)):
            return f"{name}: {row[name]!r} was recorded, {value!r} came out"
    return None


def _first(before: FloatArray, now: FloatArray) -> str:
    """Where two columns differ first, and by what."""
    if len(before) != len(now):
        return ", which was trained on by only one of the two"
    place = int(np.flatnonzero((before != now) & ~(np.isnan(before) & np.isnan(now)))[0])
    return f", token {place}: {before[place]!s} was recorded, {now[place]!s} came out"
