"""Whole runs: the same from its config.json only, after Ctrl-C, after kill -9 at any moment, across epochs."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runs import assert_same_run, finished_run, metrics, parameters, small_config
from tests.watching import Notes, in_child
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.base import imports, progress
from strop.base.imports import allow_module
from strop.base.metrics_file import read_metrics
from strop.base.types import InputError, Problem, StropError, Verdict
from strop.base.view import SilentView
from strop.cli.run_commands import report_run
from strop.config.parse import edit
from strop.engines.torch.engine import TorchEngine
from strop.model.tensor_file import Groups
from strop.orchestration.executor import InProcess, Probe, Publication, WeightMismatch
from strop.orchestration.rank_group import RankGroupLost
from strop.recipes.resolve import resolve
from strop.report.runs import read_runs
from strop.report.status import read_status
from strop.report.training_figures import plot_run
from strop.run.doctor import review
from strop.run.folder import RunFolder, read_changes
from strop.run.run import Interrupted, Summary, _Run, resume, train
from strop.run.validation import Validation
from strop.training import checkpoint
from strop.training.step import NonFiniteLoss, Trainer
from strop.verifiers.base import Verifier
from strop_verify.verdict import Status


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run with all its checkpoints. Tests that change it take a copy."""
    return finished_run(tmp_path_factory, "checkpoint.keep=4")


def test_the_run_folder_holds_everything(finished: Path) -> None:
    rows = metrics(finished)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    measured = ("pass_rate", "stderr", "interval_low", "interval_high", "entropy", "version", "newest_version")
    assert rows[0].keys() == {"step", *(f"evaluation/{name}" for name in measured)}
    untrained = json.loads((finished / "untrained.json").read_text())["pass_rates"].values()
    assert sum(untrained) / len(untrained) == pytest.approx(rows[0]["evaluation/pass_rate"])
    gained = rows[4]["evaluation/pass_rate"] - rows[0]["evaluation/pass_rate"]
    assert rows[4]["evaluation/gain"] == pytest.approx(gained)
    assert rows[4]["evaluation/gain_low"] <= gained <= rows[4]["evaluation/gain_high"]
    assert "evaluation/pass_rate" in rows[2] and "evaluation/pass_rate" not in rows[1]
    assert [row["version"] for row in rows[1:]] == [1, 2, 3, 4]
    assert all(row["lag/max"] == 0 and row["groups/trained"] == 6 for row in rows[1:])
    assert sorted(p.name for p in (finished / "rollouts").iterdir()) == [f"step_{s:06d}.parquet" for s in (1, 2, 3, 4)]
    for line in (finished / "metrics.jsonl").read_text().splitlines()[1:]:
        row = json.loads(line)
        whole, generating = row["seconds/step"], row["seconds/rollout"] + row["seconds/verify"]
        assert row["idle/trainer"] == pytest.approx(generating / whole, rel=1e-5)
        training = whole - row.get("seconds/evaluation", 0.0)
        assert row["tokens_per_second"] == pytest.approx(row["tokens/generated"] / training, rel=1e-5)
    assert len(plot_run(finished).read_bytes()) > 10_000
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["steps"] == 4 and summary["model"] == "model"


def test_the_exported_model_is_the_trained_one(finished: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(finished / "model")
    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    assert tokenizer.decode(tokenizer.encode("3+5=", add_special_tokens=False)) == "3+5="
    saved = checkpoint.load(finished / "checkpoints").tensors["policy"]
    assert all(torch.equal(value, saved[name]) for name, value in model.named_parameters())
    manifest = json.loads((checkpoint.folder_of(finished / "checkpoints", 4) / "manifest.json").read_text())
    assert manifest["metric"] == metrics(finished)[4]["evaluation/pass_rate"]


def test_training_changed_the_model(finished: Path, tmp_path: Path) -> None:
    train(small_config("steps=1", "optim.lr=1e-12"), tmp_path / "still", SilentView())
    still, moved = parameters(tmp_path / "still"), parameters(finished)
    assert max((still[name] - moved[name]).abs().max() for name in still) > 1e-4


def test_a_run_from_its_config_alone_is_the_same_run(finished: Path, tmp_path: Path) -> None:
    train(resolve(str(finished / "config.json")), tmp_path / "again", SilentView())
    assert_same_run(finished, tmp_path / "again")


@pytest.mark.parametrize("step", [1, 3])
def test_going_back_to_a_checkpoint_repeats_the_run(finished: Path, tmp_path: Path, step: int) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "back"))
    kept = checkpoint.load(out / "checkpoints", step).tensors["rng"]["torch"]
    torch.manual_seed(9)
    view = GoingOn()
    resume(out, view, step=step)
    [(note, generator)] = view.notes
    assert note == f"going on after step {step} of 4" and torch.equal(generator, kept)
    assert spent(out) == spent(finished)
    finished_rows, rows = metrics(finished), metrics(out)
    assert rows == finished_rows
    assert all(torch.equal(a, b) for a, b in zip(parameters(finished).values(), parameters(out).values(), strict=True))


