"""How many paired seeds decide a difference, by simulation of the verdict itself on normal differences.

A verdict is given once, from all seeds, or with a look after every seed from the third on, until one decides (`ablate
--until-decided`). Looks use intervals of a higher level, so that with probability `level` those of all looks up to
`MOST` seeds hold the true difference together. While they do, no verdict is false, whenever and why ever the study
stops. That level is found by simulation too; it holds for every deviation, since Student's t does not depend on it.

Shapes: D draws, N seeds.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.lab.scaling.compare import ENOUGH_SEEDS, MARGIN

Array = NDArray[np.float64]

DRAWS = 20_000
MOST = 64  # seeds of a study
LEVEL, PROBABILITY = 0.95, 0.8


class Running(NamedTuple):
    """Mean and standard deviation, [D, N], of the first n of N values; the deviation of a single value is infinite."""

    mean: Array
    deviation: Array


def running(values: Array) -> Running:
    """Of values [D, N] along their last axis."""
    n = np.arange(1, values.shape[1] + 1)
    mean = values.cumsum(axis=1) / n
    squares = np.maximum((values**2).cumsum(axis=1) - n * mean**2, 0.0)
    return Running(mean, np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), np.inf))


@lru_cache
def standard() -> Running:
    """Running means and deviations of D studies of `MOST` seeds with differences of mean 0 and deviation 1."""
    return running(np.random.default_rng(0).standard_normal((DRAWS, MOST)))


@lru_cache
def look_level(level: float) -> float:
    """The level of the interval at each look with which all of them hold the difference with probability `level`."""
    from scipy.special import stdtr

    found, n = standard(), np.arange(ENOUGH_SEEDS, MOST + 1)
    t = (np.abs(found.mean) / found.deviation)[:, ENOUGH_SEEDS - 1 :] * np.sqrt(n)
    return 1.0 - float(np.quantile(2.0 * stdtr(n - 1, -t).min(axis=1), 1.0 - level))


def verdicts(found: Running, level: float, margin: float) -> NDArray[np.int8]:
    """The verdicts of `collect.verdict`, [D, N]: 1 better, -1 worse, 2 the same, 0 undecided."""
    from scipy.special import stdtrit

    n = np.arange(1, found.mean.shape[1] + 1)
    half = stdtrit(np.maximum(n - 1, 1), (1.0 + level) / 2.0) / np.sqrt(n) * found.deviation
    size = np.abs(found.mean)
    apart, same = (size > margin) & (size > half), (size + half <= margin) & (n >= ENOUGH_SEEDS)
    return np.where(apart, np.sign(found.mean), 2 * same).astype(np.int8)


def first_looks(codes: NDArray[np.int8]) -> tuple[NDArray[np.int8], NDArray[np.intp]]:
    """The verdicts [D] of the first looks that decide, and their seeds; N seeds where none does."""
    codes = np.where(np.arange(codes.shape[1]) < ENOUGH_SEEDS - 1, 0, codes).astype(np.int8)
    place = np.where(codes.any(axis=1), (codes != 0).argmax(axis=1), codes.shape[1] - 1)
    return codes[np.arange(len(codes)), place], place + 1


class Power(NamedTuple):
    """How probably so many seeds decide, for every number of them.

    Fields:
        once: the probability of one verdict from all of 1 … `MOST` seeds, [MOST].
        until: that with looks, of which the last is at so many, [MOST].
        mean: seeds until a look decides, in the mean, where so many are the most, [MOST].
    """

    once: Array
    until: Array
    mean: Array


def fewest(probabilities: Array) -> int | None:
    """The fewest seeds that decide with a probability of 80 %; None where `MOST` do not."""
    place = bisect_left(probabilities, PROBABILITY)
    return place + 1 if place < MOST else None


def power(
    difference: float, deviation: float, pairs: int | None = None, margin: float = MARGIN, level: float = LEVEL
) -> Power:
    """How probably a study decides `difference`: calls it better, and a difference of 0 the same.

    Args:
        difference: the true one, at least 0, in pass rate.
        deviation: of differences over seeds; estimated from so many `pairs`, known where these are None.
        margin: of the verdict.
        level: with which a verdict is right.
    """
    found = standard()
    scale = np.full((DRAWS, 1), max(deviation, 1e-9))
    if pairs is not None:
        # What the deviation may be: where an earlier study, drawn too, deviates as was seen.
        scale /= np.roll(found.deviation[:, [min(pairs, MOST) - 1]], 1)
    values = Running(difference + scale * found.mean, scale * found.deviation)
    right = 1 if difference else 2
    once = (verdicts(values, level, margin) == right).mean(axis=0)
    codes, at = first_looks(verdicts(values, look_level(level), margin))
    until = np.bincount(at[codes == right], minlength=MOST + 1)[1:].cumsum() / DRAWS
    return Power(once, until, np.minimum(at[:, None], np.arange(1, MOST + 1)).mean(axis=0))


class Needed(NamedTuple):
    """Seeds that decide a difference with a probability of 80 %; None where `MOST` do not.

    Fields:
        deviation: of the differences over seeds, estimated from `pairs`, known where these are None.
        once: for one verdict.
        until_decided: the most, where the first look that decides ends the study; `mean` is what it takes in the mean.
    """

    deviation: float
    pairs: int | None
    once: int | None
    until_decided: int | None
    mean: float | None


def needed(
    difference: float, deviation: float, pairs: int | None = None, margin: float = MARGIN, level: float = LEVEL
) -> Needed:
    """The seeds of a study by `power`, whose arguments these are."""
    found = power(difference, deviation, pairs, margin, level)
    most = fewest(found.until)
    return Needed(deviation, pairs, fewest(found.once), most, None if most is None else float(found.mean[most - 1]))
