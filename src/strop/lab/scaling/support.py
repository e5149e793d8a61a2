"""Whether the points support a sigmoid at all; a reason in one line where they do not.

Four refusals. *Too few points*: three parameters need more than three. *Flat*: the sigmoid explains no more than a
constant does, so there is no rise to fit. *Non-monotone*: the pass rate falls again by more than its noise, which no
sigmoid does. *No curvature yet*: a curve that never ends (R_0 + k C^B, or a line in log C) explains the points as well
as one that does, the midpoint lies beyond the last point, or the interval of A runs into its bound; then A is a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strop.lab.scaling.curves import Curve
from strop.lab.scaling.power_law import growth_error, line_error
from strop.lab.scaling.sigmoid import Sigmoid

Array = NDArray[np.float64]

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
    """The noise left by a fit: variance of one unit of weight, its degrees of freedom, whether stderrs were known."""

    variance: float
    freedom: int
    known: bool

    def chance(self, excess: float, parameters: int) -> float:
        """How likely noise alone lets `parameters` more parameters gain `excess` weighted squared error."""
        from scipy.special import chdtrc, fdtrc

        if excess <= 0:
            return 1.0
        each = excess / parameters / self.variance
        return float(chdtrc(parameters, each * parameters) if self.known else fdtrc(parameters, self.freedom, each))


def noise_of(error: float, weight: Array, known: bool, parameters: int = 3, shared: bool = False) -> Noise:
    """The noise that a fit with weighted squared error `error` shows.

    With known standard errors it is theirs, unless the fit misses the points by significantly more than they allow
    (training has noise of its own): then everything is widened to what is seen. Where all points are of the same
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
    """Too few points, counted at different compute; `left_out` lie before or beyond those that are fitted."""
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
    """The largest drop between means of neighbouring points: by how much, before which compute, of which rise."""

    size: float
    before: float
    rise: float
    width: int

    def __str__(self) -> str:
        return (
            f"non-monotone: the pass rate falls by {self.size:.3f} before compute {self.before:.6g}, which no sigmoid "
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
    return Fall(float(drops[place]), float(curve.compute[place + width]), float(rise), width)


def non_monotone(curve: Curve) -> str | None:
    """A fall that is no noise, in the light of the standard errors or of the scatter of neighbours.

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
    """A fall of a large part of the rise, which matters even where few points leave the noise unknown."""
    fall = largest_fall(curve, _width(curve))
    return str(fall) if fall is not None and fall.size > LARGE_FALL * fall.rise else None


def _width(curve: Curve) -> int:
    return max(1, round(len(curve) / 8))


def _local_noise(rate: Array) -> float:
    """The noise of single points from second differences, which a smooth trend leaves alone."""
    if len(rate) < 4:
        return 0.0
    return float(np.sqrt(np.mean(np.diff(rate, 2) ** 2) / 6.0))


def flat(curve: Curve, weight: Array, error: float, noise: Noise) -> str | None:
    """No rise over the fitted points that the noise does not explain; `error` is the sigmoid's."""
    mean = float((weight * curve.pass_rate).sum() / weight.sum())
    constant = float((weight * (curve.pass_rate - mean) ** 2).sum())
    third = max(1, len(curve) // 3)
    rise = float(curve.pass_rate[-third:].mean() - curve.pass_rate[:third].mean())
    least = RISE_OVER_NOISE * float(np.sqrt(noise.variance / np.mean(weight) * 2.0 / third))
    span = f"between compute {curve.compute[0]:.6g} and {curve.compute[-1]:.6g}"
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
    """No sign that the rise will end."""
    endless = (
        ("R_0 + k C^B", growth_error(curve, weight, r0_weight)),
        ("a line in log C", line_error(curve, weight)),
    )
    for name, other in endless:
        if noise.chance(other - error, 1) > SIGNIFICANCE:
            return f"no curvature yet: {name}, which never saturates, explains the points as well; {WAIT}"
    last = float(curve.compute[-1])
    if fitted.C_mid > last:
        place = f"at {fitted.C_mid:.4g}, beyond the last point {last:.6g}"
        return f"no curvature yet: the midpoint would lie {place}; {WAIT}"
    return None


def undetermined(a: tuple[float, float], c_mid: tuple[float, float], ceiling: float, last: float) -> str | None:
    """The intervals of A and C_mid leave open where the rise will end."""
    low, high = a
    if high > ceiling - 1e-6 and high - low > WIDEST_AT_BOUND:
        return f"no curvature yet: A may be anything from {low:.3f} to its bound {ceiling:g}; more compute is needed"
    if high - low > WIDEST:
        return f"no curvature yet: the interval of A is {low:.3f} to {high:.3f}, too wide to mean anything"
    if c_mid[1] > last:
        return f"no curvature yet: the midpoint may lie at {c_mid[1]:.4g}, beyond the last point {last:.6g}; {WAIT}"
    return None
