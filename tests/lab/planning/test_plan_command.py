"""`strop plan`: costs and lengths as they are given, the bound of every plan, the table."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from strop.base.types import InputError
from strop.cli import app
from strop.lab.planning.costs import (
    SKYWORK_COSTS,
    SKYWORK_LENGTHS,
    ConstantLength,
    LogNormal,
    Setup,
    Straggling,
    default_lengths,
    parse_lengths,
)


def planned(*arguments: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(CliRunner().invoke(app, ["plan", *arguments, "--json"]).stdout)
    return value


@pytest.mark.parametrize("seed", range(2))
def test_no_printed_step_is_quicker_than_its_bound(seed: int) -> None:
    """The bound is of the simulated completions: few steps may have shorter ones than others drawn for the bound."""
    (plan,) = planned(
        "grpo", "--steps", "6", "--seed", str(seed), "--lengths", "lognormal:50,1", "--cost", "decode_sequence=0.01",
        "--cost", "train_token=1e-4",
    )["plans"]  # fmt: skip
    assert 0 < plan["bound_seconds_per_update"] <= plan["seconds_per_update"] * (1 + 1e-9)


def test_schedules_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = [
        "grpo", "--set", "orchestration.generators=4", "--set", "orchestration.trainers=2", "--compare", "0,2",
        "--lengths", "lognormal:50,0.5+0.05x4", "--steps", "12", "--cost", "decode_step=0.01",
        "--cost", "train_token=1e-4",
    ]  # fmt: skip
    shown = CliRunner().invoke(app, ["plan", *arguments])
    assert shown.exit_code == 0, shown.output
    for name in ("synchronous", "PipelineRL-2", "PPO-off-policy-2"):
        assert name in shown.stdout
    assert "…" not in shown.stdout  # no cell is cut
    value = planned(*arguments)
    seconds = {plan["name"]: plan["seconds_per_update"] for plan in value["plans"]}
    assert seconds["PipelineRL-2"] < seconds["PPO-off-policy-2"] < seconds["synchronous"]
    for plan in value["plans"]:
        assert (plan["setup"]["generators"], plan["setup"]["trainers"]) == (4, 2)
        assert plan["bound_seconds_per_update"] <= plan["seconds_per_update"] * (1 + 1e-9)


def test_schedules_pair_each_lag_with_its_off_policy_twin() -> None:
    names = [setup.name for setup in Setup(4, 2).schedules((0, 1, 4))]
    assert names == ["synchronous", "PipelineRL-1", "PipelineRL-4", "PPO-off-policy-4"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--cost", "decode=1"], "decode"),
        (["--cost", "decode_step"], "--cost"),
        (["--lengths", "normal:5"], "--lengths"),
        (["--compare", "k"], "--compare"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], named: str) -> None:
    failed = CliRunner().invoke(app, ["plan", "grpo", *arguments])
    assert isinstance(failed.exception, InputError) and named in str(failed.exception)


def test_costs_and_lengths_that_are_not_given_are_defaults() -> None:
    value = planned("grpo", "--steps", "2")
    assert value["defaults"] == ["costs", "lengths"] and value["costs"]["decode_step"] == SKYWORK_COSTS.decode_step
    given = planned("grpo", "--steps", "2", "--lengths", "constant:50", "--cost", "decode_step=0.1")
    assert given["defaults"] == [] and given["costs"]["decode_step"] == 0.1
    assert default_lengths(16_384) == SKYWORK_LENGTHS and default_lengths(256).median == 128


def test_lengths_are_read() -> None:
    rng = np.random.default_rng(0)
    assert parse_lengths("constant:500", 200) == ConstantLength(200)
    assert parse_lengths("lognormal:300,0.5,0.4", 900) == LogNormal(300, 0.5, 900, 0.4)
    assert parse_lengths("lognormal:300,0.5+0.05x30", 900) == Straggling(LogNormal(300, 0.5, 900), 0.05, 30)
    drawn = np.concatenate([LogNormal(300, 0.5, 900).draw(rng, 8) for _ in range(4000)])
    assert np.median(drawn) == pytest.approx(300, rel=0.02)
    assert np.log(drawn[drawn < 900]).std() == pytest.approx(0.48, abs=0.02)  # the tail is cut
    assert drawn.max() == 900
    slow = np.concatenate([Straggling(ConstantLength(10), 0.05, 30).draw(rng, 8) for _ in range(4000)])
    assert set(slow) == {10, 300} and (slow == 300).mean() == pytest.approx(0.05, abs=0.01)
