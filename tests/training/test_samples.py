"""From groups to samples: aligned fields, masks for what is truncated or forced, verifier failures left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.made import PROBLEM, completion, group, rollout

from strop.algorithms.advantages import Gdpo, GroupRelative
from strop.algorithms.rewards import LengthPenalty
from strop.algorithms.settings import TruncationMask
from strop.algorithms.value import Gae
from strop.base.sample import Sample
from strop.base.types import Completion, Group, Restart, Rollout
from strop.recipes.resolve import resolve
from strop.training.samples import is_trained_on, make_candidates, make_samples, outcomes, token_versions
from strop_verify.verdict import Status

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


def test_what_shaping_added_is_known_to_the_advantage() -> None:
    shaping = LengthPenalty(max_tokens=4, cache_tokens=2)
    rollouts = [Rollout(PROBLEM, completion(n), rollout(1).verdict, 1.0 + term) for n, term in ((2, 0.0), (3, -0.5))]
    candidates = make_candidates([Group(9, PROBLEM, tuple(rollouts))], {9}, "none")
    assert outcomes(candidates, shaping=[shaping]).shaped[0].tolist() == [0.0, -0.5]
    found = make_samples(candidates, Gdpo(eps=0), shaping=[shaping])
    np.testing.assert_allclose([s.advantages[-1] for s in found], [np.sqrt(0.5), -np.sqrt(0.5)], rtol=1e-6)


def test_the_verifiers_failures_leave_loss_and_mean() -> None:
    failed = rollout(0, Status.TIMEOUT)
    samples = make_samples(make_candidates([group(0, rollout(1), rollout(0), failed)], {0}, "none"), CENTRED)
    assert [s.advantages[-1] for s in samples] == [0.5, -0.5]


@pytest.mark.parametrize(
    ("mask", "advantages"),
    [
        ("none", [2 / 3, -1 / 3, -1 / 3]),  # the truncated one is trained on
        ("zero", [2 / 3, -1 / 3, 0]),  # it counts in the mean, its tokens stay
        ("zero_before", [1 / 2, -1 / 2, 0]),  # its tokens stay
        ("drop", [2 / 3, -1 / 3]),  # it counts in the mean only
        ("drop_before", [1 / 2, -1 / 2]),  # it does not count at all
    ],
)
def test_truncated_completions(mask: TruncationMask, advantages: list[float]) -> None:
    groups = [group(0, rollout(1), rollout(0), rollout(0, finish="length"))]
    samples = make_samples(make_candidates(groups, {0}, mask), CENTRED)
    np.testing.assert_allclose([s.advantages[-1] for s in samples], advantages, rtol=1e-6)
    assert all(s.trained_tokens == 3 for s in samples)


def test_a_critic_learns_the_returns_of_what_is_silenced() -> None:
    values = np.array([0, 0, 0.5, 0.25, 0.5], dtype=np.float32)
    candidates = make_candidates([group(0, rollout(1), rollout(1, finish="length"))], {0}, "zero_before")
    scored = [replace(c, samples=(replace(c.samples[0], values=values),)) for c in candidates]
    kept, silenced = make_samples(scored, Gae(normalization="none"))
    np.testing.assert_allclose(kept.advantages, [0, 0, 0.5, 0.75, 0.5])
    np.testing.assert_allclose(silenced.advantages, 0)
    assert silenced.returns is not None
    np.testing.assert_allclose(silenced.returns, [0, 0, 1, 1, 1])


@pytest.mark.parametrize(
    ("name", "mask", "trained"),
    [
        ("opefo.grpo", "none", False),  # every group is trained on, but one completion has no baseline
        ("open_reasoner_zero.7b", "none", True),  # the critic's value is the baseline
        ("archer.math", "none", False),
    ],
)
def test_one_usable_completion_of_several_has_no_baseline(name: str, mask: TruncationMask, trained: bool) -> None:
    algorithm = resolve(name).algorithm.model_copy(update={"truncation_mask": mask})
    failed = rollout(0, Status.ERROR)
    assert is_trained_on(group(0, rollout(1), failed, failed), algorithm) is trained
    assert not is_trained_on(group(0, failed, failed, failed), algorithm)
    assert is_trained_on(group(0, rollout(1), rollout(0), failed), algorithm)


def test_one_completion_that_is_not_truncated_has_no_baseline_under_a_mask() -> None:
    algorithm = resolve("opefo.grpo").algorithm
    groups = group(0, rollout(1), rollout(0, finish="length"))
    for mask, trained in (("none", True), ("drop", True), ("drop_before", False), ("zero_before", False)):
        assert is_trained_on(groups, algorithm.model_copy(update={"truncation_mask": mask})) is trained


def test_groups_of_one_by_design_are_trained_on() -> None:
    assert is_trained_on(group(0, rollout(1)), resolve("opefo.grpo").algorithm)


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
    scored = [replace(candidates[0], samples=(replace(candidates[0].samples[0], values=values),)), candidates[1]]
    own = np.array([0, 0, -0.5, 0, -0.25, 0], dtype=np.float32)
    sample, other = make_samples(scored, Gae(lam=0.0, gamma=0.5, normalization="none"), [[own], [None]])
    # γ V' − V + r, the forced token skipped: .15 − .1 − .5, .2 − .3 − .25, 1 − .4
    np.testing.assert_allclose(sample.advantages, [0, 0, -0.45, 0, -0.35, 0.6], rtol=1e-6)
    assert sample.returns is not None and other.returns is not None
    np.testing.assert_allclose(sample.returns, [0, 0, -0.35, 0, -0.05, 1], rtol=1e-6)
    np.testing.assert_allclose(other.advantages, 0)


def test_a_critic_sees_sequences_of_one_completion_as_one_response() -> None:
    whole = completion(4, injected=[2])  # of two turns, with a forced token between
    divided = replace(whole, turns=(3,), restarts=(Restart(3, np.array([7], np.int32)),))
    values = np.array([0.1, 0.2, 0, 0.4], dtype=np.float32)
    gae = Gae(lam=0.5, gamma=0.5, normalization="none")

    def trained(of: Completion, columns: list[list[float]]) -> list[Sample]:
        alone = Group(0, PROBLEM, (Rollout(PROBLEM, of, rollout(1).verdict, 1.0),))
        [candidate] = make_candidates([alone], {0}, "none")
        scored = [replace(s, values=np.array(c, np.float32)) for s, c in zip(candidate.samples, columns, strict=True)]
        return make_samples([replace(candidate, samples=tuple(scored))], gae)

    [one] = trained(whole, [[0, 0, *values]])
    first, second = trained(divided, [[0, 0, *values[:2]], [0, values[3]]])
    assert one.returns is not None and first.returns is not None and second.returns is not None
    for name in ("advantages", "returns"):
        expected = vars(one)[name]
        np.testing.assert_array_equal(vars(first)[name], expected[:4])
        np.testing.assert_array_equal(vars(second)[name], [0, expected[5]])
    assert first.completion == second.completion == one.id and first.id != second.id


def test_nothing_usable_gives_no_sample() -> None:
    assert make_samples(make_candidates([group(0, rollout(0, Status.ERROR))], {0}, "none"), CENTRED) == []


def test_versions_of_tokens() -> None:
    assert token_versions(completion(3, versions=[(4, 0, 2), (6, 2, 3)])).tolist() == [4, 4, 6]
