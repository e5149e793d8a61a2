"""Checks whether the points support a sigmoid; each returns a reason in one line, or None.

Four refusals. *Too few points*: three parameters need more than three. *Flat*: the sigmoid explains no more than a
constant does, so there is no rise to fit. *Non-monotone*: the pass rate falls again by more than its noise, which no
sigmoid does. *No curvature yet*: a curve that never ends (R_0 + k C^B, or a line in log C) explains the points as well
as one that does, the midpoint lies beyond the last point, or the interval of A runs into its bound; then A is a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strop.lab.scaling.curves import Curve
from strop.lab.scaling.sigmoid import Sigmoid

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
        """For each exponent of b [cells] the best A and D, in closed form, and their weighted squared error."""
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
        """The error [cells] with the best k, and R_0 where it may move, of each exponent of b [cells]."""
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


FEWEST_POINTS = 5
SIGNIFICANCE = 0.01
# A rise must stand out of the noise by as many standard deviations, a fall by as many and by a share of the rise.
RISE_OVER_NOISE = 3.0
FALL_OVER_NOISE = 5.0
SMALL_FALL, SINGLE_FALL, LARGE_FALL = 0.05, 0.15, 0.3
VISIBLE_FALL = 0.05
WIDEST_AT_BOUND = 0.2
WIDEST = 0.3
WAIT = "fit again when the rise has slowed down"
EXACT = 1e-7  # pass rates closer than this are equal: rounding of a file, not noise


@dataclass(frozen=True)
class Noise:
    """The residual noise of a fit: variance of a unit of weight, degrees of freedom, whether stderrs were known."""

    variance: float
    freedom: int
    known: bool

    def chance(self, excess: float, parameters: int) -> float:
        """The probability that `parameters` more parameters gain `excess` weighted squared error from noise only."""
        from scipy.special import chdtrc, fdtrc

        if excess <= 0:
            return 1.0
        each = excess / parameters / self.variance
        return float(chdtrc(parameters, each * parameters) if self.known else fdtrc(parameters, self.freedom, each))


def noise_of(error: float, weight: Array, known: bool, parameters: int = 3, shared: bool = False) -> Noise:
    """The noise that a fit with weighted squared error `error` shows.

    With known standard errors it is theirs, unless the fit misses the points by significantly more than they allow
    (training is noisy too): then everything is widened to what is seen. Where all points are of the same
    problems (`shared`), their standard errors have a part in common, which moves the curve and bends nothing: points
    that lie significantly closer to the fit than their errors say are judged by what is seen too.
    """
    from scipy.special import chdtr, chdtrc

    freedom = max(len(weight) - parameters, 1)
    seen = error / freedom
    if known and not (shared and chdtr(freedom, error) < SIGNIFICANCE):
        return Noise(seen if chdtrc(freedom, error) < SIGNIFICANCE else 1.0, freedom, True)
    return Noise(max(seen, EXACT**2 * float(np.mean(weight))), freedom, False)


def too_few(curve: Curve, left_out: int) -> str | None:
    """Refuses too few points at different compute; `left_out` points lie before or beyond the fitted ones."""
    different = len(np.unique(curve.compute))
    if different >= FEWEST_POINTS:
        return None
    fewer = "leave fewer out (--skip-until, --fit-until), or " if left_out else ""
    return (
        f"too few points: {different} at different compute after R_0, at least {FEWEST_POINTS} are needed; "
        f"{fewer}evaluate more often (evaluation.every)"
    )


@dataclass(frozen=True)
class Fall:
    """The largest drop between means of neighbouring points: its size, before which compute in words, of which rise."""

    size: float
    before: str
    rise: float
    width: int

    def __str__(self) -> str:
        return (
            f"non-monotone: the pass rate falls by {self.size:.3f} before {self.before}, which no sigmoid "
            "does; fit the part before the fall (--fit-until), or look for what went wrong in the run"
        )


def largest_fall(curve: Curve, width: int) -> Fall | None:
    """The largest drop from the mean of `width` neighbouring points to that of later ones; None where there is none."""
    means = np.convolve(curve.pass_rate, np.full(width, 1.0 / width), mode="valid")
    drops = np.maximum.accumulate(means)[: len(means) - width] - means[width:]
    if len(drops) == 0 or drops.max() <= 0:
        return None
    place = int(np.argmax(drops))
    rise = max(means.max() - min(curve.r0, means.min()), EXACT)
    return Fall(float(drops[place]), f"{curve.compute[place + width]:.6g} {curve.words}", float(rise), width)


def non_monotone(curve: Curve) -> str | None:
    """Refuses a fall larger than the noise, which is known from standard errors or from the scatter of neighbours.

    Where standard errors are known, a single point may show it; else neighbours are averaged.
    """
    tries: tuple[tuple[int, float], ...]
    if curve.stderr is None:
        noise, tries = _local_noise(curve.pass_rate), ((_width(curve), SMALL_FALL),)
    else:
        noise = float(np.sqrt(np.mean(curve.stderr**2)))
        tries = ((_width(curve), SMALL_FALL), (1, SINGLE_FALL))
    for width, least in tries:
        fall = largest_fall(curve, width)
        unlikely = FALL_OVER_NOISE * max(noise, EXACT) * np.sqrt(2.0 / width)
        if fall is not None and fall.size > max(unlikely, least * fall.rise):
            return str(fall)
    return None


def falls_back(curve: Curve) -> str | None:
    """Refuses a fall of a large part of the rise, even if few points leave the noise unknown."""
    fall = largest_fall(curve, _width(curve))
    return str(fall) if fall is not None and fall.size > LARGE_FALL * fall.rise else None


def _width(curve: Curve) -> int:
    return max(1, round(len(curve) / 8))


def _local_noise(rate: Array) -> float:
    """The noise of single points from second differences, which a smooth trend does not change."""
    if len(rate) < 4:
        return 0.0
    return float(np.sqrt(np.mean(np.diff(rate, 2) ** 2) / 6.0))


def flat(curve: Curve, weight: Array, error: float, noise: Noise) -> str | None:
    """Refuses points whose rise may be noise; `error` is the weighted squared error of the sigmoid."""
    mean = float((weight * curve.pass_rate).sum() / weight.sum())
    constant = float((weight * (curve.pass_rate - mean) ** 2).sum())
    third = max(1, len(curve) // 3)
    rise = float(curve.pass_rate[-third:].mean() - curve.pass_rate[:third].mean())
    least = RISE_OVER_NOISE * float(np.sqrt(noise.variance / np.mean(weight) * 2.0 / third))
    span = f"between {curve.compute[0]:.6g} and {curve.compute[-1]:.6g} {curve.words}"
    if rise < -least:
        return f"non-monotone: the pass rate falls by {-rise:.3f} {span}; there is no gain to fit"
    trend = line_error(curve, weight)
    straight = noise_of(trend, weight, noise.known, parameters=2, shared=curve.same_problems)
    by_chance = min(noise.chance(constant - error, 2), straight.chance(constant - trend, 1))
    if by_chance <= (SIGNIFICANCE if len(curve) < 8 else SIGNIFICANCE / 10.0) and rise >= least:
        return None
    fall = largest_fall(curve, _width(curve))
    if fall is not None and fall.size > max(LARGE_FALL * fall.rise, VISIBLE_FALL):
        return f"flat or non-monotone: the pass rate goes up and down {span} and keeps no gain beyond its noise"
    return (
        f"flat: the pass rate does not rise beyond its noise {span} (it stays around {mean:.3f}); "
        "add earlier or later points"
    )


def no_curvature(
    curve: Curve, weight: Array, r0_weight: float | None, fitted: Sigmoid, error: float, noise: Noise
) -> str | None:
    """Refuses points that a curve without an end explains as well."""
    endless = (
        ("R_0 + k C^B", growth_error(curve, weight, r0_weight)),
        ("a line in log C", line_error(curve, weight)),
    )
    for name, other in endless:
        if noise.chance(other - error, 1) > SIGNIFICANCE:
            return f"no curvature yet: {name}, which never saturates, explains the points as well; {WAIT}"
    last = float(curve.compute[-1])
    if fitted.C_mid > last:
        place = f"at {fitted.C_mid:.4g}, beyond the last point {last:.6g} {curve.words}"
        return f"no curvature yet: the midpoint would lie {place}; {WAIT}"
    return None


def undetermined(a: tuple[float, float], c_mid: tuple[float, float], ceiling: float, last: float) -> str | None:
    """Refuses fits whose intervals of A and C_mid are too wide."""
    low, high = a
    if high > ceiling - 1e-6 and high - low > WIDEST_AT_BOUND:
        return f"no curvature yet: A may be anything from {low:.3f} to its bound {ceiling:g}; more compute is needed"
    if high - low > WIDEST:
        return f"no curvature yet: the interval of A is {low:.3f} to {high:.3f}, too wide to mean anything"
    if c_mid[1] > last:
        return f"no curvature yet: the midpoint may lie at {c_mid[1]:.4g}, beyond the last point {last:.6g}; {WAIT}"
    return None
