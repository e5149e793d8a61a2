"""A run from start to end: the loop's records written down, evaluated, checkpointed; resumed; ended cleanly.

    summary = train(resolve("grpo"), Path("runs/grpo"), view)
    summary = resume(Path("runs/grpo"), view)          # goes on bit for bit where the last checkpoint stands
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strop.assembly import Parts, assemble
from strop.compute import ComputeMeter, devices_of
from strop.config import RunConfig, evaluation_sampling, parse
from strop.console import View
from strop.data import NoProblemsLeft
from strop.evaluation import EvaluationResult, evaluate
from strop.interrupt import on_interrupt
from strop.loop import Loop, NothingToLearn, StepRecord
from strop.model_files import export
from strop.plots import plot_run
from strop.run_folder import RunFolder, check_free
from strop.seeds import derive
from strop.tracking import Trackers, open_trackers
from strop.trainer import checkpoint
from strop.trainer.critic import Critic
from strop.types import InputError, StropError

DISK_FULL_RETRIES = 3


class Interrupted(StropError):
    """Ctrl-C: the last finished step is checkpointed."""

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
class Outcome:
    """A finished run for callers from Python: its summary, and this process's evaluations by step."""

    summary: Summary
    evaluations: dict[int, EvaluationResult]
    parameters: int
    seconds: float


def train(config: RunConfig, out: Path, view: View, *, replace: bool = False) -> Outcome:
    """Start a run in a new folder and train it to its end.

    Raises:
        StropError: see the parts; Ctrl-C raises `Interrupted` after a clean checkpoint.
    """
    # The parts come before the folder: what cannot be loaded leaves none behind.
    check_free(out, replace)
    parts = assemble(config.validate_run(), view)
    folder = RunFolder.create(out, config.model_dump(mode="json"), replace=replace)
    try:
        return _Run(config, parts, folder, view).go()
    finally:
        folder.close()


def resume(out: Path, view: View, step: int | None = None) -> Outcome:
    """Go on from the checkpoint of `step` (None: the newest), or from the start where there is none yet.

    What the run wrote after that checkpoint is forgotten: metrics, rollouts and later checkpoints.
    """
    folder = RunFolder.resume(out)
    try:
        stored = folder.read_json("config.json")
        if "demonstrations" in stored:
            raise InputError(f"{out} is a fine-tuning run; go on with it by strop sft --resume {out}")
        config = parse(stored, str(folder.config_path))
        at = checkpoint.latest(folder.checkpoints) if step is None else step
        found = None if at is None else checkpoint.load(folder.checkpoints, at)
        run = _Run(config, assemble(config, view), folder, view)
        run.go_on(found)
        return run.go()
    finally:
        folder.close()


