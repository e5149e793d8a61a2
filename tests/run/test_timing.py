"""The time of a step, said before it begins: near the real one, and measured without a trace."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.runs import assert_same_run, small_config
from tests.watching import Notes

from strop.base.view import SilentView
from strop.config.parse import edit
from strop.run import run, timing
from strop.run.assembly import assemble
from strop.run.doctor import review
from strop.run.folder import RunFolder
from strop.run.run import train
from strop.run.timing import Speed, of_time, step_time

# Ten tokens a second; a product of a nanosecond; a million parameters in the layers, three in the head.
SPEED = Speed(10.0, 1e-9, 0.5, 0.25, layers=1_000_000, head=3_000_000, shares=False)


def test_a_step_takes_what_its_parts_take() -> None:
    sets = ("batch.prompts_per_step=2", "batch.samples_per_prompt=4", "batch.updates_per_step=2",
            "batch.tokens_per_microbatch=64", "sampling.max_new_tokens=12")  # fmt: skip
    found = step_time(small_config(*sets), SPEED, 20)
    # 96 tokens, and 2 prompts of 20 through the layers, forward only.
    assert found.decoding == pytest.approx(9.6 + 40 * 1e-3 / 3)
    # 256 tokens through the layers and 96 through the head; 2 updates of 2 micro-batches of 2 sequences; 2 steps.
    assert found.update == pytest.approx(0.256 + 0.288 + 4 * 0.5 + 2 * 0.25)
    shared = step_time(small_config(*sets), Speed(10.0, 1e-9, 0.5, 0.25, 1_000_000, 3_000_000, shares=True), 20)
    assert shared.update == pytest.approx(0.136 + 0.288 + 4 * 0.5 + 2 * 0.25)
    reference = step_time(small_config(*sets, "algorithm.kl_in_reward=KlInReward"), SPEED, 20)
    assert reference.update == pytest.approx((0.256 + 0.288 + 4 * 0.5) * 4 / 3 + 2 * 0.25)


def test_a_step_of_hours_comes_with_settings_that_make_it_minutes() -> None:
    config = small_config("batch.prompts_per_step=48", "batch.samples_per_prompt=16", "sampling.max_new_tokens=96")
    data = assemble(small_config(), SilentView()).data.train
    found = of_time(config, SPEED, data)
    assert found.level == "warning"
    assert "up to 2 h 11 min, if all 768 completions have 96 tokens" in found.found
    assert "--set batch.prompts_per_step=8" in found.way_out and found.way_out.endswith(" s")
    sets = dict(part.split("=") for part in found.way_out.split() if "=" in part)
    prompt = sum(len(data[place].prompt_ids) for place in range(len(data))) / len(data)
    assert step_time(small_config(*(f"{key}={value}" for key, value in sets.items())), SPEED, prompt).whole <= 600
    assert of_time(small_config(), SPEED, data).level == "ok"


@pytest.mark.parametrize(
    "sets",
    [
        ("evaluation.every=2",),
        ("orchestration.max_lag=2", "orchestration.executor=in_process"),
        ("model.lora.rank=4",),
    ],
    ids=["held out", "lag", "adapters"],
)
def test_measuring_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: tuple[str, ...]) -> None:
    config, view = small_config("steps=2", "evaluation.every=none", *sets), Notes()
    train(config, tmp_path / "without", SilentView())
    monkeypatch.setattr(timing, "TINY", 0)
    train(config, tmp_path / "with", view)
    assert sum(note.startswith("time: a step takes up to") for note in view.lines) == 1
    assert_same_run(tmp_path / "without", tmp_path / "with")


def test_what_is_said_is_what_a_step_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processor's time of this process, which other programs on the machine do not count in."""
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    monkeypatch.setattr(timing, "TINY", 0)
    speeds: list[Speed] = []

    def measured(*given: Any) -> Speed:
        speeds.append(timing.measure(*given))
        return speeds[0]

    monkeypatch.setattr(run, "measure", measured)
    sets = ("steps=2", "model.fresh.hidden_size=128", "model.fresh.layers=4", "model.fresh.intermediate_size=384",
            "batch.tokens_per_microbatch=1024",
            "sampling.max_new_tokens=48", "evaluation.every=none")  # fmt: skip
    config = small_config(*sets)
    train(config, tmp_path / "run", SilentView())
    row: dict[str, Any] = dict(RunFolder.open(tmp_path / "run").read_metrics()[-1])
    said = step_time(edit(config, [f"sampling.max_new_tokens={row['length/mean']:.0f}"]), speeds[0], 10)
    assert 1 / 1.5 < said.decoding / row["seconds/rollout"] < 1.5
    assert 1 / 1.5 < said.update / row["seconds/update"] < 1.5


def test_doctor_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "TINY", 0)
    found = review("grpo", ("model.fresh.max_positions=512", "sampling.max_new_tokens=16"), False, 0, SilentView())
    assert [one.level for one in found if one.code == "step-time"] == ["ok"]
