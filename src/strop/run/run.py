"""A run from start to end: it records, evaluates and checkpoints the loop's steps, resumes, and ends cleanly.

    summary = train(resolve("grpo"), Path("runs/grpo"), view)
    summary = resume(Path("runs/grpo"), view)          # continues bit for bit from the last checkpoint

Evaluations start after a step and are recorded when they finish: at once in this process, later from a worker, as a
line of metrics.jsonl with the step of the evaluated weights. Unfinished ones are repeated on resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from strop.base.batch_record import BatchRecord, MadeWith, inputs_of
from strop.base.imports import command
from strop.base.interrupt import Stopped, on_interrupt
from strop.base.types import StropError
from strop.base.view import View
from strop.config.parse import validated
from strop.config.schema import RunConfig
from strop.data.loading import PROBLEMS, ProblemRecord
from strop.data.sampler import NoProblemsLeft
from strop.engines.torch.engine import TorchEngine
from strop.evaluation.result import EvaluationResult
from strop.orchestration.evaluator import WeightsOf
from strop.orchestration.executor import InProcess
from strop.orchestration.rank_group import RankGroupLost
from strop.recipes.resolve import as_asked
from strop.run.assembly import Parts, assemble, machine
from strop.run.checks import findings
from strop.run.devices import devices_apart
from strop.run.finding import note, refuse
from strop.run.folder import (
    CHANGES,
    SUMMARY,
    UNTRAINED,
    RunFolder,
    SettingChange,
    check_free,
    questions_of,
    write_change,
    write_questions,
)
from strop.run.learners import Learning
from strop.run.loop import Loop, NothingToLearn, StepRecord
from strop.run.reference import teacher_prompts
from strop.run.resuming import checkpoint_of, point, refuse_other_problems, rising_rate
from strop.run.timing import is_tiny, measure, of_time
from strop.run.tracking import Trackers
from strop.run.validation import Row, Validation
from strop.run.watchdog import Watch
from strop.training import checkpoint
from strop.training.compute import ComputeMeter
from strop.training.learner import Learner
from strop.verifiers.judge_model import keep_in

DISK_FULL_RETRIES = 3


@dataclass(frozen=True)
class _Save:
    """A checkpoint that is being written, and the lines of pass rates to write after it."""

    step: int
    pass_rates: list[str]


class Saver:
    """Writes checkpoints. When the disk is full, it tries again after later steps.

    Attributes:
        saved: the last step that is on disk; None before the first.
        failed: how many saves in a row met a full disk.
    """

    def __init__(self, folder: RunFolder, learner: Learning, view: View) -> None:
        self.saved: int | None = None
        self.failed = 0
        self._folder = folder
        self._learner = learner
        self._view = view
        self._under_way: _Save | None = None

    def begin(self, entry: checkpoint.CheckpointEntry, pass_rates: list[str]) -> None:
        """Begin to save the learner's present state.

        Args:
            entry: the checkpoint without its tensors.
            pass_rates: lines of the run's history, written after the checkpoint.

        Raises:
            StropError: a parameter is not finite.
        """
        broken = self._learner.broken()
        if broken is not None:
            raise StropError(
                f"step {entry.step}: parameter {broken} is not finite, so the step is not saved; go back with "
                f"{command('train --resume', self._folder.path)}, and lower optim.lr in a new run"
            )
        extra: dict[str, Any] = {"rng": {"torch": torch.get_rng_state()}}
        self._learner.save(entry, extra)
        self._under_way = _Save(entry.step, pass_rates)

    def settle(self, wait: bool, last: bool = False) -> None:
        """Record the outcome of the current save if it is finished; with `wait`, wait for it.

        Raises:
            DiskFull: the disk was full several times in a row, or this is the `last` attempt.
        """
        if self._under_way is None:
            return
        try:
            if not self._learner.settle(wait):
                return
        except checkpoint.DiskFull as error:
            self._under_way = None
            self.failed += 1
            if last or self.failed >= DISK_FULL_RETRIES:
                raise
            self._view.note(f"{error}; trying again after the next step")
            return
        self.saved, self.failed = self._under_way.step, 0
        self._folder.write_pass_rates(self._under_way.pass_rates)
        self._under_way = None


PATIENCE = 0.2  # seconds of each wait for an evaluation


class Interrupted(StropError):
    """The run was interrupted; its last finished step is checkpointed."""

    exit_code = 130


@dataclass(frozen=True)
class Summary:
    """How a run ended. `model` is relative to the run folder; pass rates are fractions, None where not evaluated."""

    steps: int
    model: str
    train_pass_rate: float | None
    held_out_pass_rate: float | None
    best_step: int | None


@dataclass(frozen=True, eq=False)
class RunOutcome:
    """A finished run: its summary, and this process's evaluations on held-out problems by step."""

    summary: Summary
    evaluations: dict[int, EvaluationResult]