class _Run:
    """One process's share of a run."""

    def __init__(self, config: RunConfig, parts: Parts, folder: RunFolder, view: View) -> None:
        self.config = config
        self.folder = folder
        self.view = view
        self.parts = parts
        self.loop = Loop(config, parts.data.train, parts.executor, parts.judge, parts.learner, view)
        self.compute = ComputeMeter(devices_of(parts.policy.device), parts.policy.computing_parameters)
        self.boundary = self.loop.state()
        self.saved: int | None = None
        self.failed_saves = 0
        self.held_out: dict[int, float] = {}
        self.evaluations: dict[int, EvaluationResult] = {}
        self.resumed_at: int | None = None

    def go_on(self, found: checkpoint.Checkpoint | None) -> None:
        """Take over a checkpoint's state and forget what came after it; None starts over."""
        if found is None:
            self.resumed_at = 0
            self.folder.truncate(-1)
            return
        if found.state["data"] != self.parts.data.train.fingerprint:
            raise InputError(
                f"{self.folder.path}: the training problems are not those the run began with; restore them, or start a "
                f"new run: strop train {self.folder.config_path}"
            )
        self.loop.load(found.state["loop"])
        self.parts.learner.load_state_dict(found.tensors, found.state["learner"])
        torch.set_rng_state(found.tensors["rng"]["torch"])
        self.compute.load(found.state["compute"])
        self.held_out = {int(at): rate for at, rate in found.state["held_out"].items()}
        self.loop.reopen()
        self.boundary, self.saved = found.state["loop"], found.step
        if found.state["config"] != self.config.model_dump(mode="json"):
            changed = f"{self.folder.config_path} was changed since step {found.step}"
            self.view.note(f"{changed}: the run goes on with the change")
            loop = self.loop
            self.parts.learner.replan(loop.curriculum.updates_left(loop.step), loop.config.steps - loop.step)
        # Only now, when nothing can refuse any more, is later work forgotten.
        self.resumed_at = found.step
        self.folder.truncate(found.step)
        checkpoint.rewind(self.folder.checkpoints, found.step)
        self.view.note(f"going on after step {found.step} of {self.config.steps}")

    def go(self) -> Outcome:
        """Train what is left, write the model, the curves and the summary."""
        begin = time.perf_counter()
        trackers = open_trackers(
            self.config.trackers, self.folder, self.config.model_dump(mode="json"), self.resumed_at
        )
        try:
            with on_interrupt(self._ask_to_stop):
                self._steps(trackers)
                self._save_checkpoint(last=True)
        finally:
            trackers.close()
            self.parts.executor.close()
            self.parts.judge.close()
            self.parts.evaluation_judge.close()
        summary = self._finish()
        parameters = sum(weight.numel() for weight in self.parts.policy.weights().values())
        return Outcome(summary, self.evaluations, parameters, time.perf_counter() - begin)

    def _steps(self, trackers: Trackers) -> None:
        config, loop = self.config, self.loop
        self.view.stage("rl", config.steps)
        if config.evaluation.every is not None and loop.step == 0 and not self.held_out:
            found = self._evaluate(0)
            trackers.log(0, found)
            self.view.note(f"before training: held-out pass rate {found['evaluation/pass_rate']:.1%}")
            loop.clock.lap()
        while loop.step < config.steps:
            try:
                record = loop.next_step()
            except NothingToLearn as error:
                self.folder.write_rollouts(loop.step + 1, error.groups)
                self._save_checkpoint(last=True)
                raise
            except NoProblemsLeft:
                self._save_checkpoint(last=True)
                raise
            if record is None:
                self.view.note("stopping: the last finished step is being saved")
                self._save_checkpoint(last=True)
                raise Interrupted(
                    f"stopped after step {loop.step} of {config.steps}; "
                    f"go on with: strop train --resume {self.folder.path}"
                )
            self._record(record, trackers)

    def _record(self, record: StepRecord, trackers: Trackers) -> None:
        """Write down a finished step: rollouts, evaluation, metrics, checkpoint, in the order resume relies on."""
        config, step = self.config, record.step
        self.boundary = self.loop.state()
        row = dict(record.metrics)
        self.folder.write_rollouts(step, record.groups)
        every = config.evaluation.every
        evaluated = every is not None and (step % every == 0 or step == config.steps)
        if evaluated:
            try:
                row |= self._evaluate(step)
            except BaseException:  # the step is trained, whatever keeps it from being measured
                trackers.log(step, row)
                self._save_checkpoint(last=True)
                raise
        seconds = self.loop.clock.lap()
        row |= {f"seconds/{name}": value for name, value in seconds.items()}
        row |= self.compute.add(seconds, row)
        training = seconds["step"] - seconds.get("evaluation", 0.0)
        row["tokens_per_second"] = (row["tokens/generated"] or 0.0) / training
        trackers.log(step, row)
        self.view.advance(step, row)
        best = evaluated and config.checkpoint.keep_best and step == self._best_step()
        if best or step % config.checkpoint.every == 0 or self.failed_saves:
            self._save_checkpoint()

    def _best_step(self) -> int | None:
        """The earliest step with the highest held-out pass rate; the untrained model does not compete."""
        trained = {step: rate for step, rate in self.held_out.items() if step > 0}
        return max(trained, key=lambda step: (trained[step], -step), default=None)

    def _evaluate(self, step: int) -> dict[str, float | None]:
        result = self.measure(step)
        self.held_out[step] = result.pass_rate
        self.evaluations[step] = result
        return {"evaluation/pass_rate": result.pass_rate, "evaluation/stderr": result.stderr} | self._by_domain(result)

    def _by_domain(self, result: EvaluationResult) -> dict[str, float | None]:
        """The pass rate of each domain, where the held-out problems are of several."""
        assert self.parts.data.held_out is not None
        domain_of = {problem.id: problem.domain for problem in self.parts.data.held_out.problems}
        rates: dict[str, list[float]] = {}
        for name, rate in zip(result.problem_ids, result.pass_rates, strict=True):
            rates.setdefault(domain_of[name], []).extend([] if np.isnan(rate) else [float(rate)])
        if len(rates) == 1:
            return {}
        return {f"evaluation/pass_rate/{name}": sum(of) / len(of) for name, of in sorted(rates.items()) if of}

    def measure(self, step: int) -> EvaluationResult:
        """Pass rate on the held-out problems. The samples' seeds are the same at every step, so points compare."""
        config, held_out = self.config, self.parts.data.held_out
        if held_out is None:
            raise StropError("evaluation.every is set, but no problems are held out; set data.held_out")
        with self.loop.clock.section("evaluation"):
            self.parts.evaluator.update_weights(self.parts.policy.weights().items(), self.loop.gate.version)
            samples = config.evaluation.samples_per_problem
            return evaluate(
                self.parts.evaluator,
                held_out,
                samples,
                evaluation_sampling(config),
                config.verifier,
                seed=derive(config.seed, "evaluation"),
                progress=lambda done, total, rollout: self.view.aside("evaluation", done, total),
                judge=self.parts.evaluation_judge,
            )

    def _save_checkpoint(self, last: bool = False) -> None:
        """Save the last finished step, unless it is saved. A full disk is met by trying again at later steps."""
        step = self.boundary["step"]
        if step == self.saved or step == 0:
            return
        weights = self.parts.policy.weights()
        broken = [name for name, weight in weights.items() if not torch.isfinite(weight).all()]
        if broken:
            raise StropError(
                f"step {step}: parameter {broken[0]} is not finite, so the step is not saved; go back with "
                f"strop train --resume {self.folder.path}, and lower optim.lr in a new run"
            )
        tensors, learner = self.parts.learner.state_dict()
        groups = {**tensors, "rng": {"torch": torch.get_rng_state()}}
        state: dict[str, Any] = {
            "loop": self.boundary,
            "learner": learner,
            "compute": self.compute.state(),
            "held_out": self.held_out,
            "data": self.parts.data.train.fingerprint,
            "config": self.config.model_dump(mode="json"),
        }
        settings = self.config.checkpoint
        keep = checkpoint.Retention(last=settings.keep, best=int(settings.keep_best))
        try:
            checkpoint.save(
                self.folder.checkpoints, step, groups, state, metric=self.held_out.get(step), retention=keep
            )
        except checkpoint.DiskFull as error:
            self.failed_saves += 1
            if last or self.failed_saves >= DISK_FULL_RETRIES:
                raise
            self.view.note(f"{error}; trying again after the next step")
            return
        self.saved, self.failed_saves = step, 0
        self.folder.write_pass_rates(self.loop.curriculum.history.lines([p.id for p in self.parts.data.train.problems]))

    def _finish(self) -> Summary:
        export(self.parts.policy.model, self.parts.tokenizer, self.folder.model)
        if self.parts.learner.critic is not None:
            critic = self.parts.learner.critic.policy
            assert isinstance(critic, Critic)
            critic.export(self.parts.tokenizer, self.folder.path / "critic")
        trained = [row["pass_rate"] for row in self.folder.read_metrics() if "pass_rate" in row]
        summary = Summary(
            steps=self.loop.step,
            model=str(self.folder.model.relative_to(self.folder.path)),
            train_pass_rate=trained[-1] if trained else None,
            held_out_pass_rate=self.held_out.get(self.loop.step),
            best_step=self._best_step(),
        )
        path = self.folder.path / "summary.json"
        before = self.folder.read_json(path.name) if path.exists() else {}
        self.folder.write_json(path.name, before | asdict(summary))
        plot_run(self.folder.path)
        return summary

    def _ask_to_stop(self) -> None:
        # A signal may arrive while the view is drawing: nothing is printed from here.
        self.loop.interrupted = True
