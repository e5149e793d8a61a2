"""Fit the sigmoid to a curve, with intervals, or refuse with a reason if the points do not support it.

found = fit(read_curve("scalerl.csv"), FitSettings(fit_until=8000))
if found.refused is None:
    print(found.sigmoid.A, found.interval("A"), found.predict([16000.0]))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from strop.base.pieces import Settings
from strop.lab.scaling import support
from strop.lab.scaling.curves import UNITS, Curve
from strop.lab.scaling.sigmoid import (
    A_GRID,
    C_MID_GRID,
    FitProblem,
    Grid,
    PaperGrid,
    Sigmoid,
    Solution,
    share,
    solve,
    solve_on_grid,
)
from strop.lab.scaling.support import PowerLaw, fit_power_law

Array = NDArray[np.float64]
Interval = tuple[float, float]
Parameter = Literal["A", "B", "C_mid"]
PARAMETERS: tuple[Parameter, ...] = ("A", "B", "C_mid")


class FitSettings(Settings):
    """How a curve is fitted.

    Compute is in the unit of the curve. `method`: `refined` is least squares weighted by 1/stderr² over continuous A, B
    and C_mid; `paper` is the grid procedure of ScaleRL A.5, unweighted. `skip_until` leaves out points of less compute:
    by default `paper` skips what the paper does, `refined` nothing. `fit_until` holds later points back. `level` is
    that of the intervals, `bootstrap` the number of samples behind them. `ceiling` is the largest A. `a_grid`,
    `c_mid_grid` and `refine_c_mid` are of `paper` only: the grids as (start, stop, count), and whether C_mid is freed
    once the best cell is found.
    """

    method: Literal["refined", "paper"] = "refined"
    skip_until: float | None = Field(None, ge=0)
    fit_until: float | None = Field(None, gt=0)
    level: float = Field(0.9, gt=0, lt=1)
    bootstrap: int = Field(500, ge=20)
    seed: int = Field(0, ge=0)
    ceiling: float = Field(1.0, gt=0, le=1)
    a_grid: Grid = A_GRID
    c_mid_grid: Grid | None = None
    refine_c_mid: bool = True


class Prediction(NamedTuple):
    """R_C at a compute. `interval` is that of the curve, `measured` that of one more measurement, with its noise."""

    compute: float
    pass_rate: float
    interval: Interval
    measured: Interval


class HeldBack(NamedTuple):
    """The error of a fit on the points that were held back; errors are predicted minus measured.

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
    """The result of fitting a curve; `refused` is the reason in one line if there is no fit, else None.

    Attributes:
        curve: the given curve. `used` and `held_back` are its points before and after the cut-offs.
        sigmoid: the fitted curve; None when refused.
        sse: squared error over the used points, unweighted; None when refused.
        samples: bootstrap samples of (A, B, C_mid, R_0), float64 [S, 4].
        noise: the standard deviation of one measurement, typical of the used points.
        noise_factor: by how much the points scatter more than their standard errors allow, at least 1.
        notes: warnings for readers of the figures.
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
        low, high = quantiles(self.samples[:, PARAMETERS.index(parameter)], self.settings.level)
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
        return np.quantile(self.sampled(compute), _tails(self.settings.level), axis=0, method="weibull")

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

    def sampled(self, compute: ArrayLike) -> Array:
        """The curves of all bootstrap samples, [S, m]."""
        self.accepted()
        a, b, mid, r0 = (self.samples[:, k : k + 1] for k in range(4))
        log_compute = np.log(np.maximum(np.atleast_1d(np.asarray(compute, np.float64)), 1e-300))
        return r0 + (a - r0) * share(log_compute[None, :], b, np.log(mid))

    def _measured_band(self, compute: Array, noise: Array) -> Array:
        curves = self.sampled(compute)
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


STARTS = 6
SKIPPED = 1500.0  # GPU-hours, about an epoch (ScaleRL A.6)
PAPER_RUNS = 16_000.0, 100_000.0  # GPU-hours of the paper's leave-one-out runs, and of its longest


def for_curve(curve: Curve, settings: FitSettings) -> FitSettings:
    """The settings with `skip_until` and `c_mid_grid` filled in, in the unit of the curve.

    Those of `paper` are GPU-hours of the paper's runs. A shorter run than those, or one not measured in hours, is taken
    for one of 16,000 hours, a longer one for one of 100,000: the same share of it is skipped, and the grid lies over it
    in the same way.
    """
    skip, grid = 0.0, C_MID_GRID
    if settings.method == "paper":
        last = max(curve.compute, default=1.0)
        hours = last * UNITS["device_hours"].columns.get(curve.unit, 0.0)
        unit = last / min(max(hours, PAPER_RUNS[0]), PAPER_RUNS[1])
        skip, grid = unit * SKIPPED, (unit * grid[0], unit * grid[1], grid[2])
    given = settings.skip_until, settings.c_mid_grid
    return settings.model_copy(
        update={"skip_until": skip if given[0] is None else given[0], "c_mid_grid": given[1] or grid}
    )


def fit(curve: Curve, settings: FitSettings | None = None) -> Fit:
    """Fit R_C = R_0 + (A − R_0) / (1 + (C_mid/C)^B) to a curve.

    R_0 is measured, not fitted to the points; but the measurement has noise, and `refined` lets R_0 move within it: a
    curve forced through one noisy measurement would pass its error on to A. An R_0 that is given stays as it is.

    Intervals come from a bootstrap: the fitted curve with new noise drawn from the standard errors where they are known
    (parametric), with the studentised residuals resampled where they are not, each sample fitted like the curve. R_0 is
    redrawn with its own standard error. Of points that all measure the same problems, and lie closer to the curve than
    their standard errors say, the errors are scaled down to the scatter.

    If the points do not support a fit, `refused` of the result is the reason (see `support.py`), and numbers are None.
    """
    chosen = for_curve(curve, settings or FitSettings())
    end = np.inf if chosen.fit_until is None else chosen.fit_until
    used, held_back = curve.within(chosen.skip_until or 0.0, end), curve.beyond(end)
    known = used.stderr is not None and chosen.method == "refined"
    weight = used.stderr**-2 if known and used.stderr is not None else np.ones(len(used))
    nothing = Fit(
        curve, used, held_back, chosen, weight, None, None, np.empty((0, 4)), float("nan"), 1.0, None, curve.notes
    )
    reason = support.too_few(used, len(curve) - len(used)) or support.non_monotone(used)
    if reason is not None:
        return replace(nothing, refused=reason)
    solution = _solve(used, weight, chosen)
    a, r0 = (curve.r0 + float(moved[0]) for moved in (solution.gain, solution.shift))
    sigmoid = Sigmoid(a, float(solution.b[0]), float(solution.mid[0]), r0)
    error = float(solution.sse[0])
    noise = support.noise_of(error, weight, known, shared=used.same_problems)
    reason = (
        support.flat(used, weight, error, noise)
        or support.falls_back(used)
        or _edge(sigmoid, chosen)
        or support.no_curvature(used, weight, r0_weight(used, weight, chosen), sigmoid, error, noise)
    )
    if reason is not None:
        return replace(nothing, refused=reason)
    typical = float(np.sqrt(noise.variance / np.mean(weight)))
    factor = _scatter_over_stderr(used, sigmoid)
    samples = _bootstrap(used, weight, sigmoid, factor, typical, chosen)
    a_interval, c_mid_interval = (quantiles(samples[:, column], chosen.level) for column in (0, 2))
    reason = support.undetermined(a_interval, c_mid_interval, chosen.ceiling, float(used.compute[-1]))
    if reason is not None:
        return replace(nothing, refused=reason)
    sse = float(((used.pass_rate - sigmoid.value(used.compute)) ** 2).sum())
    return replace(
        nothing,
        sigmoid=sigmoid,
        sse=sse,
        samples=samples,
        noise=typical,
        noise_factor=factor,
        notes=curve.notes + _notes(used, sigmoid, factor, chosen.ceiling),
    )


def _solve(used: Curve, weight: Array, settings: FitSettings) -> Solution:
    y, r0 = (used.pass_rate - used.r0)[None, :], np.array([used.r0])
    if settings.method == "paper":
        return solve_on_grid(np.log(used.compute), y, r0, _cells(settings))
    moves = r0_weight(used, weight, settings)
    return solve(FitProblem(np.log(used.compute), y, weight, r0, settings.ceiling, r0_weight=moves), STARTS)


def r0_weight(used: Curve, weight: Array, settings: FitSettings) -> float | None:
    """The weight of the squared shift of R_0, in the unit of `weight`; None if R_0 is fixed."""
    if settings.method == "paper" or used.r0_stderr == 0.0:
        return None
    if used.r0_stderr is None or used.stderr is None:
        return float(np.mean(weight))  # measured as the points were
    return used.r0_stderr**-2


def _cells(settings: FitSettings) -> PaperGrid:
    mids = np.linspace(*(settings.c_mid_grid or C_MID_GRID))
    return PaperGrid(np.linspace(*settings.a_grid), mids, settings.refine_c_mid)


def _edge(sigmoid: Sigmoid, settings: FitSettings) -> str | None:
    """A best cell on the rim of the paper's grid of A is no optimum."""
    low, high, _ = settings.a_grid
    nearest = min(sigmoid.A - low, high - sigmoid.A)
    if settings.method == "paper" and nearest < 1e-9:
        return f"A lies on the rim of the grid {low:g} to {high:g}; use --method refined"
    return None


