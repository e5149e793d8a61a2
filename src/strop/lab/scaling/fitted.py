"""A fitted curve: its settings, parameters with intervals, predictions, and errors on points held back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from strop.base.pieces import Settings
from strop.lab.scaling.curves import Curve
from strop.lab.scaling.paper_grid import A_GRID, Grid
from strop.lab.scaling.power_law import PowerLaw, fit_power_law
from strop.lab.scaling.sigmoid import Sigmoid, share

Array = NDArray[np.float64]
Interval = tuple[float, float]
Parameter = Literal["A", "B", "C_mid"]


class FitSettings(Settings):
    """How a curve is fitted.

    `method`: `refined` is least squares weighted by 1/stderr² over continuous A, B and C_mid; `paper` is the grid
    procedure of ScaleRL A.5, unweighted. `skip_until` leaves out points of less compute (the paper: 1500 GPU-hours,
    about one epoch; here nothing unless asked, since a curve's unit is not known). `fit_until` holds later points
    back. `level` is that of the intervals, `bootstrap` the number of samples behind them. `ceiling` is the largest A.
    `exact_r0` takes a measured R_0 as exact, as `paper` always does; else `refined` lets it move within its noise.
    `a_grid`, `c_mid_grids` and `refine_c_mid` belong to `paper`: the grids as (start, stop, count), and whether C_mid
    is freed once A is found (see `paper_grid.py`).
    """

    method: Literal["refined", "paper"] = "refined"
    skip_until: float = Field(0.0, ge=0)
    fit_until: float | None = Field(None, gt=0)
    level: float = Field(0.9, gt=0, lt=1)
    bootstrap: int = Field(500, ge=20)
    seed: int = Field(0, ge=0)
    ceiling: float = Field(1.0, gt=0, le=1)
    a_grid: Grid = A_GRID
    c_mid_grids: tuple[Grid, ...] | None = None
    refine_c_mid: bool = True
    exact_r0: bool = False


class Prediction(NamedTuple):
    """R_C at a compute. `interval` is that of the curve, `measured` that of one more measurement, with its noise."""

    compute: float
    pass_rate: float
    interval: Interval
    measured: Interval


class HeldBack(NamedTuple):
    """How a fit did on the points it was not shown; errors are predicted minus measured.

    `covered` is the share of points inside the interval of a measurement; `power_law` the mean absolute error of the
    power law that was fitted to the same points.
    """

    points: int
    mean_error: float
    mean_absolute_error: float
    largest_error: float
    covered: float
    power_law: float


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of fitting a curve; `refused` says in one line why there is nothing, else None.

    Attributes:
        curve: what was given. `used` and `held_back` are its points before and after the cut-offs.
        sigmoid: the fitted curve; None when refused.
        sse: squared error over the used points, unweighted; None when refused.
        samples: bootstrap samples of (A, B, C_mid, R_0), float64 [S, 4].
        noise: the standard deviation of one measurement, typical of the used points.
        noise_factor: by how much the points scatter more than their standard errors allow, at least 1.
        notes: what a reader of the figures should know.
    """

    curve: Curve
    used: Curve
    held_back: Curve
    settings: FitSettings
    weight: Array
    sigmoid: Sigmoid | None
    sse: float | None
    samples: Array
    noise: float
    noise_factor: float
    refused: str | None
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.curve.name

    def interval(self, parameter: Parameter) -> Interval:
        """The bootstrap interval of a parameter.

        By the paper's method A moves in steps of its grid and is known no better: half a step is added at both ends.

        Raises:
            ValueError: the fit was refused.
        """
        self.accepted()
        low, high = quantiles(self.samples[:, ("A", "B", "C_mid").index(parameter)], self.settings.level)
        if parameter == "A" and self.settings.method == "paper":
            first, last, count = self.settings.a_grid
            half = (last - first) / (count - 1) / 2.0
            return low - half, high + half
        return low, high

    def predict(self, compute: Sequence[float]) -> list[Prediction]:
        """R_C at each compute, with intervals.

        Raises:
            ValueError: the fit was refused.
        """
        sigmoid = self.accepted()
        at = np.asarray(compute, np.float64)
        noise = np.full(len(at), self.noise)
        curves, measured = self.band(at), self._measured_band(at, noise)
        return [
            Prediction(float(c), float(sigmoid.value(c)), (float(low), float(high)), (float(lowest), float(highest)))
            for c, (low, high), (lowest, highest) in zip(at, curves.T, measured.T, strict=True)
        ]

    def band(self, compute: ArrayLike) -> Array:
        """Lower and upper end of the curve's interval, [2, m] for m compute values."""
        return np.quantile(self._sampled(compute), _tails(self.settings.level), axis=0, method="weibull")

    def held_back_error(self) -> HeldBack | None:
        """The error on the points beyond `fit_until`; None where there are none or the fit was refused."""
        if self.sigmoid is None or len(self.held_back) == 0:
            return None
        held = self.held_back
        errors = self.sigmoid.value(held.compute) - held.pass_rate
        noise = np.full(len(held), self.noise) if held.stderr is None else held.stderr * self.noise_factor
        low, high = self._measured_band(held.compute, noise)
        inside = (held.pass_rate >= low) & (held.pass_rate <= high)
        law = self.power_law().value(held.compute) - held.pass_rate
        worst = errors[int(np.argmax(np.abs(errors)))]
        return HeldBack(
            len(held),
            float(errors.mean()),
            float(np.abs(errors).mean()),
            float(worst),
            float(inside.mean()),
            float(np.abs(law).mean()),
        )

    def power_law(self) -> PowerLaw:
        """The power law through the same points, with the same weights, to compare with (A.4)."""
        return fit_power_law(self.used, self.weight)

    def accepted(self) -> Sigmoid:
        """The sigmoid.

        Raises:
            ValueError: the fit was refused.
        """
        if self.sigmoid is None:
            raise ValueError(f"{self.name} has no fit: {self.refused}")
        return self.sigmoid

    def _sampled(self, compute: ArrayLike) -> Array:
        """The curves of all bootstrap samples, [S, m]."""
        self.accepted()
        a, b, mid, r0 = (self.samples[:, k : k + 1] for k in range(4))
        log_compute = np.log(np.maximum(np.atleast_1d(np.asarray(compute, np.float64)), 1e-300))
        return r0 + (a - r0) * share(log_compute[None, :], b, np.log(mid))

    def _measured_band(self, compute: Array, noise: Array) -> Array:
        curves = self._sampled(compute)
        rng = np.random.default_rng(self.settings.seed + 1)
        drawn = np.repeat(curves, 4, axis=0)
        drawn = drawn + noise * rng.standard_normal(drawn.shape)
        return np.quantile(drawn, _tails(self.settings.level), axis=0, method="weibull")


def quantiles(values: Array, level: float) -> Interval:
    """The middle `level` of samples [S]; `weibull` places them so that few samples do not make it too narrow."""
    low, high = np.quantile(values, _tails(level), method="weibull")
    return float(low), float(high)


def _tails(level: float) -> Interval:
    return (1.0 - level) / 2.0, (1.0 + level) / 2.0
