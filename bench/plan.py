"""How well `strop plan` predicts: published step times, published schedules, and the real loop over simulated engines.

    python bench/plan.py                      all of it; a JSON object a line
    python bench/plan.py --only fleet         the real loop and fleet with engines that sleep, on any machine
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from strop.lab.planning import ConstantLength, Costs, Setup, Straggling, settled_bound, simulate
from strop.lab.planning.costs import CONSTANTS, SKYWORK_LENGTHS, costs_of

SKYWORK_ROLLOUT_SECONDS = {32: 375.0, 64: 270.0, 128: 225.0, 256: 205.0}
SCALERL_LENGTHS = replace(SKYWORK_LENGTHS, limit=14_336)
SCALERL = Setup(prompts_per_step=48, samples_per_prompt=16, generators=64, trainers=16)


def skywork_table_9(devices: int) -> tuple[Setup, Costs]:
    """The setting of Table 9 on so many GPUs: generation only, samples spread evenly over the engines."""
    setup = Setup(64, 16, generators=devices, trainers=devices, colocated=True, assign="sample")
    rollout = costs_of({name: CONSTANTS[name] for name in ("decode_step", "decode_sequence")})
    return setup, rollout


def table_9() -> None:
    """Skywork-OR1, Table 9."""
    for devices, published in SKYWORK_ROLLOUT_SECONDS.items():
        found = simulate(*skywork_table_9(devices), SKYWORK_LENGTHS, steps=20).mean
        show(bench="table 9", devices=devices, published=published, simulated=found, error=found / published - 1)


def schedules() -> None:
    """ScaleRL's split of 80 devices, under PipelineRL-k and PPO-off-policy-k."""
    for setup in SCALERL.schedules((0, 1, 4, 8)):
        found = simulate(setup, costs_of(), SCALERL_LENGTHS, steps=max(6, 40 // setup.updates_per_step))
        bound = settled_bound(found, costs_of()).seconds / setup.updates_per_step
        show(
            bench="schedules", setting=setup.name, seconds_per_update=found.update_seconds, bound=bound,
            trainer_idle=found.trainer_idle, generators_idle=found.generators_idle,
            updates_behind=found.updates_behind,
        )  # fmt: skip


def fleet() -> None:
    """The loop over two generator processes whose engines sleep (`bench/pipeline.py`), with stragglers, by lag."""
    import statistics
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from bench.pipeline import Shape
    from bench.pipeline import train as run
    from bench.simulated import Simulation as Engines

    engines = Engines(slots=16, token_seconds=0.03, tokens=5, straggler_share=0.05, straggler_factor=30)
    for lag, steps in ((0, 5), (1, 7), (8, 18)):
        shape = Shape(prompts=8, samples=4, lag=lag, generators=2, simulation=engines, train_token=0.03 / 32)
        measured, means = run(shape, steps)
        setup = Setup(8, 4, max_lag=lag, generators=2, slots=16)
        costs = Costs(decode_step=0.03, train_token=0.03 / 32, publish=means["seconds/publish"])
        lengths = Straggling(ConstantLength(5), 0.05, 30)
        planned = statistics.mean(simulate(setup, costs, lengths, steps, seed).total for seed in range(20))
        show(bench="fleet", lag=lag, steps=steps, planned=planned, measured=measured, error=planned / measured - 1)


def show(**values: Any) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"table 9": table_9, "schedules": schedules, "fleet": fleet}
    parser.add_argument("--only", choices=parts, help="one part of it")
    only = parser.parse_args().only
    for name, part in parts.items():
        if only in (None, name):
            part()
