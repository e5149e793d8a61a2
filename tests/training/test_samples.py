"""From groups to samples: aligned fields, masks for what is truncated or forced, verifier failures left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.made import PROBLEM, completion, group, rollout

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.value_advantages import Gae
from strop.base.types import Group, Rollout, Status
from strop.training.samples import make_candidates, make_samples, token_versions

CENTRED = GroupRelative(normalization="none")


def test_fields_stay_aligned() -> None:
    spans = [(7, 0, 1), (8, 1, 4)]
    first = Rollout(PROBLEM, completion(4, versions=spans, injected=[2]), rollout(1).verdict, 1.0)
    sample, other = make_samples(make_candidates([Group(9, PROBLEM, (first, rollout(0)))], {9}, "none"), CENTRED)
    assert sample.token_ids.tolist() == [5, 6, 10, 11, 12, 13]
    assert sample.trained.tolist() == [False, False, True, True, False, True]
    np.testing.assert_allclose(sample.logprobs, [0, 0, -0.1, -0.2, 0, -0.4], rtol=1e-6)
    assert sample.advantages.tolist() == [0, 0, 0.5, 0.5, 0.5, 0.5]
    assert sample.versions.tolist() == [-1, -1, 7, 8, 8, 8]
    assert sample.group == other.group == 9
    assert other.advantages.tolist() == [0, 0, -0.5, -0.5, -0.5]


def test_the_verifiers_failures_leave_loss_and_mean() -> None:
    failed = rollout(0, Status.TIMEOUT)
    samples = make_samples(make_candidates([group(0, rollout(1), rollout(0), failed)], {0}, "none"), CENTRED)
    assert [s.advantages[-1] for s in samples] == [0.5, -0.5]


@pytest.mark.parametrize(
    ("mask", "advantages"),
    [
        ("none", [2 / 3, -1 / 3, -1 / 3]),  # the truncated one is trained on
        ("after", [2 / 3, -1 / 3]),  # it counts in the mean only
        ("before", [1 / 2, -1 / 2]),  # it does not count at all
    ],
)
def test_truncated_completions(mask: str, advantages: list[float]) -> None:
    groups = [group(0, rollout(1), rollout(0), rollout(0, finish="length"))]
    samples = make_samples(make_candidates(groups, {0}, mask), CENTRED)  # type: ignore[arg-type]
    np.testing.assert_allclose([s.advantages[-1] for s in samples], advantages, rtol=1e-6)


def test_dropped_groups_count_in_a_statistic_over_all_generations() -> None:
    groups = [group(0, rollout(1), rollout(0)), group(1, rollout(1), rollout(1))]
    candidates = make_candidates(groups, {0}, "none")
    survivors = make_samples(candidates, GroupRelative(normalization="batch_std", ddof=0, eps=0))
    every = make_samples(candidates, GroupRelative(normalization="batch_std", ddof=0, eps=0, batch="all"))
    assert len(survivors) == len(every) == 2
    assert survivors[0].advantages[-1] == pytest.approx(1.0)
    assert every[0].advantages[-1] == pytest.approx(0.5 / (0.125**0.5))


def test_a_critics_values_belong_to_the_tokens_they_stand_at() -> None:
    first = Rollout(PROBLEM, completion(4, injected=[1]), rollout(1).verdict, 1.0)
    candidates = make_candidates([Group(0, PROBLEM, (first, rollout(0)))], {0}, "none")
    values = np.array([9, 9, 0.1, 9, 0.3, 0.4], dtype=np.float32)  # 9 where nothing is trained
    scored = [replace(candidates[0], sample=replace(candidates[0].sample, values=values)), candidates[1]]
    own = np.array([0, 0, -0.5, 0, -0.25, 0], dtype=np.float32)
    sample, other = make_samples(scored, Gae(lam=0.0, gamma=0.5, normalization="none"), [own, None])
    # γ V' − V + r, the forced token skipped: .15 − .1 − .5, .2 − .3 − .25, 1 − .4
    np.testing.assert_allclose(sample.advantages, [0, 0, -0.45, 0, -0.35, 0.6], rtol=1e-6)
    assert sample.returns is not None and other.returns is not None
    np.testing.assert_allclose(sample.returns, [0, 0, -0.35, 0, -0.05, 1], rtol=1e-6)
    np.testing.assert_allclose(other.advantages, 0)


def test_nothing_usable_gives_no_sample() -> None:
    assert make_samples(make_candidates([group(0, rollout(0, Status.ERROR))], {0}, "none"), CENTRED) == []


def test_versions_of_tokens() -> None:
    assert token_versions(completion(3, versions=[(4, 0, 2), (6, 2, 3)])).tolist() == [4, 4, 6]
