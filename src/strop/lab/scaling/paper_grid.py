"""The fitting procedure of ScaleRL A.5, to reproduce its numbers: a grid over A and C_mid, B by plain least squares.

A lies on {0.450, 0.455, …, 0.800}, C_mid on linspace(100, 4000, 100) and linspace(4000, 40000, 100); the cell of
least squared error wins. With `refine` C_mid is freed once the best A are found (most published C_mid lie on these two
grids, 4242 on neither). A scan over B finds the cells that can win, scipy settles their B: running it in each of the
71 × 199 cells would take minutes with a bootstrap around it.

Shapes: S data sets, n points, K candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strop.lab.scaling.sigmoid import share
from strop.lab.scaling.solve import GAIN, LOG_B, LOG_MID, FitProblem, Minimum, Solution, minimise

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
    """The best cell of every data set. log_compute [n]; y [S, n], pass rates minus R_0; r0 [S]."""
    candidates = _scan(log_compute, y, r0, grid, CANDIDATES if len(y) == 1 else 1)
    problem = FitProblem(log_compute, y, np.ones(len(log_compute)), r0)
    return Solution.of([_best(problem, row, cells, grid) for row, cells in enumerate(candidates)])


def _best(problem: FitProblem, row: int, cells: Array, grid: PaperGrid) -> Minimum:
    """The best of the candidate cells [K, 3] of a data set, (A, log B, log C_mid) each."""
    r0 = problem.r0[row]
    starts = {(a, mid): np.array([a - r0, b, mid, 0.0]) for a, b, mid in cells[::-1].tolist()}
    best = min((minimise(problem, row, start, [LOG_B]) for start in starts.values()), key=_error)
    if not grid.refine:
        return best
    step = grid.a[1] - grid.a[0]
    near = r0 + best.theta[GAIN] + step * np.arange(-NEIGHBOURS, NEIGHBOURS + 1)
    found = []
    for a in near[(near > grid.a[0] - step / 2) & (near < grid.a[-1] + step / 2)]:
        start = np.array([max(a - r0, 0.0), *best.theta[1:]])
        found.append(minimise(problem, row, start, [LOG_B, LOG_MID]))
    return min(found, key=_error)


def _error(found: Minimum) -> float:
    return found.sse


def _scan(log_compute: Array, y: Array, r0: Array, grid: PaperGrid, keep: int) -> Array:
    """The `keep` best of (A, log B, log C_mid) for each data set, [S, keep, 3].

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
    return np.stack([np.take_along_axis(values, best, 1) for values in (a, np.log(b), np.log(mid))], axis=2)


def _least(values: Array, keep: int) -> NDArray[np.intp]:
    """Where the `keep` smallest of each row are, smallest first."""
    if keep == 1:
        return np.argmin(values, axis=1)[:, None]
    return np.argsort(values, axis=1)[:, :keep]