def redraw(found: Fit) -> tuple[Array, Array]:
    """Bootstrap data sets of a fit: pass rates [S, n] of its used points, and R_0 [S]."""
    return _redraw(found.used, found.accepted(), found.noise_factor, found.noise, found.settings)


def _redraw(used: Curve, sigmoid: Sigmoid, factor: float, typical: float, settings: FitSettings) -> tuple[Array, Array]:
    rng = np.random.default_rng(settings.seed)
    count, n = settings.bootstrap, len(used)
    values = sigmoid.value(used.compute)
    if used.stderr is not None:
        drawn = values + factor * used.stderr * rng.standard_normal((count, n))
    else:
        residual = (used.pass_rate - values) / np.sqrt(1.0 - _leverage(used, sigmoid))
        drawn = values + rng.choice(residual - residual.mean(), (count, n))
    # What R_0 shares with the points is not drawn anew; noise of training it does not have.
    spread = typical if used.r0_stderr is None else used.r0_stderr * min(factor, 1.0)
    return drawn, np.clip(sigmoid.R_0 + spread * rng.standard_normal(count), 0.0, None)


def _bootstrap(
    used: Curve, weight: Array, sigmoid: Sigmoid, factor: float, typical: float, settings: FitSettings
) -> Array:
    """Samples of (A, B, C_mid, R_0), [S, 4]."""
    drawn, r0 = _redraw(used, sigmoid, factor, typical, settings)
    y, log_compute = drawn - r0[:, None], np.log(used.compute)
    if settings.method == "paper":
        found = solve_on_grid(log_compute, y, r0, _cells(settings))
    else:
        guess = np.array([sigmoid.A - used.r0, np.log(sigmoid.B), np.log(sigmoid.C_mid), sigmoid.R_0 - used.r0])
        moves = r0_weight(used, weight, settings)
        found = solve(FitProblem(log_compute, y, weight, r0, settings.ceiling, r0_weight=moves), 1, guess)
    return np.stack([r0 + found.gain, found.b, found.mid, r0 + found.shift], axis=1)


