"""Numbers with their uncertainty: pass@k, majority votes, and bootstrap intervals over problems.

Shapes: P problems, N samples a problem, R bootstrap resamples.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RESAMPLES = 10_000
_VALUES_AT_ONCE = 4_000_000  # of the [R, P] resample matrix: 32 MB


class Interval(NamedTuple):
    """A confidence interval, its ends included."""

    low: float
    high: float


def pass_at_k(correct: NDArray[np.int64], samples: NDArray[np.int64], k: int) -> Array:
    """The unbiased chance that k of a problem's samples, drawn without replacement, hold a correct one.

    Chen et al. (2021): 1 - C(n - c, k) / C(n, k), computed as the product 1 - Π (1 - k / i) over n - c < i <= n.

    Args:
        correct: int64 [P], correct samples c.
        samples: int64 [P], samples n, each at least k.
        k: how many are drawn.

    Returns:
        float64 [P].

    Raises:
        ValueError: k is below 1 or above some n, or some c is not in [0, n].
    """
    if k < 1 or np.any(samples < k):
        raise ValueError(f"pass@{k} needs at least {max(k, 1)} samples of every problem")
    if np.any((correct < 0) | (correct > samples)):
        raise ValueError("a problem has between none and all of its samples correct")
    rates = np.ones(len(samples))
    for index, (c, n) in enumerate(zip(correct.tolist(), samples.tolist(), strict=True)):
        if n - c >= k:
            rates[index] = 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))
    return rates


def majority(answers: tuple[str | None, ...], correct: NDArray[np.bool_]) -> float:
    """The chance that the most frequent answer of a problem is correct; ties are drawn from, no answer never wins."""
    votes: dict[str, int] = {}
    right: dict[str, bool] = {}
    for answer, is_right in zip(answers, correct.tolist(), strict=True):
        if answer is not None:
            votes[answer] = votes.get(answer, 0) + 1
            right[answer] = right.get(answer, False) or is_right
    most = max(votes.values(), default=0)
    winners = [right[answer] for answer, count in votes.items() if count == most]
    return sum(winners) / len(winners) if winners else 0.0


def bootstrap(values: Array, seed: int = 0, level: float = 0.95, resamples: int = RESAMPLES) -> Interval:
    """The percentile interval of the mean of `values`, float64 [P], under resampling of problems with replacement.

    Problems vary, and samples of one problem are no independent problems, so problems are what is resampled.

    Raises:
        ValueError: there is no value.
    """
    size = len(values)
    if size == 0:
        raise ValueError("no problems to resample")
    rng = np.random.default_rng(seed)
    means: list[Array] = []
    at_once = max(1, _VALUES_AT_ONCE // size)
    for start in range(0, resamples, at_once):
        drawn = rng.integers(size, size=(min(at_once, resamples - start), size))
        means.append(values[drawn].mean(axis=1))
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(np.concatenate(means), (tail, 1.0 - tail))
    return Interval(float(low), float(high))
