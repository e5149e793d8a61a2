"""Alerts are said when they begin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.runs import small_config
from tests.watching import Notes

from strop.algorithms.alerts import STEPS_OF_CALM, AlertLimits, alerts
from strop.base.types import InputError
from strop.recipes.resolve import resolve
from strop.run.run import train

CALM: dict[str, float | None] = {
    "truncation_rate": 0.1,
    "verifier/failure_share": 0.01,
    "entropy": 0.3,
    "mismatch/k3": 0.001,
    "repetition/share": 0.0,
    "groups/zero_variance_share": 0.5,
    "pass_rate": 0.4,
}


def follow(rows: list[dict[str, float | None]], limits: AlertLimits | None = None) -> list[list[str]]:
    """The lines of each step; the memory makes the way through JSON that a checkpoint makes."""
    memory: dict[str, Any] = {}
    said = []
    for row in rows:
        lines, memory = alerts(row, json.loads(json.dumps(memory)), limits)
        said.append(lines)
    return said


def test_a_healthy_run_is_silent_also_at_the_limits() -> None:
    assert follow([CALM] * 30) == [[]] * 30


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("truncation_rate", 0.11, "11% of the completions were cut"),
        ("verifier/failure_share", 0.02, "failed on 2.0% of the completions, above 1%"),
        ("entropy", 0.005, "the entropy is 0.005 nats"),
        ("mismatch/k3", 0.2, "KL of 0.2 nats"),
        ("repetition/share", 0.3, "30% of the completions repeat"),
        ("groups/zero_variance_share", 1.0, "pass rate 40.0%, and no group had rollouts of different outcome"),
    ],
)
def test_each_is_said_once_when_it_begins(name: str, value: float, words: str) -> None:
    said = follow([CALM, CALM | {name: value}, CALM | {name: value}, CALM])
    assert [len(lines) for lines in said] == [0, 1, 0, 0]
    assert words in said[1][0] and "\n" not in said[1][0]


def test_groups_of_one_outcome_that_teach_are_no_alert() -> None:
    uniform = CALM | {"groups/zero_variance_share": 1.0}
    said = follow([uniform | {"effective_batch/completions": 4.0}, uniform | {"effective_batch/completions": 0.0}])
    assert [len(lines) for lines in said] == [0, 1]


def test_one_that_flickers_is_not_said_again_but_one_that_comes_back_is() -> None:
    bad = CALM | {"truncation_rate": 0.5}
    said = follow([bad, *[CALM] * (STEPS_OF_CALM - 1), bad, *[CALM] * STEPS_OF_CALM, bad])
    assert [step for step, lines in enumerate(said) if lines] == [0, len(said) - 1]


def test_a_collapse_of_the_pass_rate_is_measured_against_its_best() -> None:
    limits = AlertLimits(window=2)
    rates = [0.1, 0.4, 0.6, 0.3, 0.2, 0.2]  # means of two: .25, .5 (best), .45, .25 (just half), .2
    said = follow([CALM | {"pass_rate": rate} for rate in rates], limits)
    assert [len(lines) for lines in said] == [0, 0, 0, 0, 0, 1]
    assert all(number in said[5][0] for number in ("20.0%", "50.0%"))


def test_what_a_step_does_not_measure_says_nothing() -> None:
    assert follow([{}, dict.fromkeys(CALM)]) == [[], []]


@pytest.mark.parametrize(("limit", "said"), [(0.0, True), (1.0, False)])
def test_the_limits_are_the_runs_own(tmp_path: Path, limit: float, said: bool) -> None:
    view = Notes()
    # A random model ends by itself now and then, so that its truncation rate lies between the two limits.
    train(small_config("steps=1", "evaluation.every=none", f"alerts.truncation={limit}"), tmp_path / "run", view)
    assert any("were cut at the token limit" in line for line in view.lines) == said
    assert resolve("grpo").alerts == AlertLimits()
    with pytest.raises(InputError, match="alerts.truncation"):
        small_config("alerts.truncation=2")