def test_resuming_a_finished_run_changes_nothing(finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "done"))
    view = GoingOn()
    resume(out, view)
    assert_same_run(finished, out)
    assert [note for note, _ in view.notes] == ["going on after step 4 of 4"]
    assert json.loads((out / "status.json").read_text())["notes"] == []


class GoingOn(SilentView):
    def __init__(self) -> None:
        self.notes: list[tuple[str, Tensor]] = []

    def note(self, text: str) -> None:
        if "going on" in text or "goes on" in text:
            self.notes.append((text, torch.get_rng_state()))


def spent(run: Path) -> list[float | None]:
    """The compute of the steps, as far as it does not depend on the clock."""
    return [row.get("compute/flops") for row in read_metrics(run / "metrics.jsonl")]


class StopsBefore(SilentView):
    """Ctrl-C once the untrained model is measured."""

    def evaluated(self, step: int, values: object) -> None:
        if step == 0:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_run_that_was_stopped_before_its_first_step_begins_again(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(small_config(), out, StopsBefore())
    assert checkpoint.latest(out / "checkpoints") is None and [row["step"] for row in metrics(out)] == [0]
    resume(out, SilentView())
    assert_same_run(finished, out)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == len(metrics(out))


@pytest.mark.parametrize(("stopped", "begun"), [(False, 3), (True, 1)])
def test_a_lost_trainer_is_replaced_as_often_as_the_budget_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool, begun: int
) -> None:
    runs: list[object] = []

    def lost(run: _Run) -> Summary:
        runs.append(run.parts)
        run.loop.interrupted = stopped
        raise RankGroupLost("the trainer is lost")

    monkeypatch.setattr(_Run, "go", lost)
    view = GoingOn()
    with pytest.raises(RankGroupLost):
        train(small_config("orchestration.trainer_restarts=2"), tmp_path / "run", view)
    assert len({id(parts) for parts in runs}) == len(runs) == begun
    again = [f"the trainer is lost; going on from the last checkpoint (loss {loss})" for loss in range(1, begun)]
    assert [note for note, _ in view.notes] == again


