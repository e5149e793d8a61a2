"""Group-relative advantages against published and hand-computed numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.advantages import Gdpo, GroupRelative, Outcomes, gae, gae_undiscounted, normalize_tokens
from strop.base.types import InputError


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


def test_parts_of_a_reward_are_normalised_apart() -> None:
    data = outcomes([0, 1], [0, 2], [1, 1, 4], survives=[True, True, False])
    length = np.array([0, 0, 0, 1, -1, 0, 1.0])
    grpo = GroupRelative(eps=0).per_completion(data)[:4]
    np.testing.assert_allclose(grpo, np.sqrt(0.5) * np.array([-1, 1, -1, 1]))  # the terms are in 0, 1 and 0, 2
    found = [float(a[0]) for a in Gdpo(eps=0, shaping_weight=0.5)(replace(data, shaped=(length,)))]
    half = np.sqrt(0.5)
    third = np.array([2, 1, 3.0])  # 1 + 1, 1 + 0, 4 − 1
    normal = np.array([-half, half, -1.5 * half, 1.5 * half, *(third - 2 + 0.5 * length[4:])])
    np.testing.assert_allclose(found, (normal - normal[:4].mean()) / normal[:4].std(ddof=1), rtol=1e-6)
    of_tokens = tuple(np.full(2, r / 2, np.float32) for r in data.rewards)
    np.testing.assert_array_equal(Gdpo()(replace(data, rewards=0 * length, token_rewards=of_tokens)), Gdpo()(data))


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


def test_maxrl_divides_by_the_mean() -> None:
    piece = GroupRelative(normalization="mean", eps=0)
    data = outcomes([1, 0, 0, 0], [1, 1, 1, 0], [0, 0], [1])
    np.testing.assert_allclose(piece.per_completion(data), [3, -1, -1, -1, 1 / 3, 1 / 3, 1 / 3, -1, 0, 0, 0])
    with pytest.raises(InputError, match=r"algorithm\.reward\.wrong=0"):
        piece.per_completion(outcomes([1, -1]))


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
    for normalization in ("prompt_std", "batch_std", "token_std", "mean", "none"):
        piece = GroupRelative(normalization=normalization)
        np.testing.assert_allclose(piece.per_completion(shuffled), piece.per_completion(data)[order], atol=1e-12)


def test_leave_one_out() -> None:
    piece = GroupRelative(baseline="leave_one_out", normalization="none")
    data = outcomes([1, 0, 0, 0], [2, 0])
    np.testing.assert_allclose(piece.per_completion(data), [1, -1 / 3, -1 / 3, -1 / 3, 2, -2])
    assert not piece.per_completion(outcomes([1], [1, 1])).any()


def test_leave_one_out_under_a_standard_deviation_keeps_its_signal() -> None:
    found = GroupRelative(baseline="leave_one_out").per_completion(outcomes([1, 0, 0, 0]))
    np.testing.assert_allclose(found, np.array([1.499997, -0.499999, -0.499999, -0.499999]) * 4 / 3, atol=7e-7)


def test_normalised_over_tokens() -> None:
    data = outcomes([1, 0], [1, 1, 0, 0])
    lengths = np.array([1, 3, 2, 2, 1, 3], dtype=np.int32)
    data = Outcomes(data.rewards, data.group, lengths, data.survives)
    centred = np.array([0.5, -0.5, 0.5, 0.5, -0.5, -0.5])
    per_token = np.repeat(centred, lengths)
    expected = (centred - per_token.mean()) / np.sqrt(per_token.var() + 1e-8)
    piece = GroupRelative(normalization="token_std", eps=1e-8)
    np.testing.assert_allclose(piece.per_completion(data), expected)
    tokens = np.concatenate(piece(data))
    assert tokens.mean() == pytest.approx(0, abs=1e-6) and tokens.std() == pytest.approx(1, abs=1e-6)


def test_normalised_over_the_tokens_of_survivors() -> None:
    data = outcomes([1, 0], [1, 1, 1, 0], survives=[True, False])
    found = GroupRelative(normalization="token_std", eps=0).per_completion(data)
    np.testing.assert_allclose(found[:2], [1, -1])
    every = GroupRelative(normalization="token_std", eps=0, batch="all").per_completion(data)
    assert abs(every[0]) > 1


def test_normalize_tokens_with_a_mask() -> None:
    values = np.array([1.0, 2.0, 100.0, 3.0])
    found = normalize_tokens(values, np.array([1, 1, 0, 1]), eps=0)
    np.testing.assert_allclose(found, (values - 2) / np.sqrt(2 / 3))
    np.testing.assert_allclose(normalize_tokens(values, np.zeros(4, dtype=np.int64)), values)
    np.testing.assert_allclose(normalize_tokens(np.ones(3), np.ones(3, dtype=np.int64), eps=0), 0)


def test_gae_by_hand() -> None:
    # δ = (.5·.4 − .5, .5·.2 − .4, 1 − .2) = (−.3, −.3, .8); γλ = .25
    advantages, targets = gae(np.array([0.0, 0.0, 1.0]), np.array([0.5, 0.4, 0.2]), 0.5, 0.5)
    np.testing.assert_allclose(advantages, [-0.3 + 0.25 * (-0.1), -0.3 + 0.25 * 0.8, 0.8])
    np.testing.assert_allclose(targets, advantages + [0.5, 0.4, 0.2])


def test_gae_at_one_and_one_is_the_reward_less_the_value() -> None:
    values = np.array([0.5, 0.4, 0.2], dtype=np.float32)
    rewards = np.array([0, 0, 1.0])
    for advantages, targets in (gae(rewards, values, 1, 1), gae_undiscounted(rewards, values)):
        np.testing.assert_allclose(advantages, 1 - values, rtol=1e-6)
        np.testing.assert_allclose(targets, [1, 1, 1])


NUMBERS = st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), max_size=12)


@given(NUMBERS, st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_sum_of_its_errors(pairs: list[tuple[float, float]], gamma: float, lam: float) -> None:
    rewards, values = np.array([r for r, _ in pairs]), np.array([v for _, v in pairs])
    following = np.append(values, 0.0)[1:]
    errors = rewards + gamma * following - values
    expected = [sum((gamma * lam) ** (k - t) * errors[k] for k in range(t, len(pairs))) for t in range(len(pairs))]
    advantages, targets = gae(rewards, values, gamma, lam)
    np.testing.assert_allclose(advantages, expected, atol=1e-9)
    np.testing.assert_allclose(targets, advantages + values, atol=1e-9)


@given(NUMBERS)
def test_the_closed_form_is_the_limit(pairs: list[tuple[float, float]]) -> None:
    rewards, values = np.array([r for r, _ in pairs]), np.array([v for _, v in pairs])
    np.testing.assert_allclose(gae(rewards, values, 1, 1)[0], gae(rewards, values, 1, 1 - 1e-12)[0], atol=1e-7)


def test_gae_of_a_long_response_is_its_recursion() -> None:
    random = np.random.default_rng(0)
    rewards, values = random.normal(size=1000), random.normal(size=1000)
    for decay in (0.0, 0.5, 0.95):
        expected, running = np.zeros(1000), 0.0
        for place in reversed(range(1000)):
            following = values[place + 1] if place < 999 else 0.0
            running = rewards[place] + 0.9 * following - values[place] + 0.9 * decay * running
            expected[place] = running
        np.testing.assert_allclose(gae(rewards, values, 0.9, decay)[0], expected, atol=1e-12)
    for length in (0, 1, 127, 128, 129):
        assert gae(rewards[:length], values[:length], 0.9, 0.9)[0].shape == (length,)


def test_token_normalisation_counts_sampled_tokens_alone() -> None:
    masks = (np.array([True, False, False]), np.array([True]))
    outcomes = Outcomes(
        rewards=np.array([1.0, 0.0]), group=np.array([0, 0], dtype=np.int32), lengths=np.array([3, 1], dtype=np.int32),
        survives=np.ones(2, dtype=np.bool_), trained=masks,
    )  # fmt: skip
    found = GroupRelative(normalization="token_std", eps=0.0).per_completion(outcomes)
    np.testing.assert_allclose(found, [1, -1])  # a sampled token each, whatever was injected


@pytest.mark.parametrize("normalization", ["prompt_std", "batch_std", "token_std", "none"])
def test_equal_rewards_teach_nothing_even_without_eps(normalization: str) -> None:
    outcomes = Outcomes(
        rewards=np.ones(4), group=np.array([0, 0, 1, 1], dtype=np.int32), lengths=np.full(4, 2, dtype=np.int32),
        survives=np.ones(4, dtype=np.bool_),
    )  # fmt: skip
    advantage = GroupRelative.model_validate({"normalization": normalization, "eps": 0.0})
    np.testing.assert_array_equal(advantage.per_completion(outcomes), np.zeros(4))


def test_rewards_of_tokens_count_in_the_completions_reward() -> None:
    data = outcomes([1.0, 0.0])
    taken = (np.array([-0.25, -0.25], dtype=np.float32), np.array([0.5, 0.0], dtype=np.float32))
    found = GroupRelative(normalization="none").per_completion(replace(data, token_rewards=taken))
    assert found.tolist() == [0.0, 0.0]  # 1 − .5 and 0 + .5
    found = GroupRelative(normalization="none").per_completion(replace(data, token_rewards=taken[::-1]))
    assert found.tolist() == [1.0, -1.0]  # 1 + .5 and 0 − .5


def test_gae_with_one_of_its_rates_below_one() -> None:
    rewards, values = np.array([0.0, 1.0]), np.array([0.0, 0.5])
    assert gae(rewards, values, 0.5, 1.0)[0].tolist() == [0.5, 0.5]  # δ = [.25, .5], decay .5
    assert gae(rewards, values, 1.0, 0.5)[0].tolist() == [0.75, 0.5]  # δ = [.5, .5], decay .5
