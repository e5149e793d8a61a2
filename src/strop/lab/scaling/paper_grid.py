"""The fitting procedure of ScaleRL (A.5): a grid over A and C_mid, B by `scipy.optimize.curve_fit`, least squares wins.

Most published C_mid lie on linspace(100, 4000, 100) or linspace(4000, 40000, 100), so both are searched; not all do, so
that C_mid is freed at the end, with A on its grid (`refine`, which can be turned off). Running
`curve_fit` in each of the 71 × 199 cells would take minutes with a bootstrap around it: a scan over B finds the cells
that can win, `curve_fit` settles them. Data sets of a bootstrap are settled by Gauss-Newton on B instead.

Shapes: S data sets, n points, K candidates.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strop.lab.scaling.sigmoid import share
from strop.lab.scaling.solve import Problem, Solution, polish

Array = NDArray[np.float64]
Grid = tuple[float, float, int]

A_GRID: Grid = (0.450, 0.800, 71)
C_MID_GRIDS: tuple[Grid, ...] = ((100.0, 4000.0, 100), (4000.0, 40000.0, 100))
B_SCAN = np.geomspace(0.05, 12.0, 160)
MIDS_AT_ONCE = 10
CANDIDATES = 60
NEIGHBOURS = 2


def mid_values(grids: tuple[Grid, ...] | None, last: float) -> Array:
    """The C_mid to try: `grids` as (start, stop, count), by default the paper's.

    The paper's are GPU-hours. For a curve of another unit, which ends below 4000 or beyond 4 million, they are scaled
    so that they end where the curve does.
    """
    chosen = C_MID_GRIDS if grids is None else grids
    values = np.unique(np.concatenate([np.linspace(*grid) for grid in chosen]))
    return values * (last / values[-1]) if grids is None and not 4e3 <= last <= 4e6 else values


@dataclass(frozen=True)
class PaperGrid:
    """The cells: A on `a`, C_mid on `mids`. `refine` frees C_mid once the best A are found."""

    a: Array
    mids: Array
    refine: bool


def solve_on_grid(log_compute: Array, y: Array, r0: Array, grid: PaperGrid) -> Solution:
    """The best cell of every data set. log_compute [n]; y [S, n], pass rates minus R_0; r0 [S].

    One data set alone is settled by `curve_fit`, as in the paper.
    """
    keep = CANDIDATES if len(y) == 1 else 1
    a, b, mid, sse = _scan(log_compute, y, r0, grid, keep)
    if len(y) == 1:
        return _settle_one(log_compute, y[0], float(r0[0]), a[0], mid[0], grid.refine)
    none = np.zeros(len(y))
    best = Solution(a[:, 0] - r0, b[:, 0], mid[:, 0], none, sse[:, 0])
    if not grid.refine:
        b_best, sse_best = _settle_b(log_compute, y, best.gain, best.b, np.log(best.mid))
        return Solution(best.gain, b_best, best.mid, none, sse_best)
    return _refine(log_compute, y, r0, best, grid.a)


def _refine(log_compute: Array, y: Array, r0: Array, best: Solution, a_values: Array) -> Solution:
    """Free B and C_mid for the best A of each data set and its neighbours on the grid; the least error wins."""
    weight, step = np.ones(len(log_compute)), a_values[1] - a_values[0]
    thetas, errors = [], []
    for offset in range(-NEIGHBOURS, NEIGHBOURS + 1):
        gain = np.maximum(np.clip(r0 + best.gain + offset * step, a_values[0], a_values[-1]) - r0, 0.0)
        # Each data set has an A of its own; only the gain matters, so A is called 1 and R_0 moved along.
        problem = Problem(log_compute, y, weight, 1.0 - gain, asymptote=1.0)
        first = np.stack([gain, np.log(best.b), np.log(best.mid), best.shift], axis=1)
        theta, sse = polish(problem, first)
        thetas.append(theta)
        errors.append(sse)
    place, rows = np.argmin(np.stack(errors), axis=0), np.arange(len(y))
    return Solution.of(np.stack(thetas)[place, rows], np.stack(errors)[place, rows])


def _scan(log_compute: Array, y: Array, r0: Array, grid: PaperGrid, keep: int) -> tuple[Array, Array, Array, Array]:
    """A, B, C_mid and squared error of the `keep` best of (A, B, C_mid), [S, keep] each.

    For given B and C_mid the error is a parabola in A: the best A of the grid is the one nearest to its vertex.
    """
    a_values, mids = grid.a, grid.mids
    step = a_values[1] - a_values[0]
    whole = (y**2).sum(axis=1)[:, None]
    kept: list[tuple[Array, Array, Array, Array]] = []
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
        kept.append((pick(a, best, 1), b[best], mid[best], pick(sse, best, 1)))
    a, b, mid, sse = (np.concatenate(parts, axis=1) for parts in zip(*kept, strict=True))
    best = _least(sse, keep)
    a, b, mid, sse = (np.take_along_axis(values, best, 1) for values in (a, b, mid, sse))
    return a, b, mid, sse


def _least(values: Array, keep: int) -> NDArray[np.intp]:
    """Where the `keep` smallest of each row are, smallest first."""
    if keep == 1:
        return np.argmin(values, axis=1)[:, None]
    return np.argsort(values, axis=1)[:, :keep]


def _settle_one(log_compute: Array, y: Array, r0: float, a: Array, mid: Array, refine: bool) -> Solution:
    from scipy.optimize import OptimizeWarning, curve_fit

    found: list[tuple[float, float, float, float]] = []
    for a_cell, mid_cell in sorted({*zip(a.tolist(), mid.tolist(), strict=True)}):
        curve = _with_free_b(a_cell - r0, mid_cell)
        try:
            with warnings.catch_warnings():
                # It warns where the data leave its covariance open; intervals are the bootstrap's, not its.
                warnings.simplefilter("ignore", OptimizeWarning)
                (b,), _ = curve_fit(curve, log_compute, y)
        except RuntimeError:  # this cell has no minimum in B within the allowed evaluations: it is not the best
            continue
        # curve_fit knows no bounds, and points that fall drive B below 0. A sigmoid rises (B > 0): the flattest one
        # is then the best this cell has, and its error says how bad that is.
        b = max(float(b), float(B_SCAN[0]))
        found.append((float(((y - curve(log_compute, b)) ** 2).sum()), a_cell, b, mid_cell))
    if not found:
        raise RuntimeError("scipy's curve_fit found B in none of the cells")
    sse, a_best, b_best, mid_best = min(found)
    if refine:
        first = {cell[1]: cell for cell in sorted(found, reverse=True)}  # of each A the best cell
        free = [_free_mid(log_compute, y, cell[1] - r0, cell[2], cell[3]) + (cell[1],) for cell in first.values()]
        sse, b_best, mid_best, a_best = min(free)
    return Solution(*(np.array([value]) for value in (a_best - r0, b_best, mid_best, 0.0, sse)))


def _free_mid(log_compute: Array, y: Array, gain: float, b: float, mid: float) -> tuple[float, float, float]:
    """Squared error, B and C_mid with the gain fixed, from a cell of the grid."""
    problem = Problem(log_compute, y[None, :], np.ones(len(y)), np.array([1.0 - gain]), asymptote=1.0)
    theta, sse = polish(problem, np.array([[gain, np.log(b), np.log(mid), 0.0]]))
    return float(sse[0]), float(np.exp(theta[0, 1])), float(np.exp(theta[0, 2]))


def _with_free_b(gain: float, mid: float) -> Callable[[Array, float], Array]:
    """The curve as `curve_fit` wants it, which counts the parameters of a function."""

    def curve(log_compute: Array, b: float) -> Array:
        return gain * share(log_compute, b, np.log(mid))

    return curve


def _settle_b(log_compute: Array, y: Array, gain: Array, b: Array, log_mid: Array) -> tuple[Array, Array]:
    """B by Gauss-Newton with A and C_mid fixed, and the squared error; [S] each. Steps stay within the scan's cells."""
    distance = log_compute[None, :] - log_mid[:, None]
    room = np.log(B_SCAN[1] / B_SCAN[0])
    start = np.log(b)
    for _ in range(8):
        reached = share(distance, b[:, None], 0.0)
        slope = gain[:, None] * reached * (1.0 - reached) * distance * b[:, None]
        residual = y - gain[:, None] * reached
        move = (slope * residual).sum(axis=1) / np.maximum((slope**2).sum(axis=1), 1e-300)
        b = np.exp(np.clip(np.log(b) + move, start - room, start + room))
    reached = share(distance, b[:, None], 0.0)
    return b, ((y - gain[:, None] * reached) ** 2).sum(axis=1)
