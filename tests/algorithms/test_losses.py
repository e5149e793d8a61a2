"""Losses and their gradients by hand: over a tiny vocabulary d log π / d logits = onehot − softmax."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strop.algorithms.entropy_losses import ArcherClip, KlCov
from strop.algorithms.losses import Cispo, Gspo, PolicyLoss, PpoClip, Reinforce, surrogate_clips
from strop.algorithms.objective import Objective, UpdateContext
from strop.algorithms.regularizers import AdaptiveEntropy, EntropyBonus, Regularizer
from strop.algorithms.token_types import EntropyQuantile
from strop.algorithms.tokens import Tokens
from strop.base.metrics import values

LOGITS = torch.tensor([[1.0, 0.0, -1.0], [0.5, 0.5, 2.0], [0.0, 3.0, 0.0], [-1.0, 0.2, 0.1]], dtype=torch.float64)
CHOSEN = torch.tensor([0, 2, 1, 0])
ADVANTAGE = torch.tensor([1.5, -0.5, -2.0, 0.7], dtype=torch.float64)
WEIGHT = torch.tensor([0.25, 0.25, 0.3, 0.2], dtype=torch.float64)
RATIO = torch.tensor([1.5, 0.6, 4.0, 0.9], dtype=torch.float64)


def tokens(ratio: Tensor = RATIO) -> Tokens:
    """Four tokens whose importance ratio is `ratio` at LOGITS."""
    logprob = torch.log_softmax(LOGITS, -1).gather(-1, CHOSEN[:, None])[:, 0]
    index = torch.arange(len(ratio))
    generator = logprob - ratio.log()
    return Tokens(index, index, index, index, generator, generator, ADVANTAGE, WEIGHT)


def gradient(loss: PolicyLoss, data: Tokens) -> tuple[Tensor, Tensor]:
    """The weighted loss and its gradient with respect to the logits."""
    logits = LOGITS.clone().requires_grad_()
    log_softmax = torch.log_softmax(logits, -1)
    logprob = log_softmax.gather(-1, CHOSEN[:, None])[:, 0]
    total, _ = Objective(loss=loss)(data, logprob, torch.zeros_like(logprob), UpdateContext())
    total.backward()
    assert logits.grad is not None
    return total.detach(), logits.grad


def score_gradient(coefficient: Tensor) -> Tensor:
    """d/d logits of Σ −coefficient · log π: −coefficient · (onehot − softmax)."""
    onehot = torch.nn.functional.one_hot(CHOSEN, 3).double()
    return -coefficient[:, None] * (onehot - torch.softmax(LOGITS, -1))


def test_reinforce() -> None:
    total, grad = gradient(Reinforce(), tokens())
    logprob = torch.log_softmax(LOGITS, -1).gather(-1, CHOSEN[:, None])[:, 0]
    assert total == pytest.approx(float(-(WEIGHT * ADVANTAGE * logprob).sum()))
    torch.testing.assert_close(grad, score_gradient(WEIGHT * ADVANTAGE))


def test_cispo_caps_the_weight_and_keeps_every_gradient() -> None:
    total, grad = gradient(Cispo(max_ratio=2.0), tokens())
    capped = torch.tensor([1.5, 0.6, 2.0, 0.9], dtype=torch.float64)
    logprob = torch.log_softmax(LOGITS, -1).gather(-1, CHOSEN[:, None])[:, 0]
    assert total == pytest.approx(float(-(WEIGHT * capped * ADVANTAGE * logprob).sum()))
    torch.testing.assert_close(grad, score_gradient(WEIGHT * capped * ADVANTAGE))


def test_ppo_clip_cuts_the_gradient_where_the_policy_went_far_enough() -> None:
    # token 0: A > 0, ratio 1.5 > 1.2 → cut; token 1: A < 0, ratio .6 < .8 → cut; token 2: A < 0, ratio 4 → kept;
    # token 3: A > 0, ratio .9 → kept.
    total, grad = gradient(PpoClip(), tokens())
    expected = -(1.2 * 1.5 * 0.25) + (0.8 * 0.5 * 0.25) + (4.0 * 2.0 * 0.3) - (0.9 * 0.7 * 0.2)
    assert total == pytest.approx(expected)
    live = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(grad, score_gradient(WEIGHT * ADVANTAGE * RATIO * live))


def test_clip_higher_lets_more_through() -> None:
    _, grad = gradient(PpoClip(clip_low=0.5, clip_high=0.6), tokens())
    torch.testing.assert_close(grad, score_gradient(WEIGHT * ADVANTAGE * RATIO))


def test_dual_clip_bounds_the_loss_of_negative_advantages() -> None:
    total, grad = gradient(PpoClip(dual_clip=3.0), tokens())
    expected = -(1.2 * 1.5 * 0.25) + (0.8 * 0.5 * 0.25) + (3.0 * 2.0 * 0.3) - (0.9 * 0.7 * 0.2)
    assert total == pytest.approx(expected)
    live = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(grad, score_gradient(WEIGHT * ADVANTAGE * RATIO * live))


@pytest.mark.parametrize("loss", [Reinforce(), PpoClip(), PpoClip(dual_clip=10.0), Cispo()])
def test_on_policy_every_loss_is_the_policy_gradient(loss: PolicyLoss) -> None:
    _, grad = gradient(loss, tokens(torch.ones(4, dtype=torch.float64)))
    torch.testing.assert_close(grad, score_gradient(WEIGHT * ADVANTAGE))


def test_metrics_are_of_the_raw_ratio() -> None:
    logprob = torch.log_softmax(LOGITS, -1).gather(-1, CHOSEN[:, None])[:, 0]
    _, metrics = Objective(loss=Cispo(max_ratio=2.0))(tokens(), logprob, torch.zeros(4), UpdateContext())
    found = values(metrics)
    assert found["ratio/mean"] == pytest.approx(float(RATIO.mean()))
    assert found["ratio/min"] == pytest.approx(0.6)
    assert found["ratio/max"] == pytest.approx(4.0)
    assert found["ratio/clipped_share"] == pytest.approx(0.25)
    assert found["mismatch/mean"] == pytest.approx(float(RATIO.log().abs().mean()))
    assert found["mismatch/k3"] == pytest.approx(float((RATIO - 1 - RATIO.log()).mean()))


def test_a_dual_clip_inside_the_clip_range_is_refused() -> None:
    with pytest.raises(ValueError, match="dual_clip"):
        PpoClip(clip_high=0.5, dual_clip=1.2)
    with pytest.raises(ValueError, match="dual_clip"):
        PpoClip(clip_high=0.5, dual_clip=1.5)


def test_where_and_why_a_gradient_is_cut() -> None:
    advantage = torch.tensor([-1.0, 0.5, -2.0, 0.0, 0.5, -0.5])
    ratio = torch.tensor([0.5, 11.0, 12.0, 12.0, 0.5, 1.1])
    cut = surrogate_clips(ratio, advantage, 0.2, 0.3, 10.0)
    assert cut.low.tolist() == [True, False, False, False, False, False]
    assert cut.high.tolist() == [False, True, False, False, False, False]
    assert cut.other.tolist() == [False, False, True, False, False, False]
    assert not surrogate_clips(ratio, advantage, 0.2, 0.3, None).other.any()
    # At the bounds themselves nothing is cut.
    edge = surrogate_clips(torch.tensor([0.5, 1.5, 4.0]), torch.tensor([-1.0, 1.0, -1.0]), 0.5, 0.5, 4.0)
    assert not edge.any.any()


@pytest.mark.parametrize("loss", [Reinforce(), PpoClip(), Cispo(), Gspo()])
def test_a_plain_loss_asks_for_nothing(loss: PolicyLoss) -> None:
    assert not (loss.needs_scores or loss.needs_collision or loss.needs_token_types or loss.strictly_on_policy)


@pytest.mark.parametrize("piece", [EntropyBonus(), AdaptiveEntropy()])
def test_an_entropy_bonus_needs_neither_reference_nor_token_types(piece: Regularizer) -> None:
    assert not (piece.needs_reference or piece.needs_token_types)


def test_when_an_objective_wants_the_update_scored_first() -> None:
    assert not Objective(loss=Reinforce()).needs_scores
    assert Objective(loss=KlCov()).needs_scores
    assert not Objective(loss=ArcherClip(), token_types=EntropyQuantile()).needs_scores
    assert Objective(loss=ArcherClip(), token_types=EntropyQuantile(when="update")).needs_scores
