"""Costs come back out of a run folder that was written with them; what cannot be measured is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.made import group, rollout
from tests.runs import small_config
from typer.testing import CliRunner

from strop.base.types import Group, InputError
from strop.cli import app
from strop.config.schema import RunConfig
from strop.lab.planning.costs import SKYWORK_COSTS, SKYWORK_LENGTHS, default_lengths
from strop.lab.planning.lengths import ConstantLength, Empirical, LogNormal, Straggling, parse_lengths
from strop.lab.planning.question import decode_steps, measure
from strop.run.folder import RunFolder

STEP, SEQUENCE, UPDATE, TOKEN, RECORD, RECORD_TOKEN, PUBLISH = 0.02, 0.001, 0.3, 0.0005, 0.05, 0.0002, 0.01
PROMPT = 2  # tokens of `tests.made`


def lengths_of(seed: int, prompts: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(2, 12, 4).tolist() for _ in range(prompts)]


def write_run(path: Path, config: RunConfig, prompts: int, steps: int = 8, noise: float = 0.0) -> RunFolder:
    """A run whose seconds follow from the constants above."""
    folder = RunFolder.create(path, config.model_dump(mode="json"))
    rng = np.random.default_rng(0)
    for step in range(1, steps + 1):
        lengths = lengths_of(step, prompts)
        total = sum(map(sum, lengths))
        packed = total + PROMPT * 4 * prompts
        seconds = {
            "rollout": STEP * decode_steps(lengths, config.engine.slots) + SEQUENCE * total,
            "update": UPDATE + TOKEN * packed,
            "verify": 0.0,
            "other": RECORD + RECORD_TOKEN * total + PUBLISH,
        }
        seconds = {name: value * float(np.exp(rng.normal() * noise)) for name, value in seconds.items()}
        row = {f"seconds/{name}": value for name, value in seconds.items()}
        row |= {"seconds/step": sum(seconds.values()), "seconds/publish": PUBLISH, "updates": 1.0}
        row |= {"tokens": float(packed), "tokens/generated": float(total), "groups/trained": float(prompts)}
        groups: list[Group] = []
        for ticket, group_lengths in enumerate(lengths):
            groups.append(group(ticket, *(rollout(1.0, length=length) for length in group_lengths)))
        folder.append_metrics(step, row)
        folder.write_rollouts(step, groups)
    folder.close()
    return folder


def test_the_constants_of_a_run_are_found(tmp_path: Path) -> None:
    found = measure([write_run(tmp_path / "run", small_config(), prompts=6)])
    costs = found.costs
    assert costs.decode_step == pytest.approx(STEP)
    assert costs.decode_sequence == pytest.approx(SEQUENCE)
    assert costs.train_update == pytest.approx(UPDATE)
    assert costs.train_token == pytest.approx(TOKEN)
    assert costs.record_step == pytest.approx(RECORD)
    assert costs.record_token == pytest.approx(RECORD_TOKEN)
    assert costs.publish == pytest.approx(PUBLISH)
    assert all(fit.r_squared == pytest.approx(1) and fit.relative_error < 1e-9 for fit in found.fits)
    assert found.setup.prompt_tokens == PROMPT and found.setup.drop == 0
    assert found.setup.colocated and found.setup.slots == 16
    assert len(found.lengths.groups) == 7 * 6  # the first step warms up


def test_noise_shows_in_the_quality_of_the_fit(tmp_path: Path) -> None:
    found = measure([write_run(tmp_path / "run", small_config(), prompts=6, steps=30, noise=0.1)])
    assert all(0.03 < fit.relative_error < 0.2 for fit in found.fits)


def test_a_second_run_of_another_batch_size_adds_to_the_fit(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", small_config(), prompts=6)
    two = write_run(tmp_path / "two", small_config("batch.prompts_per_step=12"), prompts=12)
    found = measure([one, two])
    assert found.costs.decode_step == pytest.approx(STEP)
    assert found.setup.prompts_per_step == 6  # the first one's shape
    assert found.fits[0].steps == 14


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="costs need more than 4 steps with rollouts, it has 4"):
        measure([write_run(tmp_path / "short", small_config(), prompts=6, steps=4)])
    with pytest.raises(InputError, match="measure a run of a few steps with orchestration.max_lag=0"):
        measure([write_run(tmp_path / "stale", small_config("orchestration.max_lag=2"), prompts=6)])


def test_a_budget_that_cut_completions_is_noted(tmp_path: Path) -> None:
    found = measure([write_run(tmp_path / "run", small_config("sampling.max_new_tokens=11"), prompts=6)])
    assert any("were cut at 11 tokens" in note for note in found.notes)


def test_the_command_plans_from_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", small_config(), prompts=6).path
    arguments = ["plan", "--from", str(run), "--steps", "300", "--json"]
    value = json.loads(CliRunner().invoke(app, arguments).stdout)
    (plan,) = value["plans"]
    assert plan["step_seconds"]["mean"] == pytest.approx(value["measured"]["step_seconds"], rel=0.03)
    assert plan["setup"]["colocated"]
    # A third of the prompts: the parts that do not depend on the batch stay.
    value = json.loads(CliRunner().invoke(app, [*arguments, "--set", "batch.prompts_per_step=2"]).stdout)
    third = [lengths_of(seed, 2) for seed in range(200)]
    tokens = np.mean([sum(map(sum, step)) for step in third])
    decode = np.mean([decode_steps(step, 16) for step in third])
    expected = STEP * decode + SEQUENCE * tokens + UPDATE + TOKEN * (tokens + 8 * PROMPT)
    expected += RECORD + RECORD_TOKEN * tokens + PUBLISH
    assert value["plans"][0]["step_seconds"]["mean"] == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("seed", range(4))
def test_no_printed_step_is_quicker_than_the_bound_beside_it(seed: int) -> None:
    """The bound is of the simulated completions: few steps may have shorter ones than others drawn for the bound."""
    arguments = [
        "plan", "grpo", "--steps", "6", "--seed", str(seed), "--lengths", "lognormal:50,1", "--json",
        "--cost", "decode_sequence=0.01", "--cost", "train_token=1e-4",
    ]  # fmt: skip
    (plan,) = json.loads(CliRunner().invoke(app, arguments).stdout)["plans"]
    assert 0 < plan["bound_seconds_per_update"] <= plan["seconds_per_update"] * (1 + 1e-9)


def test_the_command_compares_splits_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    picture = tmp_path / "plan.png"
    arguments = [
        "plan", "grpo", "--devices", "6", "--compare", "k=0,2", "--lengths", "lognormal:50,0.5+0.05x4", "--steps", "12",
        "--cost", "decode_step=0.01", "--cost", "train_token=1e-4", "--plot", str(picture),
    ]  # fmt: skip
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    for name in ("synchronous", "PipelineRL-2", "PPO-off-policy-2"):
        assert name in shown.stdout
    assert "behind" in shown.stdout and "…" not in shown.stdout  # no cell is cut
    table = shown.stdout[shown.stdout.index("s/update") : shown.stdout.index("split: ")]
    assert max(map(len, table.splitlines())) <= 80
    assert picture.read_bytes().startswith(b"\x89PNG")
    value = json.loads(CliRunner().invoke(app, [*arguments[:-2], "--json"]).stdout)
    seconds = {plan["name"]: plan["seconds_per_update"] for plan in value["plans"]}
    assert seconds["PipelineRL-2"] < seconds["PPO-off-policy-2"] < seconds["synchronous"]
    for plan in value["plans"]:
        assert plan["setup"]["generators"] + plan["setup"]["trainers"] == 6
        assert plan["bound_seconds_per_update"] <= plan["seconds_per_update"] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name one thing to plan"),
        (["grpo", "--cost", "decode=1", "--lengths", "constant:5"], "costs are decode_step, "),
        (["grpo", "--cost", "decode_step", "--lengths", "constant:5"], "write it as NAME=SECONDS"),
        (["grpo", "--cost", "decode_step=1", "--lengths", "normal:5"], "write constant:TOKENS"),
        (["grpo", "--cost", "decode_step=1", "--lengths", "constant:5", "--compare", "k=a"], "write lags as"),
        (["grpo", "--cost", "foo=1"], "costs are decode_step, decode_sequence"),
    ],
)
def test_a_wrong_argument_is_explained(arguments: list[str], said: str) -> None:
    failed = CliRunner().invoke(app, ["plan", *arguments])
    assert isinstance(failed.exception, InputError) and said in str(failed.exception)


def test_without_a_run_defaults_are_planned_with_and_named() -> None:
    arguments = ["plan", "grpo", "--steps", "3", "--generators", "2", "--trainers", "1"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0 and "costs and lengths are defaults" in shown.stdout
    value = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert value["defaults"] == ["costs", "lengths"] and value["costs"]["decode_step"] == SKYWORK_COSTS.decode_step
    given = CliRunner().invoke(app, [*arguments, "--lengths", "constant:50", "--cost", "decode_step=0.1", "--json"])
    assert json.loads(given.stdout)["defaults"] == []
    assert default_lengths(16_384) == SKYWORK_LENGTHS and default_lengths(256).median == 128


def test_lengths_are_read_and_cut() -> None:
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
    seen = Empirical(((1, 2), (30, 40)), limit=35)
    assert {tuple(seen.draw(rng, 2)) for _ in range(50)} == {(1, 2), (30, 35)}  # a group stays together
    assert {int(length) for _ in range(50) for length in seen.draw(rng, 3)} == {1, 2, 30, 35}