class StopsAfter(SilentView):
    """Sends a signal to this process when a training step is done."""

    def __init__(self, step: int, number: int) -> None:
        self.step, self.number, self.name = step, number, ""

    def stage(self, name: str, total: int | None, unit: str = "steps") -> None:
        self.name = name

    def advance(self, step: int, metrics: object) -> None:
        if self.name == "rl" and step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_saves_the_last_step(finished: Path, tmp_path: Path, number: int) -> None:
    out = tmp_path / "stopped"
    config = small_config("checkpoint.every=100", "evaluation.every=100")
    before = signal.signal(number, signal.default_int_handler)  # nohup ignores SIGHUP, and the run then does too
    try:
        with pytest.raises(Interrupted) as caught:
            train(config, out, StopsAfter(2, number))
    finally:
        signal.signal(number, before)
    assert caught.value.exit_code == 130
    assert checkpoint.latest(out / "checkpoints") == 2
    assert not [note for note in read_status(RunFolder.open(out)).notes if "stopping" in note], "it has stopped"
    stored = json.loads((out / "config.json").read_text())
    stored["checkpoint"]["keep"] = 7
    (out / "config.json").write_text(json.dumps(stored))
    view = GoingOn()
    resume(out, view)
    changed, _ = (note for note, _ in view.notes)
    assert checkpoint.latest(out / "checkpoints") == 4
    assert changed == "goes on with other settings after step 2: checkpoint.keep 2 → 7"
    assert read_changes(RunFolder.open(out)) == [(2, [("checkpoint.keep", "2", "7")])]
    assert [row["step"] for row in metrics(out)] == [0, 1, 2, 3, 4]
    assert all(torch.equal(a, b) for a, b in zip(parameters(finished).values(), parameters(out).values(), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_kill_9_at_any_moment_loses_and_repeats_nothing(finished: Path, tmp_path: Path, seed: int) -> None:
    out = tmp_path / "killed"
    moment = random.Random(seed)

    def go() -> None:
        if (out / "run.json").exists():
            resume(out, SilentView())
        else:
            train(small_config(), out, SilentView())

    for _ in range(3):
        child = in_child(go)
        time.sleep(moment.uniform(0.1, 1.5))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    go()
    assert_same_run(finished, out)


def test_epochs_follow_each_other_without_a_stop(tmp_path: Path) -> None:
    # 16 training problems, 6 a step: the epoch ends inside the third step.
    sets = ("data.source.count=24", "steps=6", "checkpoint.every=2", "evaluation.every=none")
    train(small_config(*sets), tmp_path / "whole", SilentView())
    seen = [group for step in range(1, 7) for group in problems_of(tmp_path / "whole", step)]
    assert len(seen) == 36
    assert sorted(seen[:16]) == sorted(seen[16:32]) and len(set(seen[:16])) == 16
    with pytest.raises(Interrupted):
        train(small_config(*sets), tmp_path / "parts", StopsAfter(3, signal.SIGINT))
    resume(tmp_path / "parts", SilentView())
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def problems_of(run: Path, step: int) -> list[str]:
    rows = RunFolder.open(run).read_rollouts(step)
    return [row["problem_id"] for row in rows[::4]]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Trainer.update

    def poisoned(self: Trainer, batch: object, context: object) -> object:
        if self.updates == 2:
            with torch.no_grad():
                next(iter(self.policy.parameters()))[:] = float("nan")
        return update(self, batch, context)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "update", poisoned)
    with pytest.raises(NonFiniteLoss, match="step 3, update 2, micro-batch 0"):
        train(small_config("checkpoint.every=1", "evaluation.every=none"), tmp_path / "nan", SilentView())
    monkeypatch.undo()
    saved = checkpoint.load(tmp_path / "nan" / "checkpoints")
    assert saved.step == 2
    assert all(torch.isfinite(value).all() for value in saved.tensors["policy"].values())


def test_a_full_disk_is_tried_again_and_then_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_at = {2}

    def save(entry: checkpoint.CheckpointEntry, tensors: Groups) -> Path:
        if entry.step in full_at:
            raise checkpoint.DiskFull(f"no space for step {entry.step}")
        return real(entry, tensors)

    real = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", save)
    train(small_config("evaluation.every=none", "checkpoint.every=2"), tmp_path / "once", SilentView())
    assert checkpoint.steps(tmp_path / "once" / "checkpoints") == [3, 4]
    full_at |= {1, 3}
    with pytest.raises(StropError, match="step 3"):
        train(small_config("evaluation.every=none"), tmp_path / "thrice", SilentView())
    full_at = {4}  # and afterwards there is no step to try it again
    with pytest.raises(StropError, match="step 4"):
        train(small_config("evaluation.every=none"), tmp_path / "last", SilentView())


def test_problems_that_teach_nothing_end_the_run(tmp_path: Path) -> None:
    sets = ("algorithm.selection.zero_variance=drop", "verifier.extract=boxed", "evaluation.every=none")
    for refill in ("false", "true"):
        with pytest.raises(StropError, match="too hard or too easy"):
            train(
                small_config(*sets, f"algorithm.selection.refill={refill}", "batch.prompts_per_step=2"),
                tmp_path / refill,
                SilentView(),
            )
        assert RunFolder.open(tmp_path / refill).rollout_steps() == [1]  # what they were


def test_groups_of_one_are_noted_once_and_not_called_uniform(tmp_path: Path) -> None:
    """They have one outcome each by their nature, and teach all the same."""
    notes = Notes()
    one = ("batch.samples_per_prompt=1", "steps=1", "evaluation.every=none")
    train(small_config(*one), tmp_path / "run", notes)
    assert sum("batch.samples_per_prompt=1" in line for line in notes.lines) == 1
    assert metrics(tmp_path / "run")[-1]["groups/zero_variance_share"] == 1
    assert not any("no group had rollouts of different outcome" in line for line in notes.lines)


def test_dynamic_sampling_fills_the_batch(tmp_path: Path) -> None:
    sets = ("algorithm.selection.zero_variance=drop", "algorithm.selection.refill=true", "steps=2")
    train(small_config(*sets), tmp_path / "refill", SilentView())
    rows = metrics(tmp_path / "refill")[1:]
    assert all(row["groups/trained"] == 6 for row in rows)
    assert any(row["groups/zero_variance_share"] > 0 for row in rows)


def test_a_budget_beyond_the_models_context_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sampling\.max_new_tokens=124"):
        train(small_config("sampling.max_new_tokens=200"), tmp_path / "long", SilentView())


def test_several_updates_a_step(tmp_path: Path) -> None:
    sets = ("batch.updates_per_step=3", "batch.passes_per_batch=2", "steps=2", "optim.lr=3e-2")
    train(small_config(*sets), tmp_path / "updates", SilentView())
    rows = metrics(tmp_path / "updates")[1:]
    assert all(row["updates"] == 6 for row in rows)
    assert rows[-1]["ratio/max"] > 1.001 and rows[-1]["ratio/min"] < 0.999


def test_rollouts_say_what_training_made_of_them(tmp_path: Path) -> None:
    """Advantages by GRPO's formula, and the trainer's log-probs, whose ratio to the generator's the metrics know."""
    config = small_config("steps=2", "batch.passes_per_batch=2", "optim.lr=1e-2", "evaluation.every=none")
    train(edit(config, ["algorithm.selection.zero_variance=drop"]), tmp_path / "run", SilentView())
    folder = RunFolder.open(tmp_path / "run")
    for measured in folder.read_metrics():
        groups: dict[int, list[dict[str, Any]]] = {}
        for row in folder.read_rollouts(int(measured["step"] or 0)):
            groups.setdefault(row["ticket"], []).append(row)
        ratios = []
        for rows in groups.values():
            rewards = np.array([row["reward"] for row in rows])
            if not rewards.std():
                assert all(row["advantages"] is None and row["trainer_logprobs"] is None for row in rows)
                continue
            expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
            for row, advantage in zip(rows, expected, strict=True):
                np.testing.assert_allclose(row["advantages"], np.full(len(row["token_ids"]), advantage), rtol=1e-5)
                ratios.append(np.exp(np.subtract(row["trainer_logprobs"], row["logprobs"])))
        assert np.concatenate(ratios).max() == pytest.approx(measured["ratio/max"], rel=1e-5)
        assert (measured["ratio/max"] or 0.0) > 1.001


def test_an_engine_of_its_own_follows_the_trainer(tmp_path: Path) -> None:
    shared = small_config("evaluation.every=none")
    own = small_config("engine.share_parameters=false", "evaluation.every=none")
    train(shared, tmp_path / "shared", SilentView())
    train(own, tmp_path / "own", SilentView())
    assert metrics(tmp_path / "shared") == metrics(tmp_path / "own")


def test_a_generator_left_behind_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(self: InProcess, version: int, probe: Probe) -> Publication:
        assert isinstance(self.engine, TorchEngine)
        self.engine.set_version(version)
        self._check(0, version, probe, self.engine.verify_weights(probe.token_ids))
        return Publication(version, 0.0)

    monkeypatch.setattr(InProcess, "publish", publish)
    with pytest.raises(WeightMismatch, match=r"generator 0 .* version 1"):
        train(small_config("engine.share_parameters=false", "optim.lr=0.3"), tmp_path / "stale", SilentView())


def test_a_refused_resume_deletes_nothing(finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "changed"))
    config = json.loads((out / "config.json").read_text())
    config["data"]["source"]["seed"] = 99
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="strop train"):
        resume(out, SilentView(), step=2)
    assert checkpoint.latest(out / "checkpoints") == 4
    assert metrics(out) == metrics(finished)


