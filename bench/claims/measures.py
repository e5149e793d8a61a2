"""What is measured of the curves of one seed: numbers of an arm, and differences between arms.

Held-out figures are those of the evaluations, whose problems and sampling seeds are the same for every arm. "Late" is
the mean of the last half of the evaluations after the first, or of the last quarter of the steps; "course" the mean
over all evaluations after the first, which is higher for what rises sooner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from bench.claims.execute import Curve

Curves = Mapping[str, Curve]
Measure = Callable[[Curve], float | None]
Effect = Callable[[Curves], float | None]

PASS, ENTROPY = "evaluation/pass_rate", "evaluation/entropy"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def late(name: str) -> Measure:
    """The mean of an evaluation's metric over the last half of the evaluations after step 0."""

    def measure(curve: Curve) -> float | None:
        values = [value for step, value in curve.series(name) if step > 0]
        return _mean(values[len(values) // 2 :])

    return measure


def course(name: str) -> Measure:
    """The mean of an evaluation's metric over all evaluations after step 0."""
    return lambda curve: _mean([value for step, value in curve.series(name) if step > 0])


def last(name: str) -> Measure:
    """The last value of a metric."""
    return lambda curve: next((value for _, value in reversed(curve.series(name))), None)


def last_quarter(name: str) -> Measure:
    """The mean of a step's metric over the last quarter of the steps."""

    def measure(curve: Curve) -> float | None:
        values = [value for _, value in curve.series(name)]
        return _mean(values[-max(len(values) // 4, 1) :])

    return measure


def first(name: str, count: int = 1) -> Measure:
    """The mean of a metric's first `count` values."""
    return lambda curve: _mean([value for _, value in curve.series(name)][:count])


def smallest(name: str) -> Measure:
    """The smallest value of a metric."""
    return lambda curve: min((value for _, value in curve.series(name)), default=None)


def largest(name: str) -> Measure:
    """The largest value of a metric."""
    return lambda curve: max((value for _, value in curve.series(name)), default=None)


def at(name: str, step: int) -> Measure:
    """The value of a metric at a step."""
    return lambda curve: dict(curve.series(name)).get(step)


def falls(name: str) -> Measure:
    """How often a metric is lower at a step than at the one before; None where it was never measured."""

    def measure(curve: Curve) -> float | None:
        values = [value for _, value in curve.series(name)]
        return float(sum(after < before for before, after in pairwise(values))) if values else None

    return measure


def gain(name: str) -> Measure:
    """The late value of an evaluation's metric less its first."""

    def measure(curve: Curve) -> float | None:
        end, start = late(name)(curve), first(name)(curve)
        return None if end is None or start is None else end - start

    return measure


def ratio_log(end: Measure, start: Measure) -> Measure:
    """log(one measure / another) of the same arm."""

    def measure(curve: Curve) -> float | None:
        over, under = end(curve), start(curve)
        return None if not over or not under or over / under <= 0 else math.log(over / under)

    return measure


def mean_penalty(curve: Curve) -> float | None:
    """What a completion's length takes off its reward, mean over the steps, where rewards are 1 and −1."""
    rewards = dict(curve.series("reward/mean"))
    return _mean([2 * rate - 1 - rewards[step] for step, rate in curve.series("pass_rate") if step in rewards])


def mean(name: str) -> Measure:
    """The mean of a metric over all steps."""
    return lambda curve: _mean([value for _, value in curve.series(name)])


def total(name: str) -> Measure:
    """The sum of a metric over all steps."""
    return lambda curve: math.fsum(value for _, value in curve.series(name))


def gap(one: str, other: str) -> Measure:
    """The mean over the steps that have both metrics of one less the other."""

    def measure(curve: Curve) -> float | None:
        against = dict(curve.series(other))
        return _mean([value - against[step] for step, value in curve.series(one) if step in against])

    return measure


def unsteadiness(curve: Curve) -> float | None:
    """How far held-out entropy strays from its beginning: the mean of |log(H_t / H_0)| over evaluations."""
    series = curve.series(ENTROPY)
    if len(series) < 2 or series[0][0] != 0 or min(value for _, value in series) <= 0:
        return None
    start = series[0][1]
    return _mean([abs(math.log(value / start)) for _, value in series[1:]])


def minus(measure: Measure, one: str, other: str) -> Effect:
    """The measure of arm `one` less that of arm `other`."""

    def effect(curves: Curves) -> float | None:
        left, right = measure(curves[one]), measure(curves[other])
        return None if left is None or right is None else left - right

    return effect


def log_ratio(measure: Measure, one: str, other: str) -> Effect:
    """log(measure of `one` / measure of `other`)."""

    def effect(curves: Curves) -> float | None:
        left, right = measure(curves[one]), measure(curves[other])
        return None if not left or not right or left / right <= 0 else math.log(left / right)

    return effect


def of(measure: Measure, arm: str, less: float = 0.0) -> Effect:
    """The measure of one arm less a number."""

    def effect(curves: Curves) -> float | None:
        found = measure(curves[arm])
        return None if found is None else found - less

    return effect


def log_over(bound: float, measure: Measure, arm: str) -> Effect:
    """log(a bound / the measure of `arm`)."""

    def effect(curves: Curves) -> float | None:
        found = measure(curves[arm])
        return math.log(bound / found) if found else None

    return effect
