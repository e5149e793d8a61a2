"""From the curves that are there to the verdict on a claim, and what its arms showed of their mechanisms."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bench.claims.analysis import Result, judge
from bench.claims.arms import ARMS
from bench.claims.claim import Claim
from bench.claims.execute import Curve, curve_path, load
from bench.claims.mechanisms import untried

SEEDS = range(100)


def finished(out: Path, arm: str, seeds: Collection[int] = SEEDS) -> dict[int, Curve]:
    """The curves of an arm as it is defined now, by seed."""
    there = [seed for seed in seeds if curve_path(out, arm, seed).is_file()]
    found = {seed: load(out, arm, seed, ARMS[arm].config(seed)) for seed in there}
    return {seed: curve for seed, curve in found.items() if curve is not None}


def paired_curves(out: Path, claim: Claim, seeds: Collection[int] = SEEDS) -> dict[int, dict[str, Curve]]:
    """The curves of a claim's arms by seed, where all are there and began with the same model."""
    by_arm = {arm: finished(out, arm, seeds) for arm in claim.arms}
    whole = set.intersection(*(set(curves) for curves in by_arm.values()))
    pairs = {seed: {arm: curves[seed] for arm, curves in by_arm.items()} for seed in sorted(whole)}
    return {seed: curves for seed, curves in pairs.items() if len({curve.base for curve in curves.values()}) == 1}


def judged(out: Path, claim: Claim) -> Result:
    """The verdict on a claim by the runs that are there; "not tried" where an arm does not show its mechanism."""
    runs = paired_curves(out, claim)
    values = {seed: value for seed, curves in runs.items() if (value := claim.effect(curves)) is not None}
    made = max((curve.made for curves in runs.values() for curve in curves.values()), default="")
    shown = {check.words: {seed: check.value(curves) for seed, curves in runs.items()} for check in claim.checks}
    reasons = [f"seed {seed}: {reason}" for seed, curves in runs.items() if (reason := untried(curves, claim.checks))]
    result = judge(values, claim.says, claim.margin)._replace(shown=shown, made=made)
    return result._replace(verdict="not tried", untried=reasons[0]) if reasons else result
