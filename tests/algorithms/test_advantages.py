"""Group-relative advantages against published and hand-computed numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms import GroupRelative, Outcomes


def outcomes(*groups: Sequence[float], survives: list[bool] | None = None) -> Outcomes:
    rewards = [r for group in groups for r in group]
    member = [i for i, group in enumerate(groups) for _ in group]
    alive = survives or [True] * len(groups)
    return Outcomes(
        np.array(rewards, dtype=np.float64),
        np.array(member, dtype=np.int32),
        np.full(len(rewards), 2, dtype=np.int32),
        np.array([alive[g] for g in member], dtype=np.bool_),
    )


def test_grpo_of_one_right_in_four() -> None:
    found = GroupRelative().per_completion(outcomes([1, 0, 0, 0]))
    np.testing.assert_allclose(found, [1.499997, -0.499999, -0.499999, -0.499999], atol=5e-7)


def test_grpo_of_four_right_in_sixteen() -> None:
    found = GroupRelative().per_completion(outcomes([1] * 4 + [0] * 12))
    np.testing.assert_allclose(found[[0, 15]], [1.677047, -0.559016], atol=5e-7)


def test_a_group_of_one_keeps_its_reward() -> None:
    np.testing.assert_allclose(GroupRelative().per_completion(outcomes([1.0])), [1 / (1 + 1e-6)])


@pytest.mark.parametrize("normalization", ["batch_std", "none"])
def test_a_group_of_one_has_nothing_to_compare_with(normalization: Any) -> None:
    found = GroupRelative(normalization=normalization).per_completion(outcomes([1.0], [1.0, 0.0]))
    assert found[0] == 0 and found[1] > 0


def test_a_uniform_group_has_no_advantage() -> None:
    assert not GroupRelative().per_completion(outcomes([1, 1, 1, 1])).any()


def test_dr_grpo_only_centres() -> None:
    found = GroupRelative(normalization="none").per_completion(outcomes([1, 0], [1, 1, 1, 0]))
    np.testing.assert_allclose(found, [0.5, -0.5, 0.25, 0.25, 0.25, -0.75])


def test_batch_std_is_of_the_centred_rewards_of_surviving_prompts() -> None:
    piece = GroupRelative(normalization="batch_std", ddof=0, eps=0)
    data = outcomes([1, -1], [1, 1], [1, 1, 1, -1], survives=[True, False, True])
    centred = np.array([1, -1, 0, 0, 0.5, 0.5, 0.5, -1.5])
    survivors = centred[[0, 1, 4, 5, 6, 7]]
    # mean 0, squares 1 + 1 + 3·0.25 + 2.25 = 5 over six completions
    assert survivors.std() == pytest.approx((5 / 6) ** 0.5)
    np.testing.assert_allclose(piece.per_completion(data), centred / (5 / 6) ** 0.5)
    every = GroupRelative(normalization="batch_std", ddof=0, eps=0, batch="all")
    np.testing.assert_allclose(every.per_completion(data), centred / (5 / 8) ** 0.5)


def test_every_token_of_a_completion_has_its_advantage() -> None:
    tokens = GroupRelative(normalization="none")(outcomes([1, 0]))
    assert [t.tolist() for t in tokens] == [[0.5, 0.5], [-0.5, -0.5]]
    assert tokens[0].dtype == np.float32


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=6), min_size=1, max_size=5), st.randoms())
def test_order_of_completions_does_not_matter(groups: list[list[float]], random: object) -> None:
    data = outcomes(*groups)
    order = np.random.default_rng(len(groups)).permutation(len(data.rewards))
    shuffled = Outcomes(data.rewards[order], data.group[order], data.lengths[order], data.survives[order])
    for normalization in ("prompt_std", "batch_std", "none"):
        piece = GroupRelative(normalization=normalization)
        np.testing.assert_allclose(piece.per_completion(shuffled), piece.per_completion(data)[order], atol=1e-12)
