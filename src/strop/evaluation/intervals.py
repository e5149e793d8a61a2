"""Numbers with their uncertainty: pass@k, majority votes, and bootstrap intervals over problems.

Shapes: P problems, N samples a problem, R bootstrap resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RESAMPLES = 10_000
BEYOND = 0.025  # the share of resamples below a 95 % interval, and above it
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


def majority_at_k(answers: tuple[str | None, ...], correct: NDArray[np.bool_], k: int) -> float:
    """maj@k of one problem: the mean of `majority` over the disjoint runs of k of its samples; what is left is unused.

    Samples are exchangeable, so every run is a fair draw of k and the mean is unbiased for any k up to their number.

    Raises:
        ValueError: there are fewer than k samples, or k is below 1.
    """
    if k < 1 or len(answers) < k:
        raise ValueError(f"maj@{k} needs at least {max(k, 1)} samples of a problem, there are {len(answers)}")
    starts = range(0, len(answers) - k + 1, k)
    return float(np.mean([majority(answers[start : start + k], correct[start : start + k]) for start in starts]))


def resampled_means(values: Array, seed: int = 0) -> Array:
    """The mean of `values`, float64 [P], in each of R resamples of problems with replacement, float64 [R].

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
    for start in range(0, RESAMPLES, at_once):
        drawn = rng.integers(size, size=(min(at_once, RESAMPLES - start), size))
        means.append(values[drawn].mean(axis=1))
    return np.concatenate(means)


def bootstrap(values: Array) -> Interval:
    """The 95 % percentile interval of the mean of `values`, float64 [P], under resampling of problems with replacement.

    Raises:
        ValueError: there is no value.
    """
    return _percentiles(resampled_means(values))


def rate_interval(values: Array) -> Interval:
    """The interval of the mean of rates in [0, 1], float64 [P]: `bootstrap`, unless all are 0 or all are 1.

    Resamples of P equal values are all alike, which would say that nothing is uncertain. Of P problems none of which
    (or all of which) passed, Clopper and Pearson's exact interval ends at 1 - (α/2)^(1/P) (or begins at (α/2)^(1/P)).

    Raises:
        ValueError: there is no value.
    """
    interval = bootstrap(values)
    beyond = BEYOND ** (1.0 / len(values))
    if interval == (0.0, 0.0):
        return Interval(0.0, 1.0 - beyond)
    return Interval(beyond, 1.0) if interval == (1.0, 1.0) else interval


def difference_interval(values: Array) -> Interval:
    """The interval of the mean of differences in [-1, 1], float64 [P]: `bootstrap`, unless all of them are equal.

    P problems that all differ by as much leave a share of 1 - (α/2)^(1/P) of others to differ in any way.

    Raises:
        ValueError: there is no value.
    """
    low, high = bootstrap(values)
    if low < high:
        return Interval(low, high)
    beyond = 1.0 - BEYOND ** (1.0 / len(values))
    return Interval(max(low - beyond, -1.0), min(high + beyond, 1.0))


def average_interval(groups: Sequence[Array], differences: bool = False) -> Interval:
    """The interval of a benchmark average of rates or `differences`: `bootstrap_average`, unless resamples are alike.

    They are alike where each group's rates are all 0 or all 1, or its differences all equal. Then the exact intervals
    of the groups are averaged, which covers more than 95 %.

    Raises:
        ValueError: there is no group, or an empty one.
    """
    kinds = [set(values.tolist()) for values in groups]
    exact = difference_interval if differences else rate_interval
    if groups and all(len(kind) == 1 if differences else kind in ({0.0}, {1.0}) for kind in kinds):
        low, high = np.mean([exact(values) for values in groups], axis=0)
        return Interval(float(low), float(high))
    return bootstrap_average(groups)


def bootstrap_average(groups: Sequence[Array]) -> Interval:
    """The 95 % percentile interval of the mean of the groups' means: benchmarks are resampled one by one.

    Raises:
        ValueError: there is no group, or an empty one.
    """
    if not groups:
        raise ValueError("no benchmarks to average")
    return _percentiles(np.mean([resampled_means(values, seed) for seed, values in enumerate(groups)], axis=0))


def sign_flip_p(differences: Array) -> float:
    """The two-sided p-value of a paired randomisation test on float64 [P] differences of the same problems.

    Under the hypothesis of no difference the sign of each problem's difference is a coin's; p is the share of R draws
    of the signs (the observed one counted, so that it is never 0) whose mean lies as far from 0 as the observed mean.

    Raises:
        ValueError: there is no difference.
    """
    size = len(differences)
    if size == 0:
        raise ValueError("no problems to compare")
    observed = abs(float(differences.mean()))
    rng = np.random.default_rng(0)
    extreme, at_once = 0, max(1, _VALUES_AT_ONCE // size)
    for start in range(0, RESAMPLES, at_once):
        signs = rng.choice((-1.0, 1.0), size=(min(at_once, RESAMPLES - start), size))
        extreme += int((np.abs((signs * differences).mean(axis=1)) >= observed - 1e-12).sum())
    return (extreme + 1) / (RESAMPLES + 1)


def _percentiles(means: Array) -> Interval:
    low, high = np.quantile(means, (BEYOND, 1.0 - BEYOND))
    return Interval(float(low), float(high))
