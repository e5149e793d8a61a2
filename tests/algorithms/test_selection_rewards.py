"""Which groups are worth training on, and what a verdict is worth."""

from __future__ import annotations

import pytest
from tests.made import PROBLEM, completion, group, rollout

from strop.algorithms.rewards import BinaryReward
from strop.algorithms.settings import Selection
from strop.base.types import Rollout, Verdict
from strop_verify.verdict import Status


def test_uniform_groups_are_dropped_or_kept() -> None:
    mixed, solved = group(0, rollout(1), rollout(0)), group(1, rollout(1), rollout(1))
    assert Selection(zero_variance="drop").keeps(mixed.usable)
    assert not Selection(zero_variance="drop").keeps(solved.usable)
    assert Selection(zero_variance="keep").keeps(solved.usable)


def test_the_verifiers_failures_do_not_make_a_group_mixed() -> None:
    assert not Selection().keeps(group(0, rollout(1), rollout(0, Status.TIMEOUT)).usable)
    assert not Selection(zero_variance="keep").keeps(group(0, rollout(0, Status.ERROR)).usable)


def test_variance_of_score_or_of_reward() -> None:
    shaped = [Rollout(PROBLEM, completion(), Verdict(1.0, Status.CORRECT), reward) for reward in (1.0, 0.5)]
    assert not Selection(of="score").keeps(shaped)
    assert Selection(of="reward").keeps(shaped)


@pytest.mark.parametrize(("score", "reward"), [(1.0, 1.0), (0.0, -1.0), (0.5, 0.0)])
def test_binary_reward(score: float, reward: float) -> None:
    verdict = Verdict(score, Status.CORRECT if score == 1 else Status.WRONG)
    assert BinaryReward(correct=1.0, wrong=-1.0)(completion(), verdict) == reward


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="refill"):
        Selection(zero_variance="keep", refill=True)
    with pytest.raises(ValueError, match="correct"):
        BinaryReward(correct=0.0, wrong=0.0)
