"""Trains again from the rollouts that a run stored, and compares every step with what the run recorded of it.

    for done in replay(RunFolder.open("runs/first"), SilentView(), begin=40):
        print(done.step, done.difference or "equal")    # ends at the first difference

Nothing is generated or judged: the same learner gets the same groups in the same order. On the same machine with the
same torch everything is equal bit for bit, at any lag: what the clock decided is in the batches. Another machine rounds
otherwise. There rollouts are still compared bit for bit, and what is computed from them within `WITHIN`: the columns of
tokens, the norm of the gradient, and the change of the weights up to every checkpoint that the run kept.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from strop.base import progress, rollout_table
from strop.base.batch_record import BatchRecord, MadeWith, inputs_of
from strop.base.metrics import values
from strop.base.types import FloatArray, Group, InputError
from strop.base.view import View
from strop.config.parse import parse
from strop.run.assembly import learner_of, machine
from strop.run.curriculum import Stages
from strop.run.folder import RunFolder, config_of_step
from strop.training import checkpoint
from strop.training.samples import TrainResult

COLUMNS = ("values", "advantages", "trainer_logprobs")  # of trained tokens, in the order in which they arise
# What may differ elsewhere, by the type of the weights; and so many times that in the change of the weights: the first
# steps of Adam are signs of gradients, and those near 0 are mostly rounding.
WITHIN = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.05}
OF_WEIGHTS = 10


@dataclass(frozen=True)
class Replayed:
    """A step that was trained again.

    Fields:
        difference: the first thing in which it differs, None for none.
        apart: the largest difference that was let pass, of weights by `OF_WEIGHTS`; 0 where all is equal bit for bit,
            as it must be on the machine of the run.
        seconds: all of it took.
        update: seconds of its update in the run; None for a run without metrics of it.
    """

    step: int
    difference: str | None
    apart: float
    seconds: float
    update: float | None


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
        weights = RecordedWeights(folder.checkpoints.resolve(), Path(scratch) / "compared")
        for step in range(begin + 1, last + 1):
            path = folder.rollouts_path(step)
            if not path.is_file():
                raise InputError(f"{folder.path} has no rollouts of step {step}")
            record, data = rollout_table.read_record(path), config_of_step(folder, step)
            if process is None or (process.data, process.made) != (data, record.made):
                root = weights.root if process is None else process.save(Path(scratch), step - 1)
                found = checkpoint.load(root, step - 1) if step > 1 else None
                stack.close()
                process = TrainingProcess(data, record.made, stack, Path(scratch), weights, view)
                if found is not None:
                    process.go_on(found, root)
                if process.within and not weights.start:
                    weights.start = weights.of(process, step - 1)
            progress.part("steps", step - begin - 1, last - begin)
            yield process, StoredStep(step, path, record, rows.get(step, {}))


class TrainingProcess:
    """What one process of the run had of training: the learner, and the stage that it was in.

    Args:
        data: the configuration.
        made: what the batch was made with.
        stack: closes the learner.
        scratch: a folder for files of workers.
        weights: those of the run.
        view: shows what is loaded.

    Attributes:
        within: the largest difference that passes: 0 on the machine of the run.
    """

    def __init__(
        self, data: Mapping[str, Any], made: MadeWith, stack: ExitStack, scratch: Path,
        weights: RecordedWeights, view: View,
    ) -> None:  # fmt: skip
        self.data, self.made, self.weights = data, made, weights
        config = parse(dict(data), "config.json")
        if config.model.replay_routing:
            raise InputError("model.replay_routing: a run does not store which experts were chosen; it has no replay")
        self.within = 0.0 if made.machine == machine() else WITHIN[made.dtype]
        if self.within:
            view.note(f"recorded on another machine or by another torch: compared within {self.within:g}")
        torch.set_num_threads(made.threads)
        self.learner = stack.enter_context(learner_of(config, made.chosen, scratch, view))
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
        begin, difference, largest = time.perf_counter(), None, 0.0
        for gap, what in self._differences(stored):
            if gap > self.within:
                difference = what
                break
            largest = max(largest, gap)
        if self.stages.advance(stored.step):
            self.stages.enter(self.learner, stored.step)
        return Replayed(
            stored.step, difference, largest, time.perf_counter() - begin, stored.row.get("seconds/update")
        )

    def _differences(self, stored: StoredStep) -> Iterator[tuple[float, str]]:
        """Whatever is not equal bit for bit, in the order in which it arises: how far apart it is, and what it is."""
        (step, path, record, row), groups = stored, stored.groups()
        if inputs_of(groups) != record.inputs:
            yield math.inf, f"{path} does not hold what was trained on: a value in it was changed"
            return
        result = self.learner.learn(groups, set(record.kept), step - 1, record.states)
        if result is None:
            yield math.inf, "none of its groups is trained on"
            return
        yield from _of_tokens(path, groups, result, self.within)
        yield from _of_metrics(result, row, self.within)
        if self.learner.digest() != record.weights:
            if not self.within:
                yield math.inf, "the weights after it"
            elif step in checkpoint.steps(self.weights.root):
                yield self.weights.apart(self, step) / OF_WEIGHTS, "the weights of its checkpoint"


class RecordedWeights:
    """The weights of a run's checkpoints below `root`, for replays elsewhere.

    Attributes:
        start: the weights with which the replay began, see `of`; empty until they are needed.
    """

    def __init__(self, root: Path, scratch: Path) -> None:
        self.root, self._scratch = root, scratch
        self.start: dict[str, Tensor] = {}

    def of(self, process: TrainingProcess, step: int) -> dict[str, Tensor]:
        """The tensors that training moves, as a checkpoint of the process has them."""
        found = _moved(checkpoint.load(process.save(self._scratch, step), step))
        shutil.rmtree(self._scratch)
        return found

    def apart(self, process: TrainingProcess, step: int) -> float:
        """The norm of the difference from the checkpoint of a step, over that of all change since the start."""
        recorded, now = _moved(checkpoint.load(self.root, step)), self.of(process, step)
        gap, change = (
            sum(float((value.double() - other[name].double()).square().sum()) for name, value in recorded.items())
            for other in (now, self.start)
        )
        return math.sqrt(gap / change) if change else math.inf


def _moved(found: checkpoint.Checkpoint) -> dict[str, Tensor]:
    """The masters of a checkpoint, or its weights where these are their own masters."""
    moved: dict[str, Tensor] = {}
    for group, optimizer in (("policy", "optimizer"), ("critic", "critic-optimizer")):
        if group in found.tensors:
            masters = {name: value for name, value in found.tensors[optimizer].items() if name.startswith("master.")}
            moved |= {f"{group} {name}": value for name, value in (masters or found.tensors[group]).items()}
    return moved


def _of_tokens(path: Path, groups: Sequence[Group], result: TrainResult, within: float) -> Iterator[tuple[float, str]]:
    """The differences in columns of tokens, by completion: their root mean square, over 1 + that of the column."""
    trained = {sample.id: sample for sample in result.samples}
    rollouts = [(group.ticket, rollout.completion) for group in groups for rollout in group.rollouts]
    found = [rollout_table.learned(ticket, completion, trained) for ticket, completion in rollouts]
    for name, recorded in rollout_table.read_arrays(path, COLUMNS).items():
        for (ticket, completion), before, columns in zip(rollouts, recorded[-len(rollouts) :], found, strict=True):
            now = columns.get(name, before[:0])
            if before.tobytes() == now.tobytes():
                continue
            what = f"{name} of sample {completion.index} of group {ticket}"
            if len(before) != len(now):
                yield math.inf, f"{what}, which was trained on by only one of the two"
                continue
            gap = np.where(np.isnan(before) & np.isnan(now), 0.0, np.abs(now - before.astype(np.float64)))
            scale = 1 + _rms(np.nan_to_num(before))
            token = int(np.flatnonzero(~(gap <= within * scale))[:1].sum())  # 0 where none is beyond
            text = f"{what}, token {token}: {before[token]!s} was recorded, {now[token]!s} came out"
            yield _rms(np.nan_to_num(gap, nan=math.inf)) / scale, text


def _rms(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def _of_metrics(
    result: TrainResult, row: Mapping[str, float | None], within: float
) -> Iterator[tuple[float, str]]:
    """The differences in metrics, relative; elsewhere only in the norms of gradients, as others may be near 0."""
    for name, value in values(result.metrics).items():
        before, now = row.get(name), None if value is None else float(value)
        if name in row and repr(before) != repr(now) and (not within or name.endswith("grad_norm")):
            gap = abs(now - before) / abs(before) if before and now is not None else math.inf
            yield gap, f"{name}: {before!r} was recorded, {now!r} came out"
