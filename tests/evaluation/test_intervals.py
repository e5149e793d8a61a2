"""pass@k against counting every draw; intervals that cover as often as they say."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.evaluation.intervals import (
    average_interval,
    bootstrap,
    bootstrap_average,
    difference_interval,
    majority,
    majority_at_k,
    pass_at_k,
    rate_interval,
    sign_flip_p,
)


def counted(correct: int, samples: int, k: int) -> float:
    """The share of all draws of k samples that hold a correct one."""
    draws = list(combinations([True] * correct + [False] * (samples - correct), k))
    return sum(any(draw) for draw in draws) / len(draws)


@given(st.data())
def test_pass_at_k_counts_every_draw(data: st.DataObject) -> None:
    samples = data.draw(st.integers(1, 9))
    correct, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    (rate,) = pass_at_k(np.array([correct]), np.array([samples]), k)
    assert rate == pytest.approx(counted(correct, samples, k), abs=1e-12)


def test_pass_at_k_of_many_samples() -> None:
    """1 of 1000 correct: C(1000, k) overflows, the product does not."""
    rates = pass_at_k(np.array([1, 0, 1000, 999]), np.array([1000] * 4), 500)
    assert rates == pytest.approx([0.5, 0.0, 1.0, 1.0])


@pytest.mark.parametrize(("correct", "samples", "k"), [(1, 4, 5), (1, 4, 0), (5, 4, 1), (-1, 4, 1)])
def test_pass_at_k_refusals(correct: int, samples: int, k: int) -> None:
    with pytest.raises(ValueError):
        pass_at_k(np.array([correct]), np.array([samples]), k)


@pytest.mark.parametrize(
    ("answers", "correct", "rate"),
    [
        (("1", "1", "2"), [1, 1, 0], 1.0),
        (("2", "2", "1"), [0, 0, 1], 0.0),
        (("1", "2"), [1, 0], 0.5),
        ((None, None, "1"), [0, 0, 1], 1.0),
        ((None, None), [0, 0], 0.0),
    ],
)
def test_majority(answers: tuple[str | None, ...], correct: list[int], rate: float) -> None:
    assert majority(answers, np.array(correct, dtype=np.bool_)) == rate


def test_bootstrap_is_that_of_the_normal_for_many_problems() -> None:
    values = np.random.default_rng(0).normal(size=2000)
    low, high = bootstrap(values)
    stderr = values.std() / np.sqrt(len(values))
    assert low == pytest.approx(values.mean() - 1.96 * stderr, abs=0.1 * stderr)
    assert high == pytest.approx(values.mean() + 1.96 * stderr, abs=0.1 * stderr)
    assert bootstrap(values) == (low, high)


def test_bootstrap_covers_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.evaluation.intervals.RESAMPLES", 400)
    rng = np.random.default_rng(3)
    trials = 200
    covered = 0
    for _ in range(trials):
        low, high = bootstrap((rng.random(60) < 0.3).astype(np.float64))
        covered += low <= 0.3 <= high
    assert 0.88 <= covered / trials <= 0.99


def test_bootstrap_of_equal_values_and_of_none() -> None:
    assert bootstrap(np.full(5, 0.25)) == (0.25, 0.25)
    with pytest.raises(ValueError):
        bootstrap(np.zeros(0))


def test_rates_that_are_all_alike_are_still_uncertain() -> None:
    low, high = rate_interval(np.zeros(10))
    assert low == 0.0 and high == pytest.approx(0.3085, abs=1e-4)  # Clopper and Pearson of 0 in 10
    assert rate_interval(np.ones(10)) == pytest.approx((1.0 - high, 1.0))
    assert rate_interval(np.zeros(3000)).high == pytest.approx(3.69 / 3000, rel=1e-2)
    mixed = np.array([0.0, 0.25, 1.0, 1.0])
    assert rate_interval(mixed) == bootstrap(mixed)


def test_an_average_of_rates_that_are_all_alike_is_not_certain() -> None:
    assert average_interval([np.zeros(10)]) == pytest.approx(rate_interval(np.zeros(10)))
    expected = np.mean([rate_interval(np.zeros(10)), rate_interval(np.ones(30))], axis=0)
    assert average_interval([np.zeros(10), np.ones(30)]) == pytest.approx(expected)
    mixed = [np.array([0.0, 1.0, 1.0]), np.zeros(4)]
    assert average_interval(mixed) == bootstrap_average(mixed)


@given(st.integers(1, 200), st.data())
def test_pass_at_k_is_the_closed_form(samples: int, data: st.DataObject) -> None:
    """1 - C(n - c, k) / C(n, k) in exact arithmetic."""
    correct, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    exact = 1 - Fraction(math.comb(samples - correct, k), math.comb(samples, k))
    (rate,) = pass_at_k(np.array([correct]), np.array([samples]), k)
    assert rate == pytest.approx(float(exact), abs=1e-12)


def test_majority_of_k_is_the_mean_over_disjoint_draws() -> None:
    answers = ("1", "1", "2", "2", "2", "1", "9")
    correct = np.array([1, 1, 0, 0, 0, 1, 0], dtype=np.bool_)
    assert majority_at_k(answers, correct, 1) == pytest.approx(3 / 7)
    assert majority_at_k(answers, correct, 2) == pytest.approx((1 + 0 + 0.5) / 3)
    assert majority_at_k(answers, correct, 3) == pytest.approx((1 + 0) / 2)
    assert majority_at_k(answers, correct, 7) == 0.5  # three of each
    for k in (0, 8):
        with pytest.raises(ValueError, match="maj@"):
            majority_at_k(answers, correct, k)


@pytest.mark.parametrize(
    "differences", [[0.5, 0.25, -0.25], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0], [0.5, -0.5, 0.25, 0.25, 0.125]]
)
def test_sign_flips_count_every_assignment(differences: list[float]) -> None:
    """Against all 2^P assignments of signs, which the Monte Carlo draws estimate."""
    values = np.array(differences)
    means = [abs(float(np.mean(values * np.array(signs)))) for signs in product((-1, 1), repeat=len(values))]
    exact = float(np.mean([mean >= abs(values.mean()) - 1e-12 for mean in means]))
    assert sign_flip_p(values) == pytest.approx(exact, abs=0.02)


def test_sign_flips_tell_a_consistent_gain_from_noise() -> None:
    rng = np.random.default_rng(0)
    assert sign_flip_p(rng.normal(0.3, 1.0, size=400)) < 0.001
    assert sign_flip_p(rng.normal(0.0, 1.0, size=400)) > 0.05


def test_an_average_weighs_benchmarks_alike() -> None:
    """Two benchmarks of 10 and 1000 problems: the variance of the average is a quarter of the sum of theirs."""
    rng = np.random.default_rng(1)
    small, large = rng.normal(0.2, 1.0, size=10), rng.normal(0.8, 1.0, size=1000)
    low, high = bootstrap_average([small, large])
    stderr = np.sqrt(small.var() / 10 + large.var() / 1000) / 2
    assert (high - low) / 2 == pytest.approx(1.96 * stderr, rel=0.1)
    assert low < (small.mean() + large.mean()) / 2 < high
    with pytest.raises(ValueError):
        bootstrap_average([])


def test_differences_that_are_all_equal_leave_room_for_others():
    beyond = 1 - 0.025 ** (1 / 20)
    assert difference_interval(np.zeros(20)) == pytest.approx((-beyond, beyond))
    assert difference_interval(np.ones(20)) == pytest.approx((1 - beyond, 1.0))
    mixed = np.array([0.0, 0.5, -0.25])
    assert difference_interval(mixed) == bootstrap(mixed)
    assert average_interval([np.zeros(20), np.zeros(20)], differences=True) == pytest.approx((-beyond, beyond))
    groups = [mixed, np.zeros(20)]
    assert average_interval(groups, differences=True) == bootstrap_average(groups)
