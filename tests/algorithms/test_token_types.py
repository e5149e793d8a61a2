"""Entropy quantiles by response and by batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.cases import tokens_of

from strop.algorithms.token_types import EntropyQuantile, group_quantile
from strop.algorithms.tokens import Tokens

FIVE = [0.1, 0.2, 0.3, 0.4, 0.5]
TEN = [i / 10 for i in range(10)]


def data(*responses: list[float], scored: bool = False) -> Tokens:
    flat = [e for response in responses for e in response]
    sequence = [i for i, response in enumerate(responses) for _ in response]
    column = {"scored_entropy" if scored else "old_entropy": torch.tensor(flat, dtype=torch.float32)}
    return tokens_of([0.0] * len(flat), sequence=torch.tensor(sequence, dtype=torch.int64), **column)


def test_published_quantiles() -> None:
    values = torch.tensor(FIVE + TEN, dtype=torch.float64)
    group = torch.tensor([4] * 5 + [2] * 10)
    found = group_quantile(values, group, 0.8)
    assert found.tolist() == pytest.approx([0.42] * 5 + [0.72] * 10)


def test_two_of_ten_tokens_reason() -> None:
    assert EntropyQuantile()(data(TEN)).tolist() == [False] * 8 + [True] * 2
    assert EntropyQuantile()(data(FIVE)).tolist() == [False] * 4 + [True]


def test_each_response_has_its_own_threshold() -> None:
    low, high = [0.01, 0.02, 0.03, 0.04, 0.05], [1.1, 1.2, 1.3, 1.4, 1.5]
    assert EntropyQuantile()(data(low, high)).tolist() == [False] * 4 + [True] + [False] * 4 + [True]
    # over the batch τ is the 7.2th of ten: every token of the calm response is knowledge
    assert EntropyQuantile(scope="batch")(data(low, high)).tolist() == [False] * 8 + [True] * 2


def test_the_boundary() -> None:
    equal, one = [0.3] * 4, [0.7]
    assert EntropyQuantile()(data(equal, one)).all()
    assert not EntropyQuantile(boundary="exclusive")(data(equal, one)).any()
    # six tokens: τ is exactly the fifth
    six = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert EntropyQuantile()(data(six)).tolist() == [False] * 4 + [True, True]
    assert EntropyQuantile(boundary="exclusive")(data(six)).tolist() == [False] * 5 + [True]


def test_an_order_statistic_is_met_exactly_whatever_the_rounding() -> None:
    # 0.7 · 10 = 7.000000000000001 in binary
    eleven = [i / 8 for i in range(11)]
    assert EntropyQuantile(quantile=0.7)(data(eleven)).sum() == 4


def test_which_entropies_are_read() -> None:
    batch, update = EntropyQuantile(), EntropyQuantile(when="update")
    assert batch.needs_old_entropy and not batch.needs_scores
    assert update.needs_scores and not update.needs_old_entropy
    assert update(data(TEN, scored=True)).sum() == 2


RESPONSE = st.lists(st.floats(0, 12, width=32), min_size=1, max_size=12)


@given(st.lists(RESPONSE, min_size=1, max_size=6), st.floats(0.01, 0.99), st.randoms(use_true_random=False))
def test_it_is_numpys_quantile_of_every_response(responses: list[list[float]], quantile: float, random) -> None:
    values = torch.tensor([e for r in responses for e in r], dtype=torch.float64)
    group = torch.tensor([7 * i + 3 for i, r in enumerate(responses) for _ in r])
    expected = [float(np.quantile(r, quantile)) for r in responses for _ in r]
    order = list(range(len(values)))
    random.shuffle(order)
    found = group_quantile(values[order], group[order], quantile)
    np.testing.assert_allclose(found.numpy(), np.array(expected)[order], rtol=1e-6, atol=1e-6)


def test_nothing_to_sort() -> None:
    assert EntropyQuantile()(data()).tolist() == []
