"""Turn-level GRPO by value, and where it is GRPO."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.advantages import GroupRelative, Outcomes, TurnLevel
from strop.algorithms.settings import Selection
from strop.base.types import Completion, Problem, Rollout, Verdict
from strop_verify.verdict import Status


def outcomes(
    rewards: list[float], lengths: list[int], turns: list[tuple[int, ...]], given: list[tuple[float, ...]],
    group: list[int] | None = None,
) -> Outcomes:  # fmt: skip
    count = len(rewards)
    return Outcomes(
        np.array(rewards), np.array(group or [0] * count, np.int32), np.array(lengths, np.int32),
        np.ones(count, np.bool_),
        turns=tuple(turns), turn_rewards=tuple(given),
    )  # fmt: skip


def test_two_turns_by_hand() -> None:
    first, second = TurnLevel(ddof=0, eps=0)(outcomes([1, 0], [5, 4], [(3,), (2,)], [(), ()]))
    np.testing.assert_allclose(first, [1.1547] * 3 + [1.73205] * 2, atol=1e-5)
    np.testing.assert_allclose(second, [-1.1547] * 2 + [-0.57735] * 2, atol=1e-5)
    assert first.dtype == np.float32


def test_what_is_given_for_a_turn_belongs_to_it_and_those_before() -> None:
    # R = {.5, 0, 1, 0, 0, 0, 2}: completion 0 has turns (.5, 0, 1), completion 1 (0, 0), 2 (0, 2): mean .5, std .70711.
    data = outcomes([1, 0, 2], [6, 4, 3], [(2, 5), (2,), (1,)], [(0.5, 0.0), (0.0,), ()])
    found = TurnLevel(ddof=0, eps=0)(data)
    normal = (np.array([0.5, 0, 1, 0, 0, 0, 2]) - 0.5) / np.array([0.5, 0, 1, 0, 0, 0, 2]).std()
    np.testing.assert_allclose(found[0], [normal[:3].sum()] * 2 + [normal[1:3].sum()] * 3 + [normal[2]], rtol=1e-6)
    np.testing.assert_allclose(found[1], [normal[3:5].sum()] * 2 + [normal[4]] * 2, rtol=1e-6)
    np.testing.assert_allclose(found[2], [normal[5:].sum()] + [normal[6]] * 2, rtol=1e-6)


def test_a_score_behind_the_last_turn_is_that_turns() -> None:
    here = TurnLevel()(outcomes([1, 0], [4, 4], [(2,), (2,)], [(0.25, 0.5), ()]))
    there = TurnLevel()(outcomes([1.5, 0], [4, 4], [(2,), (2,)], [(0.25,), ()]))
    assert all(np.array_equal(one, other) for one, other in zip(here, there, strict=True))


@given(
    st.lists(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=5), min_size=1, max_size=4),
    st.sampled_from([0, 1]),
)
def test_of_single_turns_it_is_grpo_bit_for_bit(groups: list[list[float]], ddof: int) -> None:
    rewards = [reward for group in groups for reward in group]
    member = [place for place, group in enumerate(groups) for _ in group]
    data = outcomes(rewards, [3] * len(rewards), [()] * len(rewards), [()] * len(rewards), member)
    mine, grpo = TurnLevel(ddof=ddof)(data), GroupRelative(ddof=ddof)(data)
    assert all(np.array_equal(one, other) for one, other in zip(mine, grpo, strict=True))
    bare = Outcomes(data.rewards, data.group, data.lengths, data.survives)
    assert all(np.array_equal(one, other) for one, other in zip(TurnLevel(ddof=ddof)(bare), grpo, strict=True))


def test_groups_do_not_mix() -> None:
    both = outcomes([1, 0, 5, 3], [4] * 4, [(2,)] * 4, [(1.0,), (), (), (2.0,)], [0, 0, 1, 1])
    alone = outcomes([5, 3], [4] * 2, [(2,)] * 2, [(), (2.0,)])
    together = TurnLevel()(both)[2:]
    assert all(np.array_equal(one, other) for one, other in zip(together, TurnLevel()(alone), strict=True))


def test_groups_that_differ_in_single_turns_are_not_uniform() -> None:
    nothing = np.zeros(0, np.int32)
    empty = Completion("r", 0, nothing, nothing, np.zeros(0, np.float32), (), np.zeros(0, np.bool_), "", "stop")

    def rollout(*scores: float) -> Rollout:
        return Rollout(Problem("p", "", ""), empty, Verdict(0.0, Status.WRONG, turn_scores=scores), 0.0)

    assert Selection().is_uniform([rollout(), rollout()])
    assert not Selection().is_uniform([rollout(0.5, 0.0), rollout()])


@pytest.mark.parametrize("scores", [(0.5,), (0.5, 0.25, 1.0)])
def test_too_few_or_too_many_scores(scores: tuple[float, ...]) -> None:
    data = outcomes([1.0, 0.0], [6, 6], [(2, 4), (2, 4)], [scores, ()])
    assert np.isfinite(np.concatenate(TurnLevel()(data))).all()