def train(config: RunConfig, out: Path, view: View) -> RunOutcome:
    """Start a run in a new folder and train it to its end.

    Raises:
        StropError: see the parts; Ctrl-C raises `Interrupted` after a clean checkpoint.
    """
    # The parts are built before the folder, so that a failure leaves no folder behind.
    config = as_asked(validated(config))
    check_free(out)
    refuse(findings(config))
    parts = assemble(config, view)
    _say_time(parts, view)
    folder = RunFolder.create(out, parts.config.model_dump(mode="json"))
    try:
        folder.write_json(PROBLEMS, _record(parts).to_json())
        return _to_the_end(parts.config, parts, folder, view)
    finally:
        folder.close()


def resume(out: Path, view: View, step: int | None = None, sets: Sequence[str] = ()) -> RunOutcome:
    """Continue from the checkpoint of `step` (None: the newest), or from the start if there is none yet.

    Metrics, rollouts and checkpoints after that step are removed. `sets` change the configuration from there on, and
    config.json with it.

    Raises:
        StropError: see the parts; a setting that cannot change, fewer steps than are done, or a setting that no step
            is left to use.
    """
    folder = RunFolder.resume(out)
    try:
        config, found = point(folder, step, sets)
        note(rising_rate(config, found), view)
        return _to_the_end(config, assemble(config, view), folder, view, resumed=True, found=found)
    finally:
        folder.close()


def _say_time(parts: Parts, view: View) -> None:
    """Say how long a step takes, where this process decodes and trains."""
    engine = parts.executor.engine if isinstance(parts.executor, InProcess) else None
    if not isinstance(engine, TorchEngine) or not isinstance(parts.learner, Learner):
        return
    config, problems = parts.config, parts.data.train
    if not is_tiny(config, parts.policy):
        note([of_time(config, measure(engine, parts.learner.trainer, config, problems), problems)], view)


def _record(parts: Parts) -> ProblemRecord:
    return ProblemRecord.of(parts.data, questions_of(parts.config.model.path) or frozenset())


def _to_the_end(
    config: RunConfig, parts: Parts, folder: RunFolder, view: View, resumed: bool = False,
    found: checkpoint.Checkpoint | None = None,
) -> RunOutcome:  # fmt: skip
    """Train a run to its end. After a loss of the trainer's ranks, it continues from its last checkpoint.

    A `resumed` run goes on from the checkpoint `found`; without one it starts over.
    """
    evaluations: dict[int, EvaluationResult] = {}
    losses = 0
    run: _Run | None = None
    with keep_in(folder.path):
        while True:
            try:
                run = _Run(config, parts, folder, view, evaluations)
                if resumed:
                    run.go_on(found)
                return RunOutcome(run.go(), evaluations)
            except RankGroupLost as error:
                losses += 1
                stopping = run is not None and run.loop.interrupted
                if stopping or losses > config.orchestration.trainer_restarts:
                    raise
                view.note(f"{error}; going on from the last checkpoint (loss {losses})")
            finally:
                parts.close()
            resumed, found = True, checkpoint_of(folder)
            parts = assemble(config, view)


