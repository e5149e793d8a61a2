"""Evaluation beside training: the same results as in turn with it, whatever is stopped or killed on the way."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forks import forking
from tests.runs import assert_same_run, metrics, small_config
from torch import Tensor

from strop.base import progress
from strop.base.imports import allow_module
from strop.base.types import Problem, StropError, Verdict
from strop.base.view import SilentView
from strop.config.schema import RunConfig
from strop.data.generators import ChainSum
from strop.data.loading import load_data
from strop.evaluation.benchmarks import HELD_OUT, benchmark
from strop.evaluation.protocols import PLAIN, changed
from strop.evaluation.result import EvaluationResult
from strop.lab.benchmarking import BenchmarkPlan, measure
from strop.lab.scaling.curves import UNITS, read_curve
from strop.model.files import byte_tokenizer
from strop.orchestration.evaluator import InProcessEvaluator, MeasuredVersion, WeightsOf, WorkerEvaluator
from strop.run.assembly import assemble
from strop.run.models import parse_models
from strop.run.run import Interrupted, RunOutcome, resume, train
from strop.training import checkpoint
from strop.training.compute import ComputeMeter
from strop.verifiers.answer import Answer
from strop.verifiers.judges import OpenJudges

SETS = ("optim.lr=3e-2", "model.fresh.max_positions=512", "orchestration.silence_seconds=60")
APART = "evaluation.asynchronous=true"


@pytest.fixture(scope="module")
def exam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark of six sums in a file."""
    path = tmp_path_factory.mktemp("data") / "exam.jsonl"
    problems = ChainSum(count=6, terms=2, seed=5).problems()
    path.write_text("".join(json.dumps({"problem": p.prompt, "answer": p.reference}) + "\n" for p in problems))
    return path


def configured(*more: str) -> RunConfig:
    """Measured on the held-out problems every 2 steps."""
    return small_config(*SETS, *more)


def with_exam(exam: Path, *more: str) -> RunConfig:
    """The same, and on the file every 3."""
    return configured(f"evaluation.benchmarks=[{{name='{exam}', every=3, samples_per_problem=3}}]", *more)


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the others must be equal to."""
    out = tmp_path_factory.mktemp("runs") / "in_turn"
    train(configured(), out, SilentView())
    return out


@pytest.fixture(scope="module")
def examined(exam: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunOutcome]:
    """The same with the benchmark beside."""
    out = tmp_path_factory.mktemp("runs") / "examined"
    return out, train(with_exam(exam), out, SilentView())


@pytest.fixture
def quick_workers() -> Iterator[None]:
    with forking():
        yield


class Watching(SilentView):
    """Sends signals to the evaluator (or, by `driver`, to this process) before training and after its steps."""

    def __init__(self, run: Path, signals: dict[int, int], driver: dict[int, int] | None = None) -> None:
        self.run, self.signals, self.driver = run, signals, driver or {}
        self.notes: list[str] = []
        self.late: list[int] = []
        self.kept: dict[int, list[int]] = {}

    def stage(self, name: str, total: int | None, unit: str = "steps") -> None:
        self.advance(0, {})

    def advance(self, step: int, values: object) -> None:
        self.kept[step] = checkpoint.steps(self.run / "checkpoints")
        if step in self.signals:
            rows: list[dict[str, Any]] = json.loads((self.run / "processes.json").read_text())
            os.kill(next(row["pid"] for row in rows if row["role"] == "evaluator"), self.signals[step])
        if step in self.driver:
            os.kill(os.getpid(), self.driver[step])

    def evaluated(self, step: int, values: object) -> None:
        self.late.append(step)

    def note(self, text: str) -> None:
        self.notes.append(text)


def assert_same_result(one: EvaluationResult, other: EvaluationResult) -> None:
    assert (one.problem_ids, one.answers, one.version) == (other.problem_ids, other.answers, other.version)
    for name in ("scores", "correct", "usable", "truncated", "lengths", "surprise", "sampled"):
        left, right = vars(one)[name], vars(other)[name]
        assert left.dtype == right.dtype and np.array_equal(left, right), name


def written(run: Path) -> list[tuple[int, bool]]:
    """The lines of metrics.jsonl in order: of which step, and whether of an evaluation alone."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], "loss" not in line) for line in lines]


