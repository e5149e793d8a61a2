"""`strop plan`: costs and lengths as they are given, the bound of every plan, the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from strop.base.types import InputError
from strop.cli import app
from strop.lab.planning import simulate
from strop.lab.planning.costs import (
    CONSTANTS,
    SKYWORK_LENGTHS,
    ConstantLength,
    Costs,
    LogNormal,
    Setup,
    Straggling,
    default_lengths,
    parse_lengths,
    setup_of,
)
from strop.recipes.resolve import resolve
from strop.run.folder import RunFolder


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
    assert {name: value["costs"][name] for name in value["sources"]} == {n: c.seconds for n, c in CONSTANTS.items()}
    assert "Table 9" in value["sources"]["decode_step"] and "Table 8" in value["sources"]["train_token"]
    given = planned("grpo", "--steps", "2", "--lengths", "constant:50", "--cost", "decode_step=0.1")
    assert given["sources"] == {} and given["costs"]["decode_step"] == 0.1 and "50" in given["lengths"]
    assert default_lengths(16_384) == SKYWORK_LENGTHS and default_lengths(256).median == 128


@pytest.mark.parametrize("lag", [0, 2])
def test_a_run_is_planned_with_the_costs_it_measured(lag: int, tmp_path: Path) -> None:
    """A run of costs that are known, by the simulator; what its metrics say gives its step time again."""
    executor = "embedded" if lag else "auto"
    sets = [f"orchestration.max_lag={lag}", f"orchestration.executor={executor}", "sampling.max_new_tokens=4000"]
    config = resolve("grpo", ["model.fresh={}", *sets])
    setup, costs = setup_of(config), Costs(decode_step=0.03, decode_sequence=1e-4, train_token=2e-5, publish=2.0)
    known = LogNormal(500, 0.5, 4000)
    run = simulate(setup, costs, known, 30)
    folder = RunFolder.create(tmp_path / "run", config.model_dump(mode="json"))
    tokens = run.generated / 30
    row = {
        "seconds/step": run.mean, "seconds/update": costs.train_token * tokens, "seconds/publish": 2.0,
        "seconds/other": 2.0, "seconds/rollout": run.mean - 2.0 - costs.train_token * tokens,
        "idle/generators": run.generators_idle, "tokens/generated": tokens, "trained_tokens": tokens,
        "length/p50": 500.0, "length/p90": 949.0, "length/max": float(np.mean(run.longest)),
    }  # fmt: skip
    for step in range(4):
        folder.append_metrics(step + 1, row)
    folder.close()
    value = planned(str(tmp_path / "run"), "--steps", "30")
    assert all("measured in" in source for source in value["sources"].values())
    assert value["costs"]["train_token"] == pytest.approx(2e-5) and value["costs"]["publish"] == 2.0
    assert value["plans"][0]["step_seconds"]["mean"] == pytest.approx(run.mean, rel=0.1)


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
