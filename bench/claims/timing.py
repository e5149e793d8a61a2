"""Simulated time: how long updates of PPO-off-policy-8 and PipelineRL-8 take with generators beside a trainer."""

from __future__ import annotations

import math
from functools import cache

from bench.claims.execute import Curve
from bench.claims.measures import PASS, Curves, Effect, mean

from strop.lab.planning import ConstantLength, Costs, Setup, Straggling, simulate

# Generators and costs of bench/pipeline.py: a decode step takes the same time however many sequences run, an update as
# long as the generators need for its tokens with all slots busy; one completion of twenty is thirty times as long.
GENERATORS, SLOTS, DECODE = 2, 64, 0.004
STRAGGLERS = 0.05, 30.0
OFF_POLICY = 8  # k of PPO-off-policy-k and PipelineRL-k
PLANNED_UPDATES = 160


@cache
def update_seconds(length: int, seed: int) -> tuple[float, float]:
    """Simulated seconds an update of PPO-off-policy-8 and of PipelineRL-8, on completions of a usual length in tokens.

    They are of one scale: what they stand to each other in is what can be read from them.
    """
    work = Setup(16, 8, generators=GENERATORS, slots=SLOTS)
    costs = Costs(decode_step=DECODE, train_token=DECODE / (GENERATORS * SLOTS))
    lengths = Straggling(ConstantLength(length), *STRAGGLERS)
    off = simulate(work.alternating(OFF_POLICY), costs, lengths, PLANNED_UPDATES // OFF_POLICY, seed)
    return off.update_seconds, simulate(work.pipeline(OFF_POLICY), costs, lengths, PLANNED_UPDATES, seed).update_seconds


def _usual_length(curve: Curve) -> int | None:
    """The mean length of an arm's completions over its steps."""
    found = mean("length/mean")(curve)
    return None if found is None else round(found)


def schedule_gain(arm: str) -> Effect:
    """log(seconds an update of PPO-off-policy-8 / of PipelineRL-8), of completions as long as the arm's."""

    def effect(curves: Curves) -> float | None:
        length = _usual_length(curves[arm])
        if length is None:
            return None
        off, pipelined = update_seconds(length, curves[arm].seed)
        return math.log(off / pipelined)

    return effect


def updates_until(curve: Curve, rate: float) -> float | None:
    """Optimizer updates until the held-out pass rate reaches `rate`, linear between evaluations; None if never."""
    made = {0: 0.0}
    for step, count in curve.series("updates"):
        made[step] = made[max(made)] + count
    before: tuple[float, float] | None = None
    for step, value in curve.series(PASS):
        here = made[step], value
        if value >= rate:
            if before is None:
                return 0.0
            return before[0] + (rate - before[1]) / (value - before[1]) * (here[0] - before[0])
        before = here
    return None


def sooner(pipelined: str, off: str, rate: float) -> Effect:
    """log(simulated seconds until `rate` of arm `off` / of arm `pipelined`)."""

    def effect(curves: Curves) -> float | None:
        length = _usual_length(curves[pipelined])
        needed = updates_until(curves[off], rate), updates_until(curves[pipelined], rate)
        if length is None or not needed[0] or not needed[1]:
            return None
        seconds = update_seconds(length, curves[pipelined].seed)
        return math.log(needed[0] * seconds[0] / (needed[1] * seconds[1]))

    return effect


