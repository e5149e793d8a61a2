"""Curves without a ceiling, and the power law, to hold the sigmoid against (ScaleRL A.4).

    power law   R_C = A − D / C^B     the form of pre-training curves; A at most 1
    growth      R_C = R_0 + k C^B     the sigmoid far below C_mid: no sign of an end
    line        R_C = a + b log C     the sigmoid around C_mid: no sign of an end either

All are linear but for B, which is searched on a grid that narrows around the best value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strop.lab.scaling.curves import Curve

Array = NDArray[np.float64]

EXPONENTS = (0.01, 10.0)
CELLS = 200
NARROWINGS = 4


@dataclass(frozen=True)
class PowerLaw:
    """R_C = A − D / C^B, with the squared error `sse` over the points it was fitted to (unweighted)."""

    A: float
    D: float
    B: float
    sse: float

    def value(self, compute: ArrayLike) -> Array:
        """R_C at `compute` (above 0), of the same shape."""
        return self.A - self.D * np.asarray(compute, np.float64) ** -self.B


def fit_power_law(curve: Curve, weight: Array) -> PowerLaw:
    """The weighted least-squares power law with A in [0, 1], D at least 0 and B in [0.01, 10]; weight [n]."""
    scale = float(np.exp(np.mean(np.log(curve.compute))))
    logs = np.log(curve.compute / scale)

    def at(b: Array) -> tuple[Array, Array, Array]:
        falling = np.exp(-np.minimum(b[:, None] * logs[None, :], 700.0))  # [cells, n]
        mean_u = (falling * weight).sum(1) / weight.sum()
        mean_y = (curve.pass_rate * weight).sum() / weight.sum()
        centred = falling - mean_u[:, None]
        spread = np.maximum((centred**2 * weight).sum(1), 1e-300)
        d = np.maximum(-(centred * weight) @ (curve.pass_rate - mean_y) / spread, 0.0)
        a = mean_y + d * mean_u
        over = a > 1.0
        bounded = np.maximum(falling * weight @ (1.0 - curve.pass_rate), 0.0) / (falling**2 * weight).sum(1)
        a, d = np.where(over, 1.0, a), np.where(over, bounded, d)
        return a, d, (weight * (curve.pass_rate - a[:, None] + d[:, None] * falling) ** 2).sum(1)

    b = _narrow(lambda b: at(b)[2])
    a, d, _ = (values[0] for values in at(np.array([b])))
    law = PowerLaw(float(a), float(d * scale**b), b, 0.0)
    return PowerLaw(law.A, law.D, law.B, float(((curve.pass_rate - law.value(curve.compute)) ** 2).sum()))


def growth_error(curve: Curve, weight: Array, r0_weight: float | None = None) -> float:
    """Weighted squared error of the best R_0 + k C^B, k at least 0.

    R_0 is the measured one, or moves from it at the price of r0_weight times the square of how far, as in the sigmoid.
    """
    logs = np.log(curve.compute / curve.compute.max())
    gained = curve.pass_rate - curve.r0

    def error(b: Array) -> Array:
        rising = np.exp(np.maximum(b[:, None] * logs[None, :], -700.0))
        square, cross = (rising**2 * weight).sum(1), (rising * weight) @ gained
        if r0_weight is None:
            k = np.maximum(cross, 0.0) / square
            return np.asarray((weight * (gained - k[:, None] * rising) ** 2).sum(1))
        whole, mixed, total = weight.sum() + r0_weight, (rising * weight).sum(1), (weight * gained).sum()
        k = np.maximum((cross * whole - total * mixed) / np.maximum(square * whole - mixed**2, 1e-300), 0.0)
        shift = (total - k * mixed) / whole
        left = (weight * (gained - shift[:, None] - k[:, None] * rising) ** 2).sum(1)
        return np.asarray(left + r0_weight * shift**2)

    return float(error(np.array([_narrow(error)]))[0])


def line_error(curve: Curve, weight: Array) -> float:
    """Weighted squared error of the best a + b log C."""
    logs = np.log(curve.compute)
    centred = logs - (weight * logs).sum() / weight.sum()
    rate = curve.pass_rate - (weight * curve.pass_rate).sum() / weight.sum()
    spread = (weight * centred**2).sum()
    slope = (weight * centred * rate).sum() / spread if spread > 0 else 0.0
    return float((weight * (rate - slope * centred) ** 2).sum())


def _narrow(error: Callable[[Array], Array]) -> float:
    low, high = np.log(EXPONENTS[0]), np.log(EXPONENTS[1])
    best = low
    for _ in range(NARROWINGS):
        cells = np.linspace(low, high, CELLS)
        best = cells[int(np.argmin(error(np.exp(cells))))]
        width = cells[1] - cells[0]
        low, high = best - width, best + width
    return float(np.exp(best))