def _scatter_over_stderr(used: Curve, sigmoid: Sigmoid) -> float:
    """The scatter of the points over their standard errors; 1 if they agree, or if the errors are unknown.

    Below 1 only where all points are of the same problems.
    """
    if used.stderr is None:
        return 1.0
    error = float((((used.pass_rate - sigmoid.value(used.compute)) / used.stderr) ** 2).sum())
    noise = support.noise_of(error, used.stderr**-2, known=True, shared=used.same_problems)
    return float(np.sqrt(noise.variance))


def _leverage(used: Curve, sigmoid: Sigmoid) -> Array:
    """The leverage of each point, [n], below 1: the diagonal of J (JᵀJ)⁻¹ Jᵀ."""
    distance = np.log(used.compute / sigmoid.C_mid)
    reached = share(distance, sigmoid.B, 0.0)
    slope = reached * (1.0 - reached)
    q, _ = np.linalg.qr(np.stack([reached, slope * distance, slope], axis=1))
    return np.minimum((q**2).sum(axis=1), 0.95)


def _notes(used: Curve, sigmoid: Sigmoid, factor: float, ceiling: float) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if factor > 1.0:
        notes += (f"the points scatter {factor:.1f} times as much as their stderr allows; intervals are widened by it",)
    if factor < 1.0:
        notes += (
            f"the points scatter {factor:.2f} times as much as their stderr says, as all are of the same problems; the "
            "intervals are for these problems",
        )
    below = ceiling - sigmoid.A
    if below < 1e-6:
        notes += (f"A lies at its bound {ceiling:g}: read its interval, not its value",)
    residual = used.pass_rate - sigmoid.value(used.compute)
    power = float((residual**2).sum())
    follows = float((residual[1:] * residual[:-1]).sum()) / power if power > len(used) * support.EXACT**2 else 0.0
    if len(used) >= 10 and follows > 3.0 / np.sqrt(len(used)):
        notes += (
            f"neighbouring residuals agree (correlation {follows:.2f}): the points bend otherwise than a sigmoid, and "
            "the intervals are too narrow; try --skip-until",
        )
    if sigmoid.C_mid < used.compute[0]:
        notes += ("the midpoint lies before the first fitted point: B and C_mid rest on the upper part of the curve",)
    return notes
