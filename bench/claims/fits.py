"""Fits to the first half of an arm's curve, held against its second half."""

from __future__ import annotations

import numpy as np
from bench.claims.execute import Curve
from bench.claims.measures import PASS, Curves, Effect
from bench.halves import fit_first_half

from strop.lab.scaling import Curve as Points
from strop.lab.scaling import FitSettings
from strop.lab.scaling.curves import Unit


def points(curve: Curve, x: Unit) -> Points:
    """The held-out curve as `strop fit` reads it from a run's folder; `x` is steps, or tokens generated so far."""
    spent = {0: 0.0}
    for step, tokens in curve.series("tokens/generated"):
        spent[step] = spent[max(spent)] + tokens
    series, errors = curve.series(PASS), dict(curve.series("evaluation/stderr"))
    at = np.array([float(step) if x == "steps" else spent[step] for step, _ in series[1:]])
    rate, stderr = (np.array(each) for each in zip(*((rate, errors[step]) for step, rate in series[1:]), strict=True))
    (first, r0), *_ = series
    return Points(curve.arm, at, rate, r0, stderr, errors[first], unit=x, same_problems=True)


def half_fit(curve: Curve, x: Unit) -> dict[str, float] | str:
    """The errors on the second half of a sigmoid and a power law fitted to the first half; the reason where refused."""
    found = fit_first_half(points(curve, x), FitSettings(bootstrap=100))
    error = found.held_back_error()
    if found.refused is not None or error is None:
        return found.refused or "no points are held back"
    return {
        "mean": error.mean_error, "mean_absolute": error.mean_absolute_error, "largest": error.largest_error,
        "power_law": error.power_law, "points": float(error.points),
    }  # fmt: skip


def extrapolation(name: str, arm: str, x: Unit = "steps", sign: float = 1.0, plus: float = 0.0) -> Effect:
    """sign · an error of `half_fit` + plus; None where the fit was refused."""

    def effect(curves: Curves) -> float | None:
        found = half_fit(curves[arm], x)
        return None if isinstance(found, str) else sign * found[name] + plus

    return effect


def sigmoid_gain(arm: str, x: Unit = "steps") -> Effect:
    """By how much the power law's mean absolute error on the second half exceeds the sigmoid's."""

    def effect(curves: Curves) -> float | None:
        found = half_fit(curves[arm], x)
        return None if isinstance(found, str) else found["power_law"] - found["mean_absolute"]

    return effect
