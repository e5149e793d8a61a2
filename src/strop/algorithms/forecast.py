"""How far the entropy of a run will fall, by its first quarter.

A run's entropy has collapsed when its mean over a tenth of the steps lies below a share of its start, at any time after
the first quarter. The logarithm of the least such mean, relative to the start, is taken to be linear in how far log
entropy fell within the quarter and in how the fall bends. Weights and residuals are those of a bank of small runs
(`bench/forecast.py`, which fits them and counts false and missed alarms); an interval leaves 10 % of residuals out at
each end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEAST = 3  # steps of a quarter: fewer have no bend


class Coefficients(NamedTuple):
    """Of the fall, of its bend, of 1; and the residuals at the ends of the interval."""

    fall: float
    bend: float
    constant: float
    low: float
    high: float


BANK = Coefficients(1.917, 1.489, -0.501, -0.833, 0.865)


def shape(entropies: Sequence[float]) -> tuple[float, float]:
    """The fall of log entropy from the first third of these to the last, and how it bends: below 0 it speeds up."""
    logs = np.log(np.maximum(entropies, 1e-12))
    third = round(len(logs) / 3)
    first, middle, last = (float(part.mean()) for part in (logs[:third], logs[third:-third], logs[-third:]))
    return last - first, last - 2 * middle + first


def least_share(entropies: Sequence[float], weights: Coefficients = BANK) -> tuple[float, float] | None:
    """The interval of the least entropy to come over that of the start; None where the quarter is too short."""
    if len(entropies) < LEAST:
        return None
    fall, bend = shape(entropies)
    expected = weights.fall * fall + weights.bend * bend + weights.constant
    return math.exp(expected + weights.low), math.exp(expected + weights.high)
