"""Generalised advantage estimation by hand, and its closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.advantages import Outcomes, gae
from strop.algorithms.value import Gae
from strop.base.types import StropError

VALUES = np.array([0.5, 0.4, 0.8])


def outcomes(rewards: list[float], values: list[list[float]], **more: Any) -> Outcomes:
    lengths = [len(v) for v in values]
    columns = tuple(np.array(v, dtype=np.float32) for v in values)
    survives = np.ones(len(rewards), dtype=np.bool_)
    group = np.arange(len(rewards), dtype=np.int32)
    base = Outcomes(np.array(rewards), group, np.array(lengths, dtype=np.int32), survives, None, columns)
    return replace(base, **more)


def test_by_hand() -> None:
    # δ = (.9·.4 − .5, .9·.8 − .4, 1 − .8) = (−.14, .32, .2); A_3 = .2, A_2 = .32 + .45·.2 = .41, A_1 = −.14 + .45·.41
    found, _ = gae(np.array([0.0, 0.0, 1.0]), VALUES, gamma=0.9, lam=0.5)
    assert found == pytest.approx([0.0445, 0.41, 0.2])


def test_the_docstrings_example() -> None:
    piece, data = Gae(normalization="none"), outcomes([1.0], [[0.2, 0.5]])
    assert piece(data)[0] == pytest.approx([0.8, 0.5])
    assert piece.returns(data)[0] == pytest.approx([1.0, 1.0])


def test_a_reward_of_a_token_counts_from_there_on() -> None:
    data = outcomes([1.0], [[0.2, 0.5]], token_rewards=(np.array([-0.1, -0.3], dtype=np.float32),))
    assert Gae(normalization="none")(data)[0] == pytest.approx([1 - 0.4 - 0.2, 1 - 0.3 - 0.5])
    assert Gae(normalization="none").returns(data)[0] == pytest.approx([0.6, 0.7])


def test_injected_tokens_are_no_actions() -> None:
    """The values at their places do not matter, and a return passes over them undiscounted."""
    mask = (np.array([True, False, False, True]),)
    piece = Gae(gamma=0.9, lam=0.5, normalization="none")
    with_holes = outcomes([1.0], [[0.2, 9.0, -9.0, 0.5]], trained=mask)
    plain = outcomes([1.0], [[0.2, 0.5]])
    assert piece(with_holes)[0][[0, 3]] == pytest.approx(piece(plain)[0])
    assert piece(with_holes)[0][[1, 2]] == pytest.approx([0, 0])
    assert piece.returns(with_holes)[0][[0, 3]] == pytest.approx(piece.returns(plain)[0])


def test_normalization_is_over_all_tokens_of_what_survives() -> None:
    data = outcomes([1.0, 0.0, 5.0], [[0.5, 0.5], [0.25, 0.75, 0.5], [0.0]], survives=np.array([True, True, False]))
    found = Gae(eps=0)(data)
    raw = np.array([0.5, 0.5, -0.25, -0.75, -0.5])
    assert np.concatenate(found[:2]) == pytest.approx((raw - raw.mean()) / raw.std())
    assert Gae(eps=0).returns(data)[1] == pytest.approx([0, 0, 0])


def test_without_a_critic_there_is_no_gae() -> None:
    with pytest.raises(StropError):
        Gae()(Outcomes(np.ones(1), np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.int32), np.ones(1, dtype=np.bool_)))


reals = st.floats(-5, 5)


@given(st.lists(st.tuples(reals, reals), min_size=1, max_size=12), st.floats(0, 1), st.floats(0, 1))
def test_the_recursion_is_the_sum(rows: list[tuple[float, float]], gamma: float, lam: float) -> None:
    rewards, values = np.array(rows).T
    deltas = rewards + gamma * np.append(values[1:], 0) - values
    expected = [
        sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))
    ]  # fmt: skip
    assert gae(rewards, values, gamma, lam)[0] == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(reals, reals), min_size=1, max_size=12))
def test_at_one_and_one_it_is_the_rewards_to_come_minus_the_value(rows: list[tuple[float, float]]) -> None:
    rewards, values = np.array(rows).T
    almost, _ = gae(rewards, values, float(np.nextafter(1.0, 0.0)), 1.0)
    exact, _ = gae(rewards, values, 1.0, 1.0)
    assert exact == pytest.approx(almost, abs=1e-6)
    assert exact[0] == pytest.approx(rewards.sum() - values[0], abs=1e-9)
