"""VIP: the best of all allocations in whole numbers, and the Gaussian process by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs import small_config

from strop.algorithms.allocation import Vip
from strop.algorithms.pass_rates import WINDOW, Seen, predicted_rates
from strop.base.types import InputError, IntArray

VARIANCES = {"mean": lambda n: (n - 1) / n**2, "leave_one_out": lambda n: 1 / (n - 1)}


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, np.int32)


@settings(max_examples=40, deadline=None)
@given(
    rates=st.lists(st.floats(0.001, 0.999), min_size=1, max_size=4), mean=st.integers(3, 6),
    baseline=st.sampled_from(sorted(VARIANCES)),
)  # fmt: skip
def test_no_other_allocation_has_less_variance(rates: list[float], mean: int, baseline: Any) -> None:
    vip = Vip(baseline=baseline, least=3, most=9)
    budget = mean * len(rates)

    def variance(sizes: tuple[int, ...]) -> float:
        return sum(p * (1 - p) * VARIANCES[baseline](n) for p, n in zip(rates, sizes, strict=True))

    sizes = tuple(vip(np.array(rates), mean))
    every = [each for each in itertools.product(range(3, 10), repeat=len(rates)) if sum(each) == budget]
    assert sizes in every  # the budget is spent, and no group is smaller or larger than allowed
    assert variance(sizes) == pytest.approx(min(map(variance, every)), rel=1e-12)


def test_sizes_by_hand() -> None:
    assert Vip()(np.array([0.5, 0.1, 0.01]), 8) == [12, 8, 4]
    assert Vip(most=10)(np.array([0.5, 0.1, 0.01]), 8) == [10, 10, 4]
    assert Vip()(np.array([0.3, 0.7, 0.3]), 8) == Vip(least=8, most=8)(np.array([0.1, 0.2, 0.3]), 8) == [8, 8, 8]
    assert Vip()(predicted_rates([ids(1), ids(2)], []), 8) == [8, 8]  # nothing is known


def test_a_posterior_of_two_problems_by_hand() -> None:
    # Three prompts of one token each, √2 ln 2 apart from each other.
    seen = [Seen(ids(1), 8, 8), Seen(ids(2), 8, 0)]
    logit = math.log(8.5 / 0.5)
    noise = sum(math.comb(8, k) / 2**8 * math.log((k + 0.5) / (8.5 - k)) ** 2 for k in range(9))  # half pass, in all
    prior = logit**2 - noise  # the mean of the logits is 0
    apart = prior * math.exp(-0.5)  # the width is the median distance, and there is only one
    rates = predicted_rates([ids(1), ids(2), ids(3), ids(1, 1)], seen)
    # [prior + noise, apart; apart, prior + noise]⁻¹ (logit, −logit) = (1, −1) · logit / (prior + noise − apart)
    weight = logit / (prior + noise - apart)
    two, three = math.log(2), math.log(3)
    twice = [prior * math.exp(-0.5 * square / (2 * two**2)) for square in ((three - two) ** 2, three**2 + two**2)]
    latent = [(prior - apart) * weight, -(prior - apart) * weight, 0.0, (twice[0] - twice[1]) * weight]
    assert rates == pytest.approx([1 / (1 + math.exp(-each)) for each in latent], rel=1e-9)


def test_what_most_groups_do_is_believed_of_an_unknown_prompt() -> None:
    easy = [Seen(ids(*range(7 * i, 7 * i + 5)), 8, 8 - (i == 3)) for i in range(20)]
    assert predicted_rates([ids(900)], easy)[0] > 0.85
    alike = [Seen(ids(i), 8, 4 + (i % 2)) for i in range(20)]  # no more apart than coins are
    assert np.ptp(predicted_rates([ids(i) for i in range(30)], alike)) == pytest.approx(0)


def test_problems_beyond_the_window_are_not_read() -> None:
    rng = np.random.default_rng(0)
    seen = [Seen(rng.integers(0, 99, 9).astype(np.int32), 8, int(rng.integers(0, 9))) for _ in range(WINDOW + 9)]
    prompts = [one.prompt_ids for one in seen[:3]]
    assert np.array_equal(predicted_rates(prompts, iter(seen)), predicted_rates(prompts, seen[:WINDOW]))
    assert not np.allclose(predicted_rates(prompts, seen[9:]), predicted_rates(prompts, seen))


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (['algorithm.allocation={piece="Vip", baseline="mean"}', "batch.samples_per_prompt=2"], "groups of 4 to 32"),
        (['algorithm.allocation={piece="Vip", least=4, most=3, baseline="mean"}'], "groups of 4 to 3 "),
        (['algorithm.allocation={piece="Vip", least=2, baseline="mean"}'], "at least 3"),
        (["algorithm.allocation=Vip"], "the advantage's baseline is 'mean'"),
    ],
)
def test_bounds_that_cannot_be_are_refused(sets: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        small_config(*sets)
