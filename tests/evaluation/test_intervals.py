"""pass@k against counting every draw; intervals that cover as often as they say."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.evaluation import bootstrap, majority, pass_at_k


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
    with pytest.raises(ValueError, match="pass@|between none and all"):
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
    low, high = bootstrap(values, seed=1)
    stderr = values.std() / np.sqrt(len(values))
    assert low == pytest.approx(values.mean() - 1.96 * stderr, abs=0.1 * stderr)
    assert high == pytest.approx(values.mean() + 1.96 * stderr, abs=0.1 * stderr)
    assert bootstrap(values, seed=1) == (low, high)


def test_bootstrap_covers_the_truth() -> None:
    rng = np.random.default_rng(3)
    trials = 200
    covered = 0
    for trial in range(trials):
        low, high = bootstrap((rng.random(60) < 0.3).astype(np.float64), seed=trial, resamples=400)
        covered += low <= 0.3 <= high
    assert 0.88 <= covered / trials <= 0.99


def test_bootstrap_of_equal_values_and_of_none() -> None:
    assert bootstrap(np.full(5, 0.25)) == (0.25, 0.25)
    with pytest.raises(ValueError, match="no problems"):
        bootstrap(np.zeros(0))