def test_the_best_step_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "best"
    sets = ("steps=6", "checkpoint.every=5", "evaluation.every=1", "checkpoint.keep=1", "optim.lr=1e-2")
    train(small_config(*sets), out, SilentView())
    best = json.loads((out / "summary.json").read_text())["best_step"]
    rates = {row["step"]: row["evaluation/pass_rate"] for row in metrics(out) if row["step"] > 0}
    assert best == min(step for step in rates if rates[step] == max(rates.values()))
    assert checkpoint.load(out / "checkpoints", best).step == best


def test_groups_that_taught_nothing_are_written_down(tmp_path: Path) -> None:
    sets = ("batch.prompts_per_step=1", "algorithm.selection.zero_variance=drop", "evaluation.every=none")
    train(small_config(*sets), tmp_path / "skips", SilentView())
    rows = metrics(tmp_path / "skips")
    tickets = [
        row["ticket"] for step in range(1, 5) for row in RunFolder.open(tmp_path / "skips").read_rollouts(step)[::4]
    ]
    assert len(tickets) > 4 and tickets == sorted(set(tickets)) == list(range(len(tickets)))
    assert all(row["groups/trained"] == 1 for row in rows)


class Slow(Verifier):
    """As one that asks a model over a network."""

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        time.sleep(0.01)
        return Verdict(1.0, Status.CORRECT, "")


