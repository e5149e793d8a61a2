"""Archer's dual-token clip and the masking it argues against, by value."""

from __future__ import annotations

import math

import pytest
import torch
from tests.algorithms.cases import tokens_of
from torch import Tensor

from strop.algorithms.entropy_losses import ArcherClip, LowEntropyMask
from strop.algorithms.losses import PolicyLoss, PpoClip, Reinforce
from strop.algorithms.tokens import Tokens
from strop.base.metrics import values

TYPES = torch.tensor([False, True, False, True, True, True])
RATIO = [1.3, 1.3, 0.7, 0.7, 1.6, 0.4]
ADVANTAGE = [1.0, 1.0, -1.0, -1.0, 1.0, -2.0]


def data(ratio: list[float] = RATIO, advantage: list[float] = ADVANTAGE, types: Tensor = TYPES) -> Tokens:
    return tokens_of(advantage, [-math.log(r) for r in ratio], reasoning=types)


def loss_and_gradient(loss: PolicyLoss, tokens: Tokens) -> tuple[list[float], list[float]]:
    logprob = torch.zeros(len(tokens), dtype=torch.float64, requires_grad=True)
    found, _ = loss(tokens, logprob)
    found.sum().backward()
    assert logprob.grad is not None
    return found.tolist(), logprob.grad.tolist()


def test_the_range_is_wider_on_reasoning_tokens() -> None:
    found, gradient = loss_and_gradient(ArcherClip(), data())
    # knowledge .2: 1.3 and .7 are cut; reasoning .5: 1.3 and .7 are not, 1.6 and .4 are
    assert found == pytest.approx([-1.2, -1.3, 0.8, 0.7, -1.5, 1.0])
    assert gradient == pytest.approx([0.0, -1.3, 0.0, 0.7, 0.0, 0.0])


def test_with_equal_ranges_it_is_ppo() -> None:
    archer = ArcherClip(clip_knowledge=0.2, clip_reasoning=0.2, dual_clip=None)
    assert loss_and_gradient(archer, data()) == loss_and_gradient(PpoClip(), data())


def test_dual_clip_and_limit_of_the_log_ratio() -> None:
    tokens = data([12.0, 9.0, math.exp(25), math.exp(-25)], [-1.0, -1.0, -1.0, 1.0], TYPES[:4])
    found, gradient = loss_and_gradient(ArcherClip(), tokens)
    assert found == pytest.approx([10.0, 9.0, 10.0, -math.exp(-20)])
    assert gradient == pytest.approx([0.0, 9.0, 0.0, 0.0])
    found, gradient = loss_and_gradient(ArcherClip(dual_clip=None), tokens)
    assert found == pytest.approx([12.0, 9.0, math.exp(20), -math.exp(-20)])
    assert gradient == pytest.approx([12.0, 9.0, 0.0, 0.0])
    found, gradient = loss_and_gradient(ArcherClip(dual_clip=None, log_ratio_limit=None), tokens)
    assert gradient == pytest.approx([12.0, 9.0, math.exp(25), -math.exp(-25)])


def test_a_range_of_nothing_lets_the_first_gradient_through() -> None:
    tokens = data([1.0, 1.1, 0.9], [1.0, 1.0, 1.0], torch.zeros(3, dtype=torch.bool))
    _, gradient = loss_and_gradient(ArcherClip(clip_knowledge=0.0), tokens)
    assert gradient == pytest.approx([-1.0, 0.0, -0.9])


def test_metrics_by_type() -> None:
    _, metrics = ArcherClip()(data(), torch.zeros(6, dtype=torch.float64))
    found = values(metrics)
    assert found["token_types/reasoning_share"] == pytest.approx(4 / 6)
    assert found["token_types/clipped_knowledge"] == 1
    assert found["token_types/clipped_reasoning"] == pytest.approx(2 / 4)
    assert found["ratio/clipped_high_share"] == pytest.approx(2 / 6)
    assert found["ratio/clipped_low_share"] == pytest.approx(2 / 6)


def test_a_dual_clip_inside_a_range_is_refused() -> None:
    with pytest.raises(ValueError, match="dual_clip"):
        ArcherClip(dual_clip=1.4)


def test_only_reasoning_tokens_are_trained() -> None:
    found, gradient = loss_and_gradient(LowEntropyMask(), data())
    assert found == pytest.approx([0.0, -1.2, 0.0, 0.8, -1.2, 1.6])
    assert gradient == pytest.approx([0.0] * 6)
    _, gradient = loss_and_gradient(LowEntropyMask(loss=Reinforce()), data())
    assert gradient == pytest.approx([0.0, -1.0, 0.0, 1.0, -1.0, 2.0])
    masked = LowEntropyMask().clipped(data(), torch.zeros(6, dtype=torch.float64))
    assert masked.other.tolist() == (~TYPES).tolist() and not (masked.low & masked.other).any()


def test_a_mask_is_written_with_its_inner_loss() -> None:
    piece = LowEntropyMask(loss=PpoClip(clip_high=0.28))
    written = piece.model_dump(mode="json")
    assert written["loss"]["piece"] == "PpoClip" and written["loss"]["clip_high"] == 0.28
    assert PolicyLoss.model_validate(written) == piece
