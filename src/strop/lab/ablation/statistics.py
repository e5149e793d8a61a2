"""Means over seeds and paired differences, with what a handful of seeds can say about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from strop.lab.scaling.compare import ENOUGH_SEEDS, MARGIN
from strop.lab.scaling.fitted import Interval

Verdict = Literal["better", "worse", "same", "undecided"]


class Mean(NamedTuple):
    """A mean over `n` seeds; its standard error is None where there is one seed alone."""

    value: float
    stderr: float | None
    n: int


class Paired(NamedTuple):
    """The mean over `n` seeds of variant minus base; `interval` by Student's t, None where there is one seed alone."""

    value: float
    interval: Interval | None
    n: int
    level: float


def mean(values: Sequence[float]) -> Mean | None:
    """Mean and standard error s/√n, s with n − 1; None without a value."""
    if not values:
        return None
    array = np.asarray(values, np.float64)
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
    return Mean(float(array.mean()), error, len(array))


def paired(differences: Sequence[float], level: float) -> Paired | None:
    """Mean ± t_{n−1} · s/√n of differences seed by seed; None without one.

    With few seeds a bootstrap of the seeds is far too narrow (three of them have ten distinct samples); the t interval
    is honest about that, at the price of being wide.
    """
    found = mean(differences)
    if found is None:
        return None
    if found.stderr is None:
        return Paired(found.value, None, 1, level)
    from scipy.special import stdtrit

    half = float(stdtrit(found.n - 1, (1.0 + level) / 2.0)) * found.stderr
    return Paired(found.value, (found.value - half, found.value + half), found.n, level)


def verdict(difference: Paired | None, margin: float = MARGIN) -> Verdict:
    """Whether a difference of pass rates lies beyond the margin, in the base's disfavour or favour.

    Beyond means that the mean is, and that the interval leaves 0 out. The same means that the whole interval lies
    within the margin, of three seeds at least: two may well agree by accident.
    """
    if difference is None or difference.interval is None:
        return "undecided"
    low, high = difference.interval
    if abs(difference.value) > margin and not low <= 0.0 <= high:
        return "better" if difference.value > 0 else "worse"
    return "same" if difference.n >= ENOUGH_SEEDS and -margin <= low and high <= margin else "undecided"


def spikes(values: Sequence[float], factor: float = 3.0) -> int:
    """How many values exceed `factor` times the median of all (of gradient norms: steps that jumped)."""
    if not values:
        return 0
    return int((np.asarray(values) > factor * float(np.median(values))).sum())
