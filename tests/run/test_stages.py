"""Stages, retired problems and pass-rate histories: they act in a run, and a resume goes on in the middle of them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.made import PROBLEM, rollout
from tests.run.test_run import StopsAfter
from tests.runs import assert_same_run, metrics, small_config

from strop.base.imports import allow_module
from strop.base.types import Group, InputError, Problem, StropError, Verdict
from strop.base.view import SilentView
from strop.config.parse import edit
from strop.config.schema import RunConfig, evaluation_sampling
from strop.data.sampler import NoProblemsLeft
from strop.run.curriculum import Curriculum
from strop.run.measuring import evaluate_model
from strop.run.models import configure
from strop.run.run import Interrupted, resume, train
from strop.training import checkpoint
from strop.verifiers.base import Verifier
from strop_verify.verdict import Status

allow_module("operator")
allow_module(__name__)
STAGES = (
    'stages=[{steps=2}, {steps=2, set={"sampling.max_new_tokens"=16, "batch.samples_per_prompt"=6, "optim.lr"=5e-4,'
    ' "optim.warmup_steps"=2}}, {problems={piece="HardOnly", below=1.0}, set={"batch.prompts_per_step"=4}}]'
)


def staged(*sets: str) -> RunConfig:
    return small_config("steps=6", "algorithm.selection.zero_variance=keep", "evaluation.every=none", STAGES, *sets)


def test_stages_change_what_they_say_and_nothing_else(tmp_path: Path) -> None:
    train(staged(), tmp_path / "run", SilentView())
    rows = metrics(tmp_path / "run")
    assert [row["stage"] for row in rows] == [0, 0, 1, 1, 2, 2]
    assert [row["sequences"] for row in rows] == [24, 24, 36, 36, 24, 24]
    assert max(row["length/max"] for row in rows[:2]) == 12 and max(row["length/max"] for row in rows[2:]) == 16
    # The schedule begins anew where optim changes, and goes on where it does not.
    assert [row["lr"] for row in rows] == pytest.approx([1e-3, 1e-3, 2.5e-4, 5e-4, 5e-4, 5e-4])
    assert rows[3]["problems/left"] == 32 and rows[4]["problems/left"] < 32


def pass_rates(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "pass_rates.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_resume_goes_on_within_a_stage(tmp_path: Path, stop: int) -> None:
    train(staged("checkpoint.every=10"), tmp_path / "whole", SilentView())
    with pytest.raises(Interrupted):
        train(staged("checkpoint.every=10"), tmp_path / "parts", StopsAfter(stop, signal.SIGINT))
    resume(tmp_path / "parts", SilentView())
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert pass_rates(tmp_path / "whole") == pass_rates(tmp_path / "parts")


REFUSED = [
    ("stages=[{steps=3}, {steps=9}, {}]", r"stages: .* take 12 steps, so steps=6 must be more"),
    ("stages=[{steps=3}, {steps=9}]", "stages: theirs add up to 12 steps, and steps=6"),
    ("stages=[{}, {}]", "every stage but the last"),
    ('stages=[{steps=1}, {set={"model.path"="x"}}]', r"stages.1.set: model.path cannot change during a run"),
    ('stages=[{steps=1}, {set={"optim.eps"=1e-3}}]', r"stages.1.set: of optim only lr, schedule, warmup_steps"),
    ('stages=[{steps=1}, {set={"batch.prompts"=3}}]', "batch.prompts_per_step"),
    ('stages=[{steps=1}, {set={"batch.updates_per_step"=30}}]', "updates_per_step=30 exceeds"),
    ('stages=[{steps=1, problems="DropSolved"}, {}]', "stages.0.problems filters by an earlier stage"),
]


@pytest.mark.parametrize(("stages", "message"), REFUSED)
def test_stages_that_cannot_be_are_refused(stages: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_config("steps=6", stages)


PROBLEMS = [Problem(f"p{number}", f"{number}+1=", str(number + 1)) for number in range(4)]


def visited(curriculum: Curriculum, index: int, *passed: int) -> None:
    group = Group(0, PROBLEM, tuple(rollout(score) for score in passed))
    curriculum.visited(index, group, step=1)


def test_a_mastered_prompt_is_never_asked_again() -> None:
    config = edit(small_config(), ["algorithm.selection.no_positive_resampling=0.9"])
    curriculum = Curriculum(config, PROBLEMS)
    visited(curriculum, 2, *[1] * 9, 0)
    visited(curriculum, 3, *[1] * 8, 0, 0)
    assert curriculum.sampler.retired == {2}
    assert 2 not in [curriculum.next() for _ in range(40)]
    for index in (0, 1, 3):
        visited(curriculum, index, 1, 1)
    with pytest.raises(NoProblemsLeft):
        curriculum.next()


def test_a_schedule_lasts_until_optim_changes_again() -> None:
    config = small_config(
        "steps=20", "batch.updates_per_step=2",
        'stages=[{steps=3}, {steps=4, set={"optim.schedule"="Cosine"}}, {steps=5, set={"batch.updates_per_step"=3}},'
        ' {set={"optim.lr"=1e-4}}]',
    )  # fmt: skip
    curriculum = Curriculum(config, PROBLEMS)
    planned = {}
    for step in range(20):
        planned[step] = curriculum.updates_left(step)
        curriculum.advance(step + 1)
    # 3 steps of 2; 4 steps of 2 and 5 of 3 under one schedule; 8 steps of 3.
    assert [planned[step] for step in (0, 2, 3, 4, 6, 7, 11, 12, 19)] == [6, 2, 23, 21, 17, 15, 3, 24, 3]
    warm = edit(config, ["algorithm.advantage=Gae", "critic.warmup_steps=2"])
    assert Curriculum(warm, PROBLEMS).updates_left(0) == 2


def test_a_cosine_reaches_over_a_stage_that_leaves_it_alone(tmp_path: Path) -> None:
    stages = 'stages=[{steps=2, set={"optim.schedule"="Cosine"}}, {set={"sampling.max_new_tokens"=10}}]'
    sets = ("steps=4", "algorithm.selection.zero_variance=keep", "evaluation.every=none")
    train(small_config(*sets, stages), tmp_path / "run", SilentView())
    assert [row["lr"] for row in metrics(tmp_path / "run")] == pytest.approx([1e-3, 0.85355e-3, 5e-4, 0.14645e-3], 1e-4)


def test_a_longer_run_than_was_planned_has_a_longer_schedule(tmp_path: Path) -> None:
    sets = ("algorithm.selection.zero_variance=keep", "evaluation.every=none", "optim.schedule=Cosine")
    train(small_config(*sets, "steps=2"), tmp_path / "run", SilentView())
    file = tmp_path / "run" / "config.json"
    file.write_text(file.read_text().replace('"steps": 2,', '"steps": 4,'))
    resume(tmp_path / "run", SilentView())
    assert [row["lr"] for row in metrics(tmp_path / "run")] == pytest.approx([1e-3, 5e-4, 5e-4, 0.14645e-3], 1e-4)


PIPELINED = ("algorithm.selection.zero_variance=keep", "evaluation.every=none", "orchestration.max_lag=2")


@pytest.mark.usefixtures("forked")
def test_a_smaller_stage_of_a_pipeline_begins_with_groups_of_its_own(tmp_path: Path) -> None:
    stages = 'stages=[{steps=3}, {set={"batch.prompts_per_step"=2, "sampling.max_new_tokens"=6}}]'
    train(small_config(*PIPELINED, "steps=6", stages), tmp_path / "run", SilentView())
    rows = metrics(tmp_path / "run")
    assert [row["groups/trained"] for row in rows] == [6, 6, 6, 2, 2, 2]
    assert rows[2]["length/max"] == 12 and all(row["length/max"] <= 6 for row in rows[3:])
    assert max(row["lag/max"] for row in rows) > 0


@pytest.mark.usefixtures("forked")
def test_a_group_generated_again_after_a_resume_is_visited_once(tmp_path: Path) -> None:
    config = small_config(*PIPELINED, "checkpoint.every=10")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", StopsAfter(2, signal.SIGINT))
    resume(tmp_path / "run", SilentView())
    visits = [visit for row in pass_rates(tmp_path / "run") for visit in row["visits"]]
    assert len(visits) == 4 * 6 and sorted({visit["step"] for visit in visits}) == [1, 2, 3, 4]


def test_stages_may_take_something_away() -> None:
    config = small_config("steps=6", 'stages=[{steps=1}, {set={"algorithm.selection.no_positive_resampling"="none"}}]')
    config = edit(config, ["algorithm.selection.no_positive_resampling=0.9"])
    assert [stage.algorithm.selection.no_positive_resampling for stage in config.stage_configs()] == [0.9, None]


def test_solved_problems_leave_between_stages_and_an_empty_stage_says_so() -> None:
    config = small_config("steps=9", 'stages=[{steps=1}, {problems={piece="DropSolved"}}]')
    curriculum = Curriculum(config, PROBLEMS)
    visited(curriculum, 0, 1, 1, 1)
    visited(curriculum, 1, 1, 0, 1)
    assert curriculum.advance(1) and curriculum.sampler.retired == {0}
    for index in range(1, 4):
        visited(again := Curriculum(config, PROBLEMS), index, 1)
    again = Curriculum(config, PROBLEMS)
    for index in range(4):
        visited(again, index, 1, 1)
    with pytest.raises(StropError, match=r"stages\.1\.problems"):
        again.advance(1)


def test_stages_are_differences_against_the_one_before() -> None:
    first, second, third = staged().stage_configs()
    assert (first.sampling.max_new_tokens, second.sampling.max_new_tokens) == (12, 16)
    assert third.sampling.max_new_tokens == 16 and third.batch.samples_per_prompt == 6
    assert not first.stages


def test_a_run_without_problems_left_keeps_what_it_learned(tmp_path: Path) -> None:
    config = small_config(
        "algorithm.selection.no_positive_resampling=0.001", "algorithm.selection.zero_variance=keep", "steps=40",
        "evaluation.every=none", "checkpoint.every=100",
        'verifier={piece="PythonFunction", function="operator:is_not"}',
    )  # fmt: skip
    with pytest.raises(NoProblemsLeft):
        train(config, tmp_path / "run", SilentView())
    assert checkpoint.latest(tmp_path / "run" / "checkpoints") == len(metrics(tmp_path / "run")) == 6


def test_every_evaluation_has_the_room_of_the_longest_stage(tmp_path: Path) -> None:
    stages = [
        'stages=[{steps=1}, {steps=1, set={"sampling.max_new_tokens"=16}}, {set={"sampling.max_new_tokens"=10}}]',
        "steps=3", "evaluation.every=1", "evaluation.temperature=0.5",
    ]  # fmt: skip
    config = small_config("algorithm.selection.zero_variance=keep", *stages)
    sampling = evaluation_sampling(config)
    assert sampling == config.sampling.model_copy(update={"max_new_tokens": 16, "temperature": 0.5})
    outcome = train(config, tmp_path / "run", SilentView())
    assert [found.lengths.max() for found in outcome.evaluations.values()] == [16, 16, 16, 16]
    assert [row.get("length/max") for row in metrics(tmp_path / "run")] == [None, 12, 16, 10]


def test_an_evaluation_thinks_and_is_interrupted_as_the_longest_stage_is() -> None:
    budgets = '{"sampling.max_new_tokens"=40, "sampling.thinking_tokens"=30, "sampling.answer_tokens"=5}'
    config = small_config("steps=6", "sampling.end_of_thinking=x", f"stages=[{{steps=3}}, {{set={budgets}}}]")
    assert config.sampling.thinking_tokens is None and config.sampling.max_new_tokens == 12
    sampling = evaluation_sampling(config)
    assert (sampling.thinking_tokens, sampling.answer_tokens, sampling.max_new_tokens) == (30, 5, 40)
    assert evaluation_sampling(small_config("evaluation.top_p=0.7")).top_p == 0.7


def test_measuring_a_finished_run_gives_what_it_measured_itself(tmp_path: Path) -> None:
    stages = 'stages=[{steps=1}, {set={"sampling.max_new_tokens"=16}}]'
    sets = (stages, "steps=2", "evaluation.every=2", "evaluation.top_p=0.9", "evaluation.temperature=0.7")
    outcome = train(small_config(*sets, f"verifier={{piece='{__name__}:Even'}}"), tmp_path / "run", SilentView())
    found = evaluate_model(configure(str(tmp_path / "run")), 2, SilentView())
    own = outcome.evaluations[2].summary()
    assert 0 < own["pass_rate"] < 1
    apart = {"seconds", "weight_version"}
    assert found["trained_on"] == 0
    assert {key: found[key] for key in own.keys() - apart} == {key: own[key] for key in own.keys() - apart}


class Even(Verifier):
    """Right is a completion of an even number of characters."""

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        right = len(text) % 2 == 0
        return Verdict(float(right), Status.CORRECT if right else Status.WRONG)