def test_verdicts_that_are_waited_for_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verifier that takes seconds left a step silent until the last verdict was there."""
    heard: list[tuple[int, int]] = []

    def hears(what: str, done: int, total: int, at_most: bool = False) -> None:
        if what == "verdicts":
            heard.append((done, total))

    monkeypatch.setattr(progress, "part", hears)
    config = small_config("steps=1").model_copy(update={"verifier": Slow()})
    train(config, tmp_path / "run", SilentView())
    total = config.batch.prompts_per_step * config.batch.samples_per_prompt
    assert heard and {each for _, each in heard} == {total}
    assert [done for done, _ in heard] == sorted(done for done, _ in heard) and heard[-1][0] < total


class OftenFails(Verifier):
    """Cannot judge three completions of five."""

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        fate = zlib.crc32(text.encode()) % 5
        return (
            [Verdict(1.0, Status.CORRECT), Verdict(0.0, Status.WRONG)][fate] if fate < 2 else Verdict(0.0, Status.ERROR)
        )


@pytest.mark.parametrize("refill", [False, True])
def test_a_lone_judged_completion_is_not_trained_on_and_is_counted(tmp_path: Path, refill: bool) -> None:
    sets = [f"algorithm.selection.zero_variance={'drop' if refill else 'keep'}", f"algorithm.selection.refill={refill}"]
    config = small_config("evaluation.every=none", *sets).model_copy(update={"verifier": OftenFails()})
    train(config, tmp_path / "run", SilentView())
    lone = 0
    for row in metrics(tmp_path / "run"):
        groups: dict[int, list[float]] = {}
        for rollout in RunFolder.open(tmp_path / "run").read_rollouts(row["step"]):
            scores = groups.setdefault(rollout["ticket"], [])
            if rollout["status"] in ("correct", "wrong"):
                scores.append(rollout["score"])
        assert row["groups/without_baseline"] == sum(len(scores) == 1 for scores in groups.values())
        compared = [scores for scores in groups.values() if len(scores) > 1 and (len(set(scores)) > 1 or not refill)]
        assert row["groups/trained"] == len(compared) and (not refill or len(compared) == 6)
        lone += row["groups/without_baseline"]
    assert lone > 3


def test_weights_that_overflowed_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(StropError, match="not finite"):
        train(small_config("optim.lr=1e30", "evaluation.every=none"), tmp_path / "over", SilentView())
    saved = checkpoint.latest(tmp_path / "over" / "checkpoints")
    assert saved is None or all(
        torch.isfinite(w).all() for w in checkpoint.load(tmp_path / "over" / "checkpoints").tensors["policy"].values()
    )


def test_a_signal_within_a_rollout_or_an_update_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that is under way is given up; the one before is saved, and the run goes on from it to the same end."""
    config = small_config("checkpoint.every=100", "evaluation.every=none")
    train(config, tmp_path / "whole", SilentView())
    for place, owner, name in (("rollout", TorchEngine, "step"), ("update", Trainer, "_backward")):
        calls, original = itertools.count(), vars(owner)[name]
        at = {"rollout": 30, "update": 4}[place]

        def signalled(self: object, *arguments: object, calls=calls, original=original, at=at) -> object:
            if next(calls) == at:
                os.kill(os.getpid(), signal.SIGTERM)
                for _ in range(1000):
                    time.sleep(0.001)
                pytest.fail("the signal was not met")
            return original(self, *arguments)

        with monkeypatch.context() as patched, pytest.raises(Interrupted):
            patched.setattr(owner, name, signalled)
            train(config, tmp_path / place, SilentView())
        saved = checkpoint.latest(tmp_path / place / "checkpoints")
        assert saved is not None and 0 < saved < 4
        resume(tmp_path / place, SilentView())
        assert_same_run(tmp_path / "whole", tmp_path / place)


