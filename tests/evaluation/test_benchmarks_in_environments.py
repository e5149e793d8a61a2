"""Benchmarks of runs that were trained in an environment are asked in it, as their held-out problems are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs import small_config
from tests.watching import Notes

from strop.base.imports import allow_module
from strop.base.types import InputError
from strop.base.view import SilentView
from strop.data.generators import ChainSum
from strop.evaluation.benchmarks import benchmark
from strop.evaluation.protocols import PLAIN, changed
from strop.lab.benchmarking import BenchmarkPlan, measure
from strop.recipes.resolve import resolve
from strop.run.models import parse_models
from strop.run.run import train

SMALL = (
    "steps=1", "batch.prompts_per_step=4", "batch.samples_per_prompt=2", "data.source.count=40",
    "data.held_out={count=6}", "evaluation.samples_per_problem=1",
)  # fmt: skip

BRIEF = ("sampling.max_new_tokens=100",)
pytestmark = pytest.mark.timeout(600)  # the base that calls tools is made once, which takes a minute on an idle machine


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose base calls a calculator now and then, and sums as a benchmark, which it measures too."""
    folder = tmp_path_factory.mktemp("played")
    problems = ChainSum(count=12, terms=4, digits=3, seed=5).problems()
    rows = [{"problem": each.prompt, "answer": each.reference} for each in problems]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = f"evaluation.benchmarks=[{{name='{folder / 'sums.jsonl'}', every=1, samples_per_problem=8}}]"
    notes = Notes()
    train(resolve("quickstart.calculator", [*SMALL, named]), folder / "run", notes)
    told = "sums: 12 problems, measured every step in the environment Calculator, at temperature 1, top-p 1, up to "
    assert any(line.startswith(told) for line in notes.lines)
    return folder


def plan(place: Path, out: Path) -> BenchmarkPlan:
    return BenchmarkPlan(
        models=parse_models([f"run={place / 'run'}"]), benchmarks=(benchmark(str(place / "sums.jsonl")),),
        protocol=changed(PLAIN, samples=8), out=out, sets=BRIEF,
    )  # fmt: skip


def test_the_calculator_answers_in_a_benchmark_as_it_does_in_training(place: Path, tmp_path: Path) -> None:
    """Without it sums of three digits are never right; the two ways to measure agree."""
    view = Notes()
    played = measure(plan(place, tmp_path / "played"), view).results["run", "sums"]
    assert played.pass_rate > 0.03
    assert any("run is asked first in the environment Calculator" in line for line in view.lines)
    facts = json.loads((tmp_path / "played" / "run" / "sums" / "settings.json").read_text())
    assert facts["environment"]["piece"] == "Calculator"
    row = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()][-1]
    assert row["evaluation/sums/pass_rate"] > 0.03
    alone = replace(plan(place, tmp_path / "alone"), sets=(*BRIEF, "environment=none"))
    assert measure(alone, SilentView()).results["run", "sums"].pass_rate == 0
    with pytest.raises(InputError, match="--out"):
        measure(replace(alone, out=tmp_path / "played"), SilentView())


def test_what_a_run_held_out_is_a_benchmark_in_its_environment_for_all(place: Path, tmp_path: Path) -> None:
    models = parse_models(["base=embedded-caller", f"run={place / 'run'}"])
    held_out = replace(plan(place, tmp_path), models=models, benchmarks=(benchmark("held_out"),))
    found = measure(held_out, SilentView()).results
    assert found["base", "held_out"].pass_rate > 0 and found["run", "held_out"].pass_rate > 0


def test_what_cannot_be_asked_alike_is_refused(place: Path, tmp_path: Path) -> None:
    train(small_config("steps=1", "evaluation.every=none"), tmp_path / "plain", SilentView())
    both = replace(plan(place, tmp_path / "out"), models=parse_models([str(place / "run"), str(tmp_path / "plain")]))
    with pytest.raises(InputError, match="Calculator.*environment=none"):
        measure(replace(both, sets=("data.template=Plain",)), SilentView())
    game = replace(plan(place, tmp_path / "out"), sets=("environment=tests.environments.players:OneTurn",))
    allow_module("tests.environments.players")
    with pytest.raises(InputError, match="OneTurn .*environment=none"):
        measure(game, SilentView())
    there = replace(
        plan(place, tmp_path), endpoint="http://127.0.0.1:9/v1", sets=("environment=Calculator",)
    )
    with pytest.raises(InputError, match="--endpoint"):
        measure(there, SilentView())
