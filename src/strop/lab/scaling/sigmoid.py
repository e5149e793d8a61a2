"""Bounded weighted least squares of the sigmoid: a grid search over (B, C_mid), then scipy from its best cells.

R_0 is a measurement too, and moves within its noise: the model has a fourth parameter, the shift of R_0 from its
measured value, held back by a penalty shift² · r0_weight. Early points say much about R_0, and a curve forced through
one noisy measurement passes its error on to A.

Shapes: S data sets, n points, G grid cells. Parameters are (gain, log B, log C_mid, shift) with gain = A minus the
measured R_0, so that B and C_mid stay positive and steps are relative:

    pass rate − measured R_0 = shift + (gain − shift) · share
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def share(log_compute: Array, b: ArrayLike, log_mid: ArrayLike) -> Array:
    """1 / (1 + (C_mid/C)^B), the share of the gain that is reached; arguments broadcast."""
    # tanh neither overflows nor warns, however steep the curve.
    return 0.5 * (1.0 + np.tanh(0.5 * np.asarray(b) * (log_compute - np.asarray(log_mid))))


@dataclass(frozen=True)
class Sigmoid:
    """One curve: R_C = R_0 + (A − R_0) / (1 + (C_mid/C)^B). C_mid is in the unit of the compute it was fitted to."""

    A: float
    B: float
    C_mid: float
    R_0: float = 0.0

    def value(self, compute: ArrayLike) -> Array:
        """R_C at `compute` (0 or more), of the same shape; R_0 at 0."""
        with np.errstate(divide="ignore"):
            log_compute = np.log(np.asarray(compute, np.float64))
        return self.R_0 + (self.A - self.R_0) * share(log_compute, self.B, np.log(self.C_mid))

    def linearised(self, compute: ArrayLike, pass_rate: ArrayLike) -> Array:
        """log F(R_C), which is B · log C where the curve holds, so that the slope of the points is B (Figure 5).

        F(R_C) = C_mid^B / ((A − R_0) / (R_C − R_0) − 1). NaN where the pass rate is not strictly between R_0 and A:
        noise may put a point there, and no power of compute does.
        """
        rate = np.asarray(pass_rate, np.float64) + 0.0 * np.asarray(compute, np.float64)
        inside = (rate > self.R_0) & (rate < self.A)
        safe = np.where(inside, rate, 0.5 * (self.R_0 + self.A))
        ratio = (self.A - self.R_0) / (safe - self.R_0) - 1.0
        return np.where(inside, self.B * np.log(self.C_mid) - np.log(ratio), np.nan)


GAIN, LOG_B, LOG_MID, SHIFT = range(4)
B_BOUNDS = (0.05, 20.0)
MID_REACH = 1000.0  # how far C_mid may lie outside the data, as a factor
B_CELLS, MID_CELLS = 32, 48
STEEPEST = 50.0  # of log B within a step of scipy's, which knows no bounds at first
PRECISION, EVALUATIONS = 1e-12, 100


@dataclass(frozen=True, eq=False)
class FitProblem:
    """S data sets on the same points.

    log_compute [n]; y [S, n], pass rates minus measured R_0; weight [n]; r0 [S], the measured R_0; top, the largest A.
    `asymptote` fixes A where only the others are sought. `r0_weight` is 1/stderr² of R_0; None: R_0 is exact.
    """

    log_compute: Array
    y: Array
    weight: Array
    r0: Array
    top: float = 1.0
    asymptote: float | None = None
    r0_weight: float | None = None

    @property
    def most(self) -> Array:
        """The largest gain, [S]."""
        return np.maximum((self.top if self.asymptote is None else self.asymptote) - self.r0, 0.0)

    @property
    def free(self) -> list[int]:
        """The parameters that are sought."""
        fixed = {GAIN} if self.asymptote is not None else set()
        return [k for k in range(4) if k not in fixed and (k != SHIFT or self.r0_weight is not None)]

    def bounds(self, row: int) -> tuple[Array, Array]:
        """The least and largest parameters of a data set, [4] each."""
        low, high = self.log_compute.min(), self.log_compute.max()
        reach = np.log(MID_REACH)
        least = np.array([0.0, np.log(B_BOUNDS[0]), low - reach, -self.r0[row]])
        return least, np.array([self.most[row], np.log(B_BOUNDS[1]), high + reach, 1.0])


class BoxMinimum(NamedTuple):
    """Parameters [4] and the weighted squared error, with the penalty of the shift."""

    theta: Array
    sse: float


@dataclass(frozen=True, eq=False)
class Solution:
    """gain, b, mid, shift and sse (weighted, with the penalty of the shift), each [S]."""

    gain: Array
    b: Array
    mid: Array
    shift: Array
    sse: Array

    @classmethod
    def of(cls, found: Sequence[BoxMinimum]) -> Solution:
        """From one minimum a data set."""
        theta = np.stack([each.theta for each in found])
        b, mid = np.exp(theta[:, LOG_B]), np.exp(theta[:, LOG_MID])
        return cls(theta[:, GAIN], b, mid, theta[:, SHIFT], np.array([each.sse for each in found]))


def solve(problem: FitProblem, starts: int = 1, guess: Array | None = None) -> Solution:
    """The least-squares sigmoid of each data set.

    Scipy starts from the `starts` best grid cells; with a `guess` [4] from that, and from the best cell only where this
    is better than what came of the guess.
    """
    cells, errors = _grid(problem, starts)
    found = []
    for row in range(len(problem.y)):
        if guess is not None:
            best = minimise(problem, row, guess, problem.free)
            if best.sse <= errors[row, 0]:
                found.append(best)
                continue
        tries = [minimise(problem, row, cell, problem.free) for cell in cells[row]]
        found.append(min(tries, key=lambda each: each.sse))
    return Solution.of(found)


def minimise(problem: FitProblem, row: int, start: Array, free: Sequence[int]) -> BoxMinimum:
    """The minimum next to `start` [4] over the parameters `free`; the others stay where they are.

    Levenberg-Marquardt, and where it leaves the bounds the slower search of scipy that respects them.
    """
    from scipy.optimize import least_squares, leastsq

    errors = _Errors(problem, row, start, free)
    low, high = (bound[errors.free] for bound in problem.bounds(row))
    begin = np.clip(start[errors.free], low, high)
    with np.errstate(all="ignore"):  # without bounds it may try what overflows
        found = leastsq(
            errors.residual, begin, Dfun=errors.jacobian, full_output=True, ftol=PRECISION, xtol=PRECISION, gtol=0.0,
            maxfev=EVALUATIONS,
        )[0]  # fmt: skip
    if not ((found >= low) & (found <= high)).all():
        room = np.maximum(high, low + PRECISION)  # bounds must not coincide
        found = least_squares(
            errors.residual, np.clip(begin, low, room), errors.jacobian, (low, room), method="dogbox", ftol=PRECISION,
            xtol=PRECISION, gtol=PRECISION, max_nfev=EVALUATIONS,
        ).x  # fmt: skip
        found = np.clip(found, low, high)
    return BoxMinimum(errors.whole(found), float((errors.residual(found) ** 2).sum()))


class _Errors:
    """The weighted errors of one data set, as a function of its free parameters."""

    def __init__(self, problem: FitProblem, row: int, start: Array, free: Sequence[int]) -> None:
        self.free = list(free)
        self._start = start
        self._at, self._y = problem.log_compute, problem.y[row]
        self._root = np.sqrt(problem.weight)
        self._penalty = None if problem.r0_weight is None else np.sqrt(problem.r0_weight)

    def whole(self, values: Array) -> Array:
        """All parameters [4]."""
        theta = self._start.copy()
        theta[self.free] = values
        return theta

    def residual(self, values: Array) -> Array:
        """Weighted errors [n], and behind them that of the shift where R_0 moves."""
        gain, log_b, mid, shift = self.whole(values)
        reached = share(self._at, np.exp(min(log_b, STEEPEST)), mid)
        errors = self._root * (shift + (gain - shift) * reached - self._y)
        return errors if self._penalty is None else np.append(errors, self._penalty * shift)

    def jacobian(self, values: Array) -> Array:
        """Derivatives of `residual` by the free parameters, [n or n + 1, free]."""
        gain, log_b, mid, shift = self.whole(values)
        b = np.exp(min(log_b, STEEPEST))
        reached = share(self._at, b, mid)
        slope = (gain - shift) * reached * (1.0 - reached) * b  # of the value, in log compute
        columns = np.stack([reached, slope * (self._at - mid), -slope, 1.0 - reached], axis=1) * self._root[:, None]
        if self._penalty is not None:
            columns = np.vstack([columns, [0.0, 0.0, 0.0, self._penalty]])
        return columns[:, self.free]


def _grid(problem: FitProblem, starts: int) -> tuple[Array, Array]:
    """The `starts` best cells of a (B, C_mid) grid for each data set, [S, starts, 4], and their errors [S, starts]."""
    low, high = problem.bounds(0)
    b = np.linspace(low[LOG_B] + 0.5, high[LOG_B] - 0.5, B_CELLS)
    middle = np.linspace(problem.log_compute.min() - 1.0, problem.log_compute.max() + 1.0, MID_CELLS - 8)
    far = np.linspace(low[LOG_MID], middle[0], 5)[:-1], np.linspace(middle[-1], high[LOG_MID], 5)[1:]
    mids = np.concatenate([far[0], middle, far[1]])
    cell_b, cell_mid = (cells.ravel() for cells in np.meshgrid(b, mids, indexing="ij"))
    shares = share(problem.log_compute[None, :], np.exp(cell_b)[:, None], cell_mid[:, None])  # [G, n]
    gains, sse = _best_gain(problem, shares)
    chosen = np.argsort(sse, axis=1)[:, :starts]
    gain = np.take_along_axis(gains, chosen, 1)
    cells = np.stack([gain, cell_b[chosen], cell_mid[chosen], np.zeros_like(gain)], axis=2)
    return cells, np.take_along_axis(sse, chosen, 1)


def _best_gain(problem: FitProblem, shares: Array) -> tuple[Array, Array]:
    """The gain of each cell that fits best, and what is left: [S, G] each. The gain enters linearly."""
    weighted = shares * problem.weight
    cross = problem.y @ weighted.T  # [S, G]
    square = np.maximum((weighted * shares).sum(axis=1), 1e-300)  # [G]
    if problem.asymptote is None:
        gains = np.clip(cross / square, 0.0, problem.most[:, None])
    else:
        gains = np.broadcast_to(problem.most[:, None], cross.shape)
    whole = (problem.weight * problem.y**2).sum(axis=1)
    return gains, whole[:, None] - 2.0 * gains * cross + gains**2 * square


Grid = tuple[float, float, int]

A_GRID: Grid = (0.450, 0.800, 71)
C_MID_GRID: Grid = (100.0, 40000.0, 100)  # GPU-hours
B_SCAN = np.geomspace(0.05, 12.0, 160)
MIDS_AT_ONCE = 10
CANDIDATES = 60


@dataclass(frozen=True)
class PaperGrid:
    """The cells: A on `a`, C_mid on `mids`. `refine` frees C_mid once the best cell is found."""

    a: Array
    mids: Array
    refine: bool


def solve_on_grid(log_compute: Array, y: Array, r0: Array, grid: PaperGrid) -> Solution:
    """The best cell of every data set. log_compute [n]; y [S, n], pass rates minus R_0; r0 [S]."""
    candidates = _scan(log_compute, y, r0, grid, CANDIDATES if len(y) == 1 else 1)
    problem = FitProblem(log_compute, y, np.ones(len(log_compute)), r0)
    return Solution.of([_best(problem, row, cells, grid) for row, cells in enumerate(candidates)])


def _best(problem: FitProblem, row: int, cells: Array, grid: PaperGrid) -> BoxMinimum:
    """The best of the candidate cells [K, 2] of a data set, (A, log C_mid) each.

    In every cell B starts at 1, as `curve_fit` of scipy does when it is given no start.
    """
    r0 = problem.r0[row]
    starts = [np.array([a - r0, 0.0, mid, 0.0]) for a, mid in dict.fromkeys(map(tuple, cells.tolist()))]
    best = min((minimise(problem, row, start, [LOG_B]) for start in starts), key=_error)
    if not grid.refine:
        return best
    free = minimise(problem, row, best.theta, [GAIN, LOG_B, LOG_MID])
    near = np.argsort(np.abs(grid.a - r0 - free.theta[GAIN]))[:2]  # A stays on its grid
    tries = [np.array([max(a - r0, 0.0), *free.theta[1:]]) for a in grid.a[near]]
    return min((minimise(problem, row, start, [LOG_B, LOG_MID]) for start in tries), key=_error)


def _error(found: BoxMinimum) -> float:
    return found.sse


def _scan(log_compute: Array, y: Array, r0: Array, grid: PaperGrid, keep: int) -> Array:
    """The `keep` best of (A, log C_mid) for each data set, [S, keep, 2].

    For given B and C_mid the error is a parabola in A: the best A of the grid is the one nearest to its vertex.
    """
    a_values, mids = grid.a, grid.mids
    step = a_values[1] - a_values[0]
    whole = (y**2).sum(axis=1)[:, None]
    kept: list[tuple[Array, Array, Array]] = []
    for start in range(0, len(mids), MIDS_AT_ONCE):
        part = mids[start : start + MIDS_AT_ONCE]
        mid, b = (cells.ravel() for cells in np.meshgrid(part, B_SCAN, indexing="ij"))
        shares = share(log_compute[None, :], b[:, None], np.log(mid)[:, None])
        cross, square = y @ shares.T, np.maximum((shares**2).sum(axis=1), 1e-300)
        vertex = r0[:, None] + cross / square
        index = np.clip(np.rint((vertex - a_values[0]) / step), 0, len(a_values) - 1).astype(np.intp)
        a = a_values[index]
        gain = a - r0[:, None]
        sse = whole - 2.0 * gain * cross + gain**2 * square
        best = _least(sse, keep)
        pick = np.take_along_axis
        kept.append((pick(a, best, 1), mid[best], pick(sse, best, 1)))
    a, mid, sse = (np.concatenate(parts, axis=1) for parts in zip(*kept, strict=True))
    best = _least(sse, keep)
    return np.stack([np.take_along_axis(values, best, 1) for values in (a, np.log(mid))], axis=2)


def _least(values: Array, keep: int) -> NDArray[np.intp]:
    """Where the `keep` smallest of each row are, smallest first."""
    if keep == 1:
        return np.argmin(values, axis=1)[:, None]
    return np.argsort(values, axis=1)[:, :keep]