def test_a_step_whose_evaluation_is_interrupted_keeps_what_it_took(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its seconds are written and its compute is counted, so that later steps' totals lack nothing."""
    original, begun = Validation.begin, [0]

    def noted(self: Validation, step: int, weights: object) -> None:
        begun[0] = step
        original(self, step, weights)  # type: ignore[arg-type]

    def reported(*_: object) -> None:
        if begun[0] == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(Validation, "begin", noted)
        patched.setattr("strop.orchestration.evaluator._report", reported)
        train(small_config(), tmp_path / "run", SilentView())
    whole, stopped = (read_metrics(run / "metrics.jsonl")[2].keys() for run in (finished, tmp_path / "run"))
    measured = {name for name in whole if name.startswith("evaluation/")} | {"compute/evaluator_seconds"}
    assert stopped == whole - measured and {"seconds/evaluation", "compute/flops"} <= stopped
    resume(tmp_path / "run", SilentView())
    assert spent(tmp_path / "run") == spent(finished)
    assert_same_run(finished, tmp_path / "run")


def test_a_signal_between_two_updates_of_a_step_waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters have changed: the step cannot be given up any more."""
    config = small_config("checkpoint.every=100", "evaluation.every=none", "batch.updates_per_step=2")
    original, calls = Trainer.update, itertools.count()

    def signalled(self: Trainer, *arguments: Any) -> object:
        if next(calls) == 3:  # the second of the second step
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments)

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(Trainer, "update", signalled)
        train(config, tmp_path / "run", SilentView())
    assert checkpoint.latest(tmp_path / "run" / "checkpoints") == 2


def test_a_finished_run_goes_on_with_more_steps(finished: Path, tmp_path: Path) -> None:
    longer = small_config("steps=6", "data.source.count=60")
    train(longer, tmp_path / "whole", SilentView())
    out = tmp_path / "parts"
    train(edit(longer, ["steps=4"]), out, SilentView())
    resume(out, SilentView(), sets=["steps=6"])
    assert json.loads((out / "config.json").read_text())["steps"] == 6
    assert read_changes(RunFolder.open(out)) == [(4, [("steps", "4", "6")])]
    assert [row["step"] for row in metrics(out)] == [0, 1, 2, 3, 4, 5, 6]
    ends = zip(parameters(tmp_path / "whole").values(), parameters(out).values(), strict=True)
    assert all(torch.equal(a, b) for a, b in ends)
    stored = (out / "config.json").read_text()
    with pytest.raises(InputError, match="steps=12"):
        resume(out, SilentView(), sets=["optim.lr=0.5"])
    resume(out, SilentView(), sets=["steps=6"])  # as it is: nothing to do
    assert (out / "config.json").read_text() == stored
    with pytest.raises(InputError, match="steps="):
        resume(out, SilentView(), sets=["steps=5"])
    with pytest.raises(InputError, match=r"data\.source\.terms"):
        resume(out, SilentView(), sets=["data.source.terms=3"])
    with pytest.raises(InputError, match=r"model\.fresh\.layers"):
        resume(out, SilentView(), sets=["model.fresh.layers=3"])


@pytest.mark.parametrize(
    ("changed", "compares"),
    [
        ("evaluation.samples_per_problem=3", True),  # the same rate, more exactly
        ("evaluation.temperature=0.5", False),
        ("sampling.max_new_tokens=6", False),
        ("verifier.extract=any", False),
    ],
)
def test_a_gain_is_of_evaluations_on_the_same_terms(
    changed: str, compares: bool, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that goes on with other evaluations was compared with its untrained model as it was measured before."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    view = Notes()
    resume(out, view, sets=["steps=6", changed])
    row = next(row for row in read_metrics(out / "metrics.jsonl") if row["step"] == 6)
    assert row["evaluation/pass_rate"] is not None and (row["evaluation/gain"] is not None) == compares
    assert any("no gain since step 0" in line for line in view.lines) != compares
    report_run(out)
    assert ("not known: evaluations were changed" in capsys.readouterr().out) != compares
    (run,) = read_runs([out])
    assert run.gain(4) is not None and (run.gain(6) is not None) == compares


def test_the_best_step_is_of_evaluations_on_the_same_terms(finished: Path, tmp_path: Path) -> None:
    """Pass rates of before and after a change of the evaluations competed, and the best checkpoint was not kept."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    before = json.loads((out / "summary.json").read_text())["best_step"]
    sets = ["steps=7", "evaluation.every=1", "checkpoint.keep=1", "verifier.extract=any", "sampling.max_new_tokens=2"]
    resume(out, SilentView(), sets=sets)
    resume(out, SilentView(), sets=["steps=8"])  # the terms are those of the resume before
    rows = read_metrics(out / "metrics.jsonl")
    rates = {int(row["step"] or 0): row.get("evaluation/pass_rate") or 0.0 for row in rows}
    best = max((5, 6, 7, 8), key=lambda step: (rates[step], -step))
    assert rates[before] > rates[best], "or this test shows nothing"
    assert json.loads((out / "summary.json").read_text())["best_step"] == best
    kept = {int(path.name.removeprefix("step-")) for path in (out / "checkpoints").glob("step-*")}
    assert kept == {before, best, 8}


def test_the_users_modules_are_recorded_and_named_in_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run made with a module of the user's says so, and executes nothing of it by itself."""
    (tmp_path / "recorded_rewards.py").write_text(
        "from strop.algorithms.rewards import BinaryReward\n\n\nclass Mine(BinaryReward):\n    '''Nothing new.'''\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(imports, "_allowed", {})  # what other tests of this process have allowed is not recorded
    allow_module("recorded_rewards")
    out = tmp_path / "a run"
    config = small_config("algorithm.reward=recorded_rewards:Mine", "checkpoint.every=100")
    with pytest.raises(Interrupted, match="--resume '.*a run' --import recorded_rewards"):
        train(config, out, StopsAfter(1, signal.SIGINT))
    marker = json.loads((out / "run.json").read_text())
    assert marker["imports"] == [
        {"module": "recorded_rewards", "file": str(tmp_path / "recorded_rewards.py"), "import": "recorded_rewards"}
    ]
    monkeypatch.delitem(imports._allowed, "recorded_rewards")
    with pytest.raises(InputError, match="--import recorded_rewards"):
        resume(out, SilentView())
    assert "recorded_rewards" in read_status(RunFolder.open(out)).explanation
    allow_module("recorded_rewards")
    resume(out, SilentView())


def test_a_piece_that_is_replaced_needs_no_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone_judge.py").write_text(
        "from strop.verifiers.answer import Answer\n\n\nclass Mine(Answer):\n    '''Nothing new.'''\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(imports, "_allowed", {})
    allow_module("gone_judge")
    out = tmp_path / "run"
    train(small_config("verifier=gone_judge:Mine", "verifier.extract=last_number", "steps=1"), out, SilentView())
    monkeypatch.delitem(imports._allowed, "gone_judge")
    other = ("verifier=Answer", "verifier.extract=last_number", "steps=2")
    with pytest.raises(InputError, match="--import gone_judge"):
        resume(out, SilentView(), sets=["steps=2"])
    with pytest.raises(InputError, match="--set seed"):
        resume(out, SilentView(), sets=[*other, "seed=5"])
    assert resolve(str(out / "config.json"), other).verifier.piece_name() == "Answer"
    assert not [one for one in review(str(out), other, False, 0, SilentView()) if one.subject == "verifier"]
    resume(out, SilentView(), sets=other)
    assert json.loads((out / "config.json").read_text())["verifier"]["piece"] == "Answer"


def test_a_module_of_a_file_is_named_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "by_its_file.py"
    file.write_text("from strop.algorithms.rewards import BinaryReward\n\n\nclass Mine(BinaryReward): ...\n")
    allow_module(str(file))
    monkeypatch.setitem(sys.modules, "by_its_file", sys.modules["by_its_file"])
    train(small_config("algorithm.reward=by_its_file:Mine", "steps=1"), tmp_path / "run", SilentView())
    assert imports.command("eval", tmp_path / "run") == f"strop eval {tmp_path / 'run'} --import {file}"
