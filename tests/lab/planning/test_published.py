"""What papers measured, and what the planner makes of their settings."""

from __future__ import annotations

import pytest
from bench.plan import SCALERL, SCALERL_LENGTHS, SKYWORK_ROLLOUT_SECONDS, skywork_table_9

from strop.lab.planning import Simulation, simulate
from strop.lab.planning.costs import SKYWORK_LENGTHS, costs_of


@pytest.mark.parametrize(("devices", "seconds"), SKYWORK_ROLLOUT_SECONDS.items())
def test_the_rollout_times_of_skywork_are_met_within_a_tenth(devices: int, seconds: float) -> None:
    assert simulate(*skywork_table_9(devices), SKYWORK_LENGTHS, steps=6).mean == pytest.approx(seconds, rel=0.1)


def test_more_devices_help_less_and_less() -> None:
    times = [simulate(*skywork_table_9(devices), SKYWORK_LENGTHS, steps=4).mean for devices in (32, 64, 128, 256)]
    saved = [before - after for before, after in zip(times, times[1:], strict=False)]
    assert saved[0] > saved[1] > saved[2] > 0  # 105, 45, 20 in the paper


def test_pipeline_rl_is_quicker_than_ppo_off_policy_for_it_leaves_less_idle() -> None:
    # ScaleRL, 3.1 and A.12: fewer tokens are not the reason, waiting is.
    def run(k: int, pipeline: bool) -> Simulation:
        setup = SCALERL.pipeline(k) if pipeline else SCALERL.alternating(k)
        return simulate(setup, costs_of(), SCALERL_LENGTHS, steps=24 // setup.updates_per_step)

    synchronous, alternating, pipelined = run(1, False), run(8, False), run(8, True)
    assert pipelined.update_seconds < 0.85 * alternating.update_seconds < 0.85 * synchronous.update_seconds
    assert pipelined.generators_idle < alternating.generators_idle
    assert pipelined.trainer_idle < alternating.trainer_idle
    assert pipelined.tokens == pytest.approx(alternating.tokens, rel=0.02)
