"""Bounded weighted least squares of the sigmoid, for many data sets at once.

Every bootstrap sample is fitted like the curve itself: a global search over (B, C_mid), in which the best A is known in
closed form, then Levenberg-Marquardt on all of them. Nothing loops over samples in Python.

R_0 is a measurement too, and moves within its noise: the model has a fourth parameter, the shift of R_0 from its
measured value, held back by a penalty shift² · r0_weight. Early points say much about R_0, and a curve forced through
one noisy measurement passes its error on to A.

Shapes: S data sets, n points, G grid cells. Parameters are rows (gain, log B, log C_mid, shift) with gain = A minus the
measured R_0, so that B and C_mid stay positive and steps are relative:

    pass rate − measured R_0 = shift + (gain − shift) · share
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from strop.lab.scaling.sigmoid import share

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

B_BOUNDS = (0.05, 20.0)
B_CELLS, MID_CELLS = 32, 48
MID_REACH = 1000.0  # how far C_mid may lie outside the data, as a factor
MAX_ITERATIONS = 200
TOLERANCE = 1e-9  # of a step, relative
LEAST_GAIN = 1e-12  # of a step, of the squared error
LARGEST_DAMPING = 1e12


@dataclass(frozen=True, eq=False)
class Problem:
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


@dataclass(frozen=True, eq=False)
class Solution:
    """gain, b, mid, shift and sse (weighted, with the penalty of the shift), each [S]."""

    gain: Array
    b: Array
    mid: Array
    shift: Array
    sse: Array

    @classmethod
    def of(cls, theta: Array, sse: Array) -> Solution:
        """From parameters [S, 4]."""
        return cls(theta[:, 0], np.exp(theta[:, 1]), np.exp(theta[:, 2]), theta[:, 3], sse)


def solve(problem: Problem, starts: int = 1, guess: Array | None = None) -> Solution:
    """The least-squares sigmoid of each data set, from its `starts` best grid cells and from `guess` [4] if given."""
    count = len(problem.y)
    first = _grid_starts(problem, starts)
    if guess is not None:
        first.append(np.tile(guess, (count, 1)))
    theta, sse = polish(_repeated(problem, len(first)), np.concatenate(first))
    best = np.argmin(sse.reshape(len(first), count), axis=0) * count + np.arange(count)
    return Solution.of(theta[best], sse[best])


def _repeated(problem: Problem, times: int) -> Problem:
    """All data sets, `times` times over, so that all starts go at once."""
    return replace(problem, y=np.tile(problem.y, (times, 1)), r0=np.tile(problem.r0, times))


def _bounds(problem: Problem) -> tuple[Array, Array]:
    """Of (log B, log C_mid): lower and upper, [2] each."""
    low, high = problem.log_compute.min(), problem.log_compute.max()
    reach = np.log(MID_REACH)
    b_low, b_high = np.log(B_BOUNDS)
    return np.array([b_low, low - reach]), np.array([b_high, high + reach])


def _grid_starts(problem: Problem, starts: int) -> list[Array]:
    """The `starts` best cells of a (B, C_mid) grid for each data set, as parameters [S, 4] each."""
    low, high = _bounds(problem)
    b = np.linspace(low[0] + 0.5, high[0] - 0.5, B_CELLS)
    middle = np.linspace(problem.log_compute.min() - 1.0, problem.log_compute.max() + 1.0, MID_CELLS - 8)
    far = np.concatenate([np.linspace(low[1], middle[0], 5)[:-1], middle, np.linspace(middle[-1], high[1], 5)[1:]])
    cell_b, cell_mid = (cells.ravel() for cells in np.meshgrid(b, far, indexing="ij"))
    shares = share(problem.log_compute[None, :], np.exp(cell_b)[:, None], cell_mid[:, None])  # [G, n]
    gains, sse = _best_gain(problem, shares)
    chosen = np.argsort(sse, axis=1)[:, :starts]
    rows, zero = np.arange(len(problem.y)), np.zeros(len(problem.y))
    return [
        np.stack([gains[rows, cell], cell_b[cell], cell_mid[cell], zero], axis=1)
        for cell in (chosen[:, k] for k in range(chosen.shape[1]))
    ]


def _best_gain(problem: Problem, shares: Array) -> tuple[Array, Array]:
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


def polish(problem: Problem, theta: Array) -> tuple[Array, Array]:
    """Projected Levenberg-Marquardt from `theta` [S, 4]; returns parameters [S, 4] and weighted squared error [S]."""
    theta = theta.copy()
    low, high = _bounds(problem)
    count = len(theta)
    nothing = np.zeros((count, 1))
    floor = np.concatenate([nothing, np.tile(low, (count, 1)), -problem.r0[:, None]], axis=1)
    ceiling = np.concatenate([problem.most[:, None], np.tile(high, (count, 1)), nothing + 1.0], axis=1)
    sse = _squares(problem, theta, np.arange(count))
    damping = np.full(count, 1e-3)
    going = np.arange(count)
    for _ in range(MAX_ITERATIONS):
        step = _step(problem, theta[going], damping[going], going, (floor[going], ceiling[going]))
        trial = np.clip(theta[going] + step, floor[going], ceiling[going])
        tried = _squares(problem, trial, going)
        better = tried < sse[going]
        moved = np.abs(trial - theta[going]).max(axis=1)
        gained = (sse[going] - tried) > LEAST_GAIN * sse[going]
        theta[going[better]], sse[going[better]] = trial[better], tried[better]
        damping[going] = np.where(better, damping[going] * 0.2, damping[going] * 8.0)
        damping[going] = np.maximum(damping[going], 1e-12)
        going = going[(moved > TOLERANCE) & (gained | ~better) & (damping[going] < LARGEST_DAMPING)]
        if len(going) == 0:
            break
    return theta, sse


def _squares(problem: Problem, theta: Array, rows: NDArray[np.intp]) -> Array:
    gain, shift = theta[:, :1], theta[:, 3:4]
    reached = share(problem.log_compute[None, :], np.exp(theta[:, 1:2]), theta[:, 2:3])
    error = (problem.weight * (problem.y[rows] - shift - (gain - shift) * reached) ** 2).sum(axis=1)
    return np.asarray(error if problem.r0_weight is None else error + problem.r0_weight * theta[:, 3] ** 2)


def _step(problem: Problem, theta: Array, damping: Array, rows: NDArray[np.intp], bounds: tuple[Array, Array]) -> Array:
    """The damped Gauss-Newton step of each data set; a parameter that a bound holds back stays where it is."""
    gain, b, shift = theta[:, :1], np.exp(theta[:, 1:2]), theta[:, 3:4]
    distance = problem.log_compute[None, :] - theta[:, 2:3]
    reached = share(distance, b, 0.0)
    slope = (gain - shift) * reached * (1.0 - reached) * b  # of the value, in log compute
    jacobian = np.stack([reached, slope * distance, -slope, 1.0 - reached], axis=2)  # [S, n, 4]
    residual = problem.y[rows] - shift - (gain - shift) * reached
    weighted = jacobian * problem.weight[None, :, None]
    gradient = np.einsum("snk,sn->sk", weighted, residual)
    normal = np.matmul(weighted.transpose(0, 2, 1), jacobian)
    if problem.r0_weight is not None:
        gradient[:, 3] -= problem.r0_weight * theta[:, 3]
        normal[:, 3, 3] += problem.r0_weight
    held = ((theta <= bounds[0]) & (gradient < 0)) | ((theta >= bounds[1]) & (gradient > 0))
    held[:, 0] |= problem.asymptote is not None
    held[:, 3] |= problem.r0_weight is None
    gradient[held] = 0.0
    free = ~held
    normal *= free[:, :, None] & free[:, None, :]
    diagonal = np.einsum("skk->sk", normal)
    scale = np.where(held, 1.0, np.maximum(diagonal, 1e-30))
    normal += np.eye(4) * (np.where(held, 1.0, damping[:, None] * scale))[:, None, :]
    # Scaling first keeps the determinant away from underflow, where numpy would call a fine system singular.
    root = np.sqrt(np.maximum(np.einsum("skk->sk", normal), 1e-30))
    scaled = normal / root[:, :, None] / root[:, None, :]
    step = np.linalg.solve(scaled, (gradient / root)[:, :, None])[:, :, 0] / root
    limit = np.array([1.0, 1.0, 2.0, 1.0])
    return np.clip(step, -limit, limit)
