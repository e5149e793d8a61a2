"""What a window that adapts costs beside one that is always open, and what it saves in lag. About a minute.

    python bench/window.py                     # 300 fleets of 120 steps each, drawn from seed 0
    python bench/window.py --fleets 20         # a look

Generators that may always run k steps ahead are never slower for want of groups; they train on the oldest tokens, too.
Fleets of every shape are planned with both: 1 to 16 prompts a step, lags of 1 to 8, one to four generators, trainers
from five times as fast as generation to three times as slow, and lengths with and without stragglers. One JSON line:
the seconds of the adaptive window over those of the open one, and the mean lag of both.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import replace

import numpy as np

from strop.lab.planning import Costs, LogNormal, Setup, Straggling, settled_bound, simulate
from strop.lab.planning.costs import Lengths

LENGTHS: tuple[Lengths, ...] = (
    LogNormal(40, 0.5, 400), LogNormal(60, 1.2, 600), Straggling(LogNormal(40, 0.5, 400), share=0.02, factor=10),
    Straggling(LogNormal(6, 0.5, 40), share=0.1, factor=30),
)  # fmt: skip


def fleet(rng: random.Random) -> tuple[Setup, Costs, Lengths]:
    """A shape, and the trainer's speed by what generation would take at least."""
    setup = Setup(
        prompts_per_step=rng.choice([1, 2, 3, 4, 8, 16]),
        samples_per_prompt=rng.choice([1, 4, 8]),
        max_lag=rng.choice([1, 2, 3, 4, 8]),
        slots=rng.choice([16, 64, 1000]),
        generators=rng.choice([1, 2, 4]),
    )
    costs = Costs(
        decode_step=rng.choice([0.1, 1.0]), decode_sequence=rng.choice([0.0, 0.002, 0.02]),
        publish=rng.choice([0.0, 1.0]), record_step=rng.choice([0.0, 1.0]),
    )  # fmt: skip
    lengths = rng.choice(LENGTHS)
    generation = settled_bound(simulate(setup, costs, lengths, 100), costs).seconds
    update = generation * rng.choice([0.2, 0.6, 0.9, 1.1, 1.5, 3.0])
    return setup, costs.model_copy(update={"train_update": update}), lengths


def main() -> None:
    """Both windows on every fleet."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    options.add_argument("--fleets", type=int, default=300)
    options.add_argument("--steps", type=int, default=120)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    rng = random.Random(given.seed)
    times, lags, open_lags = [], [], []
    for number in range(given.fleets):
        setup, costs, lengths = fleet(rng)
        adaptive = simulate(setup, costs, lengths, given.steps, number)
        opened = simulate(replace(setup, window="full"), costs, lengths, given.steps, number)
        times.append(adaptive.total / opened.total)
        lags.append(adaptive.mean_lag)
        open_lags.append(opened.mean_lag)
        if sys.stderr.isatty():
            print(f"\r{number + 1}/{given.fleets}", end="", file=sys.stderr)
    least, ninth, most = (round(float(np.quantile(times, share)), 3) for share in (0, 0.9, 1))
    line = {
        "bench": "window", "fleets": given.fleets, "steps": given.steps,
        "time_mean": round(float(np.mean(times)), 4), "time_least": least, "time_ninth_decile": ninth,
        "time_most": most, "mean_lag": round(float(np.mean(lags)), 2),
        "mean_lag_open": round(float(np.mean(open_lags)), 2),
    }  # fmt: skip
    print(json.dumps(line))


if __name__ == "__main__":
    main()
