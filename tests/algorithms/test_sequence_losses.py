"""GSPO: the ratio of the whole sequence."""

from __future__ import annotations

import math

import pytest
import torch
from tests.algorithms.cases import tokens_of

from strop.algorithms.losses import Gspo, sequence_ratio
from strop.base.metrics import values

SEQUENCE = [0, 0, 1, 1, 1]
# mean log-ratios of the two sequences: (.2 + .4) / 2 = .3 and (−.6 + 0 + .3) / 3 = −.1
LOGPROB = torch.tensor([0.2, 0.4, -0.6, 0.0, 0.3], dtype=torch.float64) - 2


def data(advantage: list[float]):
    return tokens_of(advantage, [-2.0] * 5, sequence=SEQUENCE, position=[0, 1, 0, 1, 2])


def test_the_ratio_is_the_geometric_mean() -> None:
    found = sequence_ratio(data([1.0] * 5), LOGPROB)
    assert found.tolist() == pytest.approx([math.exp(0.3)] * 2 + [math.exp(-0.1)] * 3)


def test_every_token_has_its_sequences_loss_and_ratio() -> None:
    logprob = LOGPROB.clone().requires_grad_()
    loss, _ = Gspo(clip_low=0.5, clip_high=0.5)(data([2.0, 2.0, -1.0, -1.0, -1.0]), logprob)
    first, second = math.exp(0.3), math.exp(-0.1)
    assert loss.tolist() == pytest.approx([-2 * first] * 2 + [second] * 3)
    loss.sum().backward()
    assert logprob.grad is not None
    assert logprob.grad.tolist() == pytest.approx([-2 * first] * 2 + [second] * 3)


def test_averaged_over_a_sequence_it_is_the_gradient_of_the_sequence_form() -> None:
    logprob = LOGPROB.clone().requires_grad_()
    tokens = data([2.0, 2.0, -1.0, -1.0, -1.0])
    weight = torch.tensor([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3], dtype=torch.float64)
    (weight * Gspo(clip_low=0.5, clip_high=0.5)(tokens, logprob)[0]).sum().backward()
    other = LOGPROB.clone().requires_grad_()
    gaps = other - tokens.anchor_logprob
    (-2.0 * gaps[:2].mean().exp() + 1.0 * gaps[2:].mean().exp()).backward()
    torch.testing.assert_close(logprob.grad, other.grad)


def test_whole_sequences_are_clipped_on_the_side_that_the_advantage_rewards() -> None:
    # s = 1.35 > 1.004 and A > 0; s = .905 < .997 and A < 0
    loss, metrics = Gspo()(data([1.0, 1.0, -1.0, -1.0, -1.0]), LOGPROB)
    assert loss.tolist() == pytest.approx([-1.004] * 2 + [0.997] * 3)
    found = values(metrics)
    assert found["ratio/clipped_high_share"] == pytest.approx(2 / 5)
    assert found["ratio/clipped_low_share"] == pytest.approx(3 / 5)
    assert found["ratio/max"] == pytest.approx(math.exp(0.3))
    loss, metrics = Gspo()(data([-1.0, -1.0, 1.0, 1.0, 1.0]), LOGPROB)
    assert loss.tolist() == pytest.approx([math.exp(0.3)] * 2 + [-math.exp(-0.1)] * 3)
    assert values(metrics)["ratio/clipped_share"] == 0