@pytest.mark.usefixtures("quick_workers")
def test_a_worker_comes_to_the_same_bit_for_bit_while_training_goes_on(
    examined: tuple[Path, RunOutcome], exam: Path, tmp_path: Path
) -> None:
    out = tmp_path / "apart"
    # It stands still from the start until step 2 is trained; two evaluations may wait, and step 3 has another.
    view = Watching(out, {0: signal.SIGSTOP, 2: signal.SIGCONT})
    found = train(with_exam(exam, APART), out, view)
    expected = examined[1].evaluations
    assert list(found.evaluations) == list(expected) == [0, 2, 4]
    for step, result in expected.items():
        assert_same_result(found.evaluations[step], result)
    assert len({result.surprise.sum() for result in expected.values() if result.surprise is not None}) == 3
    assert_same_run(examined[0], out)
    order = written(out)
    assert order.index((2, False)) < order.index((0, True)) < order.index((2, True)) < order.index((4, True))
    assert view.late == [0, 2, 3, 4] and len(order) == 8


def test_readers_put_late_evaluations_where_they_belong(examined: tuple[Path, RunOutcome], tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (examined[0] / "metrics.jsonl").read_text().splitlines()]
    late = [{k: v for k, v in row.items() if k.startswith(("evaluation/", "step", "time"))} for row in rows]
    early = [{k: v for k, v in row.items() if not k.startswith("evaluation/")} for row in rows if row["step"]]
    out = tmp_path / "late"
    out.mkdir()
    for name in ("run.json", "config.json"):
        (out / name).write_bytes((examined[0] / name).read_bytes())
    (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*early, *late]))
    assert metrics(out) == metrics(examined[0])
    for x in UNITS:
        for metric in ("evaluation/pass_rate", "evaluation/exam/pass_rate"):
            one, other = read_curve(out, x, metric=metric), read_curve(examined[0], x, metric=metric)
            assert np.array_equal(one.compute, other.compute) and np.array_equal(one.pass_rate, other.pass_rate)


def test_a_benchmark_is_measured_as_strop_eval_measures_it(
    examined: tuple[Path, RunOutcome], exam: Path, tmp_path: Path
) -> None:
    plan = BenchmarkPlan(
        models=parse_models([f"run={examined[0]}"]),
        benchmarks=(benchmark(str(exam)),),
        protocol=changed(PLAIN, samples=3),
        out=tmp_path / "kept",
        seed=0,
        sets=("sampling.max_new_tokens=12", "sampling.temperature=1.0"),
    )
    found = measure(plan, SilentView()).results["run", "exam"]
    last = metrics(examined[0])[-1]
    assert last["evaluation/exam/pass_rate"] == found.pass_rate
    assert last["evaluation/exam/length"] == found.mean_length
    assert last["evaluation/exam/truncation_rate"] == found.truncation_rate
    at = [row["step"] for row in metrics(examined[0]) if "evaluation/exam/pass_rate" in row]
    assert at == [0, 3, 4]


class Strikes(Answer):
    """Judges as `Answer`; kills the process that it is in at the fifth verdict, once, unless that is `driver`."""

    marker: str
    driver: int

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        struck = Path(self.marker)
        if os.getpid() != self.driver and not struck.exists():
            tally = struck.with_suffix(".tally")
            tally.write_text(tally.read_text() + "x" if tally.exists() else "x")
            if len(tally.read_text()) == 5:
                struck.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().judge(problem, text, truncated)


def striking(tmp_path: Path) -> str:
    allow_module(__name__)
    marker = tmp_path / "struck"
    return f"verifier={{piece='{__name__}:Strikes', marker='{marker}', driver={os.getpid()}, extract='last_number'}}"