class _Run:
    """A run from its start, or from one resume, to its end or the loss of its ranks."""

    def __init__(
        self, config: RunConfig, parts: Parts, folder: RunFolder, view: View, evaluations: dict[int, EvaluationResult]
    ) -> None:
        self.config = config
        self.folder = folder
        self.watch = Watch(folder.path, config.orchestration.watchdog_seconds, view)
        self.view = self.watch.view
        self.parts = parts
        parts.start(folder.path, self.view)
        self.loop = Loop(
            config, parts.data.train, parts.executor, parts.judge, parts.learner, self.view, teacher_prompts(config)
        )
        sizes = parts.learner.sizes()
        trainers, generators = devices_apart(config, sizes.devices)
        self.compute = ComputeMeter(
            trainers, sizes.computing_parameters, generators, sizes.attention_width, sizes.peak
        )
        self.validation = Validation(
            parts.validation, parts.evaluator, config.steps, self.compute, evaluations, folder.path / UNTRAINED,
            self.view.note,
        )  # fmt: skip
        self.boundary: dict[str, Any] | None = None  # the loop after the last step that this process has finished
        self.saver = Saver(folder, parts.learner, self.view)
        self.resumed_at: int | None = None

    def go_on(self, found: checkpoint.Checkpoint | None) -> None:
        """Restore a checkpoint and remove everything after it; None starts over."""
        refuse_other_problems(self.folder, self.parts.data, found)
        if self.folder.read_problems() is None:
            self.folder.write_json(PROBLEMS, _record(self.parts).to_json())
        if found is None:
            self.resumed_at = 0
            self.folder.write_json("config.json", self.config.model_dump(mode="json"))
            self.folder.truncate(-1)
            (self.folder.path / CHANGES).unlink(missing_ok=True)
            return
        self.loop.load(found.state["loop"])
        self.compute.load(found.state["compute"])
        self._measure_again(self.validation.load(found.state, self.folder.read_metrics(), found.step))
        self.parts.learner.load(self.folder.checkpoints.resolve(), found.step)
        torch.set_rng_state(found.tensors["rng"]["torch"])
        now = self.config.model_dump(mode="json")
        changed = SettingChange.between(found.step, found.state["config"], now)
        if changed.settings:
            self.view.note(f"goes on with other settings {changed.said()}")
            self.loop.curriculum.replan(self.parts.learner, self.loop.step)
        # Later work is removed only now, when nothing can be refused any more.
        self.resumed_at = found.step
        write_change(self.folder, found.step, found.state["config"], now)
        self.folder.write_json("config.json", now)
        self.folder.truncate(found.step)
        checkpoint.rewind(self.folder.checkpoints, found.step)
        self.view.passing(f"going on after step {found.step} of {self.config.steps}")

    def _measure_again(self, steps: Sequence[int]) -> None:
        """Repeat the evaluations of earlier steps that were unfinished when the run ended.

        Their weights are loaded into the policy, before the weights of the checkpoint are.
        """
        policy = self.parts.policy
        for step in steps:
            if step > 0:
                try:
                    kept = checkpoint.load(self.folder.checkpoints, step)
                except StropError as error:  # not kept, or damaged: the run continues without this evaluation
                    self.view.note(
                        f"the evaluation of step {step} is lost: it was under way when the run ended, and {error}"
                    )
                    continue
                policy.load_weights(kept.tensors["policy"])
            self.view.passing(f"the evaluation of step {step} was under way when the run ended, and is done again")
            self.validation.begin(step, WeightsOf(policy))

    def go(self) -> Summary:
        """Train the remaining steps, then write the model and the summary."""
        with self.watch:
            return self._go()

    def _go(self) -> Summary:
        trackers = Trackers(
            self.config.trackers, self.folder, self.config.model_dump(mode="json"), self.resumed_at
        )
        try:
            with on_interrupt(self._ask_to_stop):
                try:
                    self.loop.reopen()
                    self.loop.clock.lap()  # the start of generators does not count as part of a step
                    self._steps(trackers)
                    self._wind_up(trackers)
                except Stopped:
                    self.view.passing("stopping: the last finished step is being saved")
                    self._save_checkpoint(last=True)
                    raise self._interrupted() from None
        finally:
            trackers.close()
            self.parts.executor.close()
        return self._finish()

    def _steps(self, trackers: Trackers) -> None:
        config, loop = self.config, self.loop
        self.view.stage("rl", config.steps)
        found = self._evaluate(loop.step, trackers)  # before training, or an unfinished one on resume
        spent = loop.clock.lap()
        if found:
            if loop.step == 0:  # the record of a later step has this already
                found["seconds/evaluation"] = spent["evaluation"]
            trackers.log(loop.step, found)
            self.view.evaluated(loop.step, found)
        while loop.step < config.steps:
            try:
                record = loop.next_step()
            except NothingToLearn as error:
                self.folder.write_rollouts(loop.step + 1, error.groups)
                self._wind_up(trackers)
                raise
            except NoProblemsLeft:
                self._wind_up(trackers)
                raise
            if record is None:
                raise Stopped
            self._record(record, trackers)

    def _interrupted(self) -> Interrupted:
        measured = f", {_listed(self.validation.outstanding)} not yet evaluated" if self.validation.outstanding else ""
        return Interrupted(
            f"stopped after step {self.loop.step} of {self.config.steps}{measured}; "
            f"go on with: {command('train --resume', self.folder.path)}"
        )

    def _record(self, record: StepRecord, trackers: Trackers) -> None:
        """Record a finished step: rollouts, evaluation, metrics, checkpoint. A resume relies on this order."""
        config, step = self.config, record.step
        self.boundary = self.loop.state()
        row = dict(record.metrics)
        self.folder.write_rollouts(step, record.groups, record.samples, self._batch_record(record))
        try:
            row |= self._evaluate(step, trackers)
        except BaseException:  # the step is trained even if its evaluation fails
            trackers.log(step, row | self._spent(row))
            self._save_checkpoint(last=True)
            raise
        row |= self._spent(row)
        trackers.log(step, row)
        self.view.advance(step, row)
        self.saver.settle(wait=False)
        best = config.checkpoint.keep_best and self.validation.may_be_best(step)
        if best or step % config.checkpoint.every == 0 or self.saver.failed:
            self._save_checkpoint()

    def _batch_record(self, record: StepRecord) -> BatchRecord:
        dtype = str(next(self.parts.policy.parameters()).dtype).removeprefix("torch.")
        made = MadeWith(machine(), torch.get_num_threads(), dtype, tuple(self.parts.settled))
        inputs, weights = inputs_of(record.groups[record.skipped :]), self.parts.learner.digest()
        return BatchRecord(record.kept, record.skipped, record.states, inputs, weights, made)

    def _spent(self, row: Row) -> Row:
        """The step's seconds by section, and the run's compute so far."""
        seconds = self.loop.clock.lap()
        training = seconds["step"] - seconds.get("evaluation", 0.0)
        spent: Row = {f"seconds/{name}": value for name, value in seconds.items()}
        spent |= self.compute.add(seconds, row)
        spent["idle/trainer"] = (seconds["rollout"] + seconds["verify"]) / seconds["step"]
        spent["tokens_per_second"] = (row["tokens/generated"] or 0.0) / training
        return spent

    def _evaluate(self, step: int, trackers: Trackers) -> Row:
        """Start the evaluation due after `step`; return its metrics if it has finished, and record others that have."""
        with self.loop.clock.section("evaluation"):
            while self.validation.due(step) and not self.validation.has_room and not self.loop.interrupted:
                self._write_late(trackers, PATIENCE)
            self.validation.begin(step, self.parts.learner)
        return self._write_late(trackers, of=step)

    def _write_late(self, trackers: Trackers, patience: float = 0.0, of: int | None = None) -> Row:
        """Record finished evaluations, except that of step `of`, which is returned: its step has no line yet."""
        own: Row = {}
        for step, row in self.validation.collect(patience):
            if step == of:
                own = row
            else:
                trackers.log(step, row)
                self.view.evaluated(step, row)
        return own

    def _wind_up(self, trackers: Trackers) -> None:
        """Save the last step, wait for unfinished evaluations, and keep the best checkpoints by their results."""
        self._save_checkpoint(last=True)
        if self.validation.outstanding:
            self.view.passing(f"training is done; waiting for the evaluation of {_listed(self.validation.outstanding)}")
        while self.validation.outstanding:
            if self.loop.interrupted:
                raise self._interrupted()
            self._write_late(trackers, PATIENCE)
        checkpoint.prune(self.folder.checkpoints, self.validation.retention(self.config.checkpoint))

    def _save_checkpoint(self, last: bool = False) -> None:
        """Begin to save the last finished step, unless it is saved; with `last`, wait for it."""
        self.saver.settle(wait=True)
        if self.boundary is None or self.boundary["step"] == self.saver.saved:
            return
        step = self.boundary["step"]
        state: dict[str, Any] = {
            "loop": self.boundary,
            "compute": self.compute.state(),
            **self.validation.state(),
            "data": self.parts.data.train.fingerprint,
            "config": self.config.model_dump(mode="json"),
        }
        keep, metric = self.validation.retention(self.config.checkpoint), self.validation.held_out.get(step)
        entry = checkpoint.CheckpointEntry(self.folder.checkpoints.resolve(), step, state, metric, keep)
        history = self.loop.curriculum.history.lines(self.parts.data.train.problems)
        self.saver.begin(entry, list(history))
        if last:
            self.saver.settle(wait=True, last=True)

    def _finish(self) -> Summary:
        path = self.folder.path.resolve()  # a rank may run in another folder
        self.parts.learner.export(self.parts.tokenizer, path / self.folder.model.name, path / "critic")
        write_questions(self.folder.model, self.folder)
        trained = [row["pass_rate"] for row in self.folder.read_metrics() if "pass_rate" in row]
        summary = Summary(
            steps=self.loop.step,
            model=str(self.folder.model.relative_to(self.folder.path)),
            train_pass_rate=trained[-1] if trained else None,
            held_out_pass_rate=self.validation.held_out.get(self.loop.step),
            best_step=self.validation.best_step(),
        )
        self.folder.write_json(SUMMARY, self.folder.read_summary() | asdict(summary))
        return summary

    def _ask_to_stop(self) -> None:
        # A signal may arrive while the view is drawing: nothing is printed from here.
        self.loop.interrupted = True


def _listed(steps: Sequence[int]) -> str:
    """`step 4` or `steps 4, 6`."""
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"
