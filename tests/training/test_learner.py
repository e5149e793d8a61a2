"""What the learner finds out about a batch before its first update, by value, on a real small policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.made import PROBLEM, completion, group, rollout
from tests.runs import small_config

from strop.algorithms.advantages import normalize_tokens
from strop.base.sample import Sample
from strop.base.types import FloatArray, Group, Rollout
from strop.base.view import SilentView
from strop.run.assembly import assemble
from strop.training.learner import Learner
from strop.training.samples import as_samples
from strop.training.step import score_samples

STILL = ("optim.lr=1e-12", "evaluation.every=none", "algorithm.advantage.normalization=none", "steps=1",
         "optim.offload=false")  # fmt: skip


def learner(*sets: str) -> Learner:
    found = assemble(small_config(*STILL, *sets), SilentView()).learner
    assert isinstance(found, Learner)
    return found


def scored(module: Learner, samples: list[Sample]) -> list[FloatArray]:
    return score_samples(module.trainer.policy, samples, 1.0, 256)[0]


def test_samples_keep_what_the_policy_gave_when_it_learned_from_them() -> None:
    made = learner("batch.passes_per_batch=2")
    result = made.learn([forced()], {3}, 0, {})
    assert result is not None
    columns = zip(*score_samples(made.trainer.policy, result.samples, 1.0, 256), strict=True)
    for sample, (logprob, entropy) in zip(result.samples, columns, strict=True):
        assert sample.trainer_logprobs is not None and sample.trainer_entropies is not None
        np.testing.assert_allclose(sample.trainer_logprobs, logprob, atol=1e-5)
        np.testing.assert_allclose(sample.trainer_entropies, entropy, atol=1e-5)
        assert (sample.trainer_entropies > 0).tolist() == sample.trained.tolist()


def forced() -> Group:
    """A right completion with a forced token, and a wrong one."""
    first = Rollout(PROBLEM, completion(4, injected=[1]), rollout(1).verdict, 1.0)
    second = Rollout(PROBLEM, completion(3, index=1), rollout(0).verdict, 0.0)
    return Group(3, PROBLEM, (first, second))


def test_a_correction_is_the_trainers_probability_over_the_generators() -> None:
    made = learner("algorithm.anchor=recomputed", 'algorithm.correction={piece="TokenTis", cap=1e9}')
    result = made.learn([forced()], {3}, 0, {})
    assert result is not None
    samples = list(result.samples)
    for sample, logprob in zip(samples, scored(made, samples), strict=True):
        assert sample.anchors is not None and sample.corrections is not None
        np.testing.assert_allclose(sample.anchors, logprob, atol=1e-4)
        ratio = np.where(sample.trained, np.exp(logprob.astype(np.float64) - sample.logprobs), 0.0)
        np.testing.assert_allclose(sample.corrections, ratio, rtol=1e-3)


@pytest.mark.parametrize("anchor", ["generator", "recomputed"])
def test_kl_in_the_reward_is_of_the_policy_that_is_held(anchor: str) -> None:
    made = learner("algorithm.kl_in_reward={beta=0.5}", f"algorithm.anchor={anchor}")
    result = made.learn([forced()], {3}, 0, {})
    assert result is not None
    samples = list(result.samples)
    # The reference is the policy itself: by its own log-probs nothing is taken off, by the generator's −β Σ gap.
    taken = [
        0.0 if anchor == "recomputed" else -0.5 * float((s.logprobs - reference)[s.trained].sum())
        for s, reference in zip(samples, scored(made, samples), strict=True)
    ]
    total = np.array([1.0, 0.0]) + taken
    found = [float(sample.advantages[-1]) for sample in samples]
    np.testing.assert_allclose(found, total - total.mean(), rtol=1e-3, atol=1e-4)


def test_a_truncated_completion_out_of_the_loss_still_has_values() -> None:
    sets = ("algorithm.advantage=Gae", "critic.optim.lr=1e-12", "algorithm.truncation_mask=drop")
    config = small_config(*STILL[:2], *sets, "steps=1")
    made = assemble(config, SilentView()).learner
    assert isinstance(made, Learner)
    groups = [group(0, rollout(1), rollout(0), rollout(0, finish="length", length=6))]
    result = made.learn(groups, {0}, 0, {})
    assert result is not None and len(result.samples) == 2 and made.critic is not None
    every = [as_samples(r.completion, 0)[0] for r in groups[0].rollouts]
    values, _ = score_samples(made.critic.policy, every, 1.0, 256)
    raw = [reward - v[2:] for reward, v in zip((1.0, 0.0, 0.0), values, strict=True)]
    normal = normalize_tokens(np.concatenate(raw), np.ones(12, dtype=np.int64))
    np.testing.assert_allclose(result.samples[0].advantages[2:], normal[:3], atol=1e-3)
    np.testing.assert_allclose(result.samples[1].advantages[2:], normal[3:6], atol=1e-3)


def test_a_parameter_that_is_not_finite_is_named() -> None:
    made = learner()
    assert made.broken() is None
    name = list(made.weights())[1]
    with torch.no_grad():
        made.weights()[name].view(-1)[3] = float("nan")
    assert made.broken() == name


def test_a_reference_that_has_moved_is_saved_after_every_resume() -> None:
    sets = ('algorithm.regularizers=[{piece="KlPenalty", beta=0.1}]', "algorithm.reference.reset_every=1")
    made = learner(*sets)
    assert "reference" not in made.state_dict()[0]  # it is the model that the run began with
    assert made.learn([forced()], {3}, 0, {}) is not None
    tensors, state = made.state_dict()
    tensors = {part: {name: value.clone() for name, value in group.items()} for part, group in tensors.items()}
    assert tensors["reference"].keys() == tensors["policy"].keys()
    again = learner(*sets)
    again.load_state_dict(tensors, state)  # and is resumed twice, with no reset between
    kept, _ = again.state_dict()
    assert all(torch.equal(kept["reference"][name], value) for name, value in tensors["reference"].items())


def test_a_stage_with_the_same_optimizer_goes_on_with_its_schedule() -> None:
    made = learner()
    trainer = made.trainer
    made.enter(made.settings, 10)  # before the first update it is planned anew
    assert (trainer.total_updates, trainer.schedule_start) == (10, 0)
    assert made.learn([forced()], {3}, 0, {}) is not None
    hotter = small_config(*STILL, "sampling.temperature=0.5")
    made.enter(hotter.learner, 20)
    assert (trainer.total_updates, trainer.schedule_start, trainer.temperature) == (10, 0, 0.5)
    made.enter(small_config(*STILL, "optim.lr=1e-11").learner, 30)
    assert (trainer.total_updates, trainer.schedule_start, trainer.settings.lr) == (30, 1, 1e-11)