@pytest.mark.usefixtures("quick_workers")
def test_an_evaluator_that_is_killed_mid_way_does_it_again(in_turn: Path, tmp_path: Path) -> None:
    view = Watching(tmp_path / "run", {})
    train(configured(APART, striking(tmp_path)), tmp_path / "run", view)
    assert (tmp_path / "struck").exists()
    told = [note for note in view.notes if "died (it was ended by SIGKILL) and is started again" in note]
    assert len(told) == 1 and "evaluator" in told[0] and "the evaluation of step 0" in told[0]
    assert_same_run(in_turn, tmp_path / "run")


@pytest.mark.usefixtures("quick_workers")
def test_deaths_beyond_the_budget_end_the_run_and_a_resume_measures_what_is_missing(
    in_turn: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    sets = (APART, striking(tmp_path), "orchestration.restarts=0")
    with pytest.raises(StropError, match=r"evaluator.*orchestration\.restarts=0"):
        train(configured(*sets), out, SilentView())
    resume(out, SilentView())
    assert_same_run(in_turn, out)


class Breaks(Answer):
    """Judges as `Answer`; breaks once, at the seventeenth completion of the problems `ids`."""

    marker: str
    ids: tuple[str, ...]

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        tally = Path(self.marker)
        if problem.id in self.ids:
            tally.write_text(tally.read_text() + "x" if tally.exists() else "x")
            if len(tally.read_text()) == 17:  # after the 16 of step 0
                raise StropError("the verifier broke")
        return super().judge(problem, text, truncated)


def test_an_evaluation_that_failed_in_turn_with_training_is_done_on_resume(in_turn: Path, tmp_path: Path) -> None:
    allow_module(__name__)
    held_out = load_data(configured().data, byte_tokenizer()).held_out
    assert held_out is not None
    ids = [problem.id for problem in held_out.problems]
    breaking = f"{{piece='{__name__}:Breaks', marker='{tmp_path / 'tally'}', ids={ids}, extract='last_number'}}"
    with pytest.raises(StropError, match="the verifier broke"):
        train(configured(f"verifier={breaking}"), tmp_path / "run", SilentView())
    assert checkpoint.latest(tmp_path / "run" / "checkpoints") == 2
    resume(tmp_path / "run", SilentView())
    rates = [{k: v for k, v in row.items() if k.startswith("evaluation/")} for row in metrics(tmp_path / "run")]
    assert rates == [{k: v for k, v in row.items() if k.startswith("evaluation/")} for row in metrics(in_turn)]
    assert "evaluation/gain" in rates[-1]  # against step 0, which another process measured


@pytest.mark.usefixtures("quick_workers")
def test_what_was_under_way_when_a_run_ended_is_measured_on_resume(in_turn: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    view = Watching(out, {0: signal.SIGSTOP}, {3: signal.SIGINT})
    with pytest.raises(Interrupted, match="step 3 of 4, steps 0, 2 not .*--resume"):
        train(configured(APART), out, view)
    assert {row["step"] for row in metrics(out) if "evaluation/pass_rate" in row} == set()
    again = Watching(out, {})
    resume(out, again)
    assert [note for note in again.notes if "is done again" in note] == [
        f"the evaluation of step {step} was under way when the run ended, and is done again" for step in (0, 2)
    ]
    assert_same_run(in_turn, out)


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize(("every", "said"), [(1, "2 of 4, steps 0, 1, 2 not"), (4, "4 of 4, steps 0, 4 not")])
def test_training_waits_while_two_evaluations_are_open_and_at_its_end_unless_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, said: str
) -> None:
    poll = WorkerEvaluator.poll

    def interrupted(evaluator: WorkerEvaluator, patience: float = 0.0) -> list[MeasuredVersion]:
        if patience:  # training waits, for the first time
            os.kill(os.getpid(), signal.SIGINT)
        return poll(evaluator, patience)

    monkeypatch.setattr(WorkerEvaluator, "poll", interrupted)
    out = tmp_path / "run"
    with pytest.raises(Interrupted, match=f"step {said} .*--resume"):
        train(configured(APART, f"evaluation.every={every}"), out, Watching(out, {0: signal.SIGSTOP}))


@pytest.mark.usefixtures("quick_workers")
def test_an_evaluation_whose_weights_are_gone_is_said_to_be_lost(tmp_path: Path) -> None:
    out = tmp_path / "run"
    sets = ("checkpoint.keep_best=false", "checkpoint.every=100", "steps=5")
    with pytest.raises(Interrupted):
        train(configured(APART, *sets), out, Watching(out, {0: signal.SIGSTOP}, {3: signal.SIGINT}))
    view = Watching(out, {})
    resume(out, view)
    assert any("the evaluation of step 2 is lost" in note for note in view.notes)
    assert [row["step"] for row in metrics(out) if "evaluation/pass_rate" in row] == [0, 4, 5]


@pytest.mark.usefixtures("quick_workers")
def test_the_best_checkpoint_waits_for_its_pass_rate(tmp_path: Path) -> None:
    sets = ("steps=6", "evaluation.every=3", "checkpoint.keep=1", "checkpoint.every=1")
    train(configured(*sets), tmp_path / "in_turn", SilentView())
    out = tmp_path / "apart"
    view = Watching(out, {0: signal.SIGSTOP, 5: signal.SIGCONT})
    train(configured(*sets, APART), out, view)
    order = written(out)
    assert order.index((5, False)) < order.index((0, True)) < order.index((3, True))  # training did not wait
    assert 3 in view.kept[5] and 2 not in view.kept[5]  # only the newest stays, and what may be the best
    assert_same_run(tmp_path / "in_turn", out)
    best = json.loads((out / "summary.json").read_text())["best_step"]
    assert checkpoint.steps(out / "checkpoints") == checkpoint.steps(tmp_path / "in_turn" / "checkpoints")
    assert set(checkpoint.steps(out / "checkpoints")) == {best, 6}


def test_evaluations_are_no_compute_of_training(examined: tuple[Path, RunOutcome]) -> None:
    rows = [json.loads(line) for line in (examined[0] / "metrics.jsonl").read_text().splitlines()]
    spent = [row["compute/evaluator_seconds"] for row in rows if "compute/evaluator_seconds" in row]
    assert len(spent) == 4 and spent == sorted(spent) and spent[0] > 0
    meter = ComputeMeter(2, 10)
    seconds = {"step": 5.0, "rollout": 1.0, "update": 2.0, "evaluation": 1.5}
    assert meter.evaluated(7.0) == {"compute/evaluator_seconds": 7.0}
    assert meter.add(seconds, {"tokens/generated": 3.0, "tokens": 2.0}) == {
        "compute/device_seconds": 7.0, "compute/generator_seconds": 2.0, "compute/trainer_seconds": 4.0,
        "compute/flops": 10 * (2 * 3.0 + 6 * 2.0),
    }  # fmt: skip
    again = ComputeMeter(2, 10)
    again.load(meter.state())
    assert again.evaluated(1.0) == {"compute/evaluator_seconds": 8.0}


def test_in_this_process_an_evaluation_is_done_when_it_was_begun_and_polled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, int, int]] = []
    monkeypatch.setattr(progress, "part", lambda *part, **how: said.append(part))
    parts, view = assemble(configured(), SilentView()), SilentView()
    assert isinstance(parts.evaluator, InProcessEvaluator)
    evaluator = InProcessEvaluator(parts.evaluator.engine, parts.validation, OpenJudges(), devices=2)
    evaluator.start(tmp_path, view)
    for step in (3, 4):
        evaluator.begin(step, [HELD_OUT], WeightsOf(parts.policy))
    assert said[-1] == ("evaluation", 16, 16)
    with pytest.raises(StropError, match="cannot be had"):
        evaluator.begin(5, [HELD_OUT], _Gone(parts.policy))
    assert list(evaluator.outstanding) == [3, 4, 5] and evaluator.has_room
    found = evaluator.poll()
    assert [(measured.step, measured.results[HELD_OUT].version) for measured in found] == [(3, 3), (4, 4)]
    assert all(measured.device_seconds == 2 * measured.seconds > 0 for measured in found)
    assert evaluator.poll() == [] and list(evaluator.outstanding) == [5]  # the one that failed
    evaluator.close()
    parts.close()


class _Gone(WeightsOf):
    """Has no weights any more."""

    def weights(self) -> dict[str, Tensor]:
        raise StropError("the weights cannot be had")
