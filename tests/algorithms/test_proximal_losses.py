"""SAPO, DPPO, GMPO, VESPO and DeepSeek-V3.2's mask: loss and gradient against each formula, computed apart."""

from __future__ import annotations

import math

import pytest
import torch
from tests.algorithms.cases import tokens_of
from torch import Tensor

from strop.algorithms.losses import PolicyLoss, PpoClip, Reinforce
from strop.algorithms.proximal_losses import Dppo, Gmpo, OffPolicySequenceMask, Sapo, Vespo
from strop.algorithms.regularizers import KlPenalty
from strop.base.metrics import values

SEQUENCE = [0, 0, 1, 1, 1]
GAP = [0.2, 0.6, -0.6, 0.1, -0.3]  # log π − log μ
ADVANTAGE = [2.0, 2.0, -1.0, -1.0, -1.0]
ANCHOR = [-1.0] * 5


def found(loss: PolicyLoss, gap: list[float] = GAP, advantage: list[float] = ADVANTAGE) -> tuple[Tensor, Tensor]:
    """The loss of each token and d Σ loss / d log π."""
    data = tokens_of(advantage, ANCHOR, sequence=SEQUENCE, position=[0, 1, 0, 1, 2])
    logprob = (torch.tensor(gap, dtype=torch.float64) - 1).requires_grad_()
    per_token, _ = loss(data, logprob)
    per_token.sum().backward()
    assert logprob.grad is not None
    return per_token.detach(), logprob.grad


def assert_near(one: Tensor, two: list[float]) -> None:
    assert one.tolist() == pytest.approx(two, rel=1e-9, abs=1e-12)


def test_sapo() -> None:
    loss, gradient = found(Sapo(temperature_positive=2.0, temperature_negative=3.0))
    expected, slopes = [], []
    for gap, a in zip(GAP, ADVANTAGE, strict=True):
        ratio, tau = math.exp(gap), 2.0 if a > 0 else 3.0
        gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
        expected.append(-a * 4 / tau * gate)
        slopes.append(-a * 4 * gate * (1 - gate) * ratio)
    assert_near(loss, expected)
    assert_near(gradient, slopes)


# π − μ = e^-1 (e^gap − 1) = .081, .302, −.166, .039, −.095
@pytest.mark.parametrize(
    ("loss", "kept"),
    [
        (Dppo(low=0.1, high=0.1), [1, 0, 0, 1, 1]),
        (Dppo(low=0.1, high=0.4), [1, 1, 0, 1, 1]),
        (Dppo(low=0.2, high=0.03), [0, 0, 1, 1, 1]),  # the fourth rose, and its advantage is negative
        (Dppo(low=0.2, high=0.03, sides="both"), [0, 0, 1, 0, 1]),
        (Dppo(max_ratio=None, low=0.9, high=0.9), [1, 1, 1, 1, 1]),
        # KL(μ ‖ π) of (token, others) = .0136, .191, .073, .003, .022; KL(π ‖ μ) = .0139, .188, .065, .003, .020
        (Dppo(divergence="kl", low=0.05, high=0.05), [1, 0, 0, 1, 1]),
        (Dppo(divergence="kl", low=0.02, high=0.3), [1, 1, 0, 1, 0]),
        (Dppo(divergence="kl", low=0.1, high=0.01375), [1, 0, 1, 1, 1]),
        (Dppo(divergence="two_way_kl", low=0.1, high=0.01375, sides="both"), [0, 0, 1, 1, 1]),
        (Dppo(divergence="two_way_kl", low=0.021, high=0.2, sides="both"), [1, 1, 0, 1, 0]),
    ],
)
def test_dppo(loss: Dppo, kept: list[int]) -> None:
    weight = [k * math.exp(gap) for k, gap in zip(kept, GAP, strict=True)]
    value, gradient = found(loss)
    assert_near(gradient, [-w * a for w, a in zip(weight, ADVANTAGE, strict=True)])
    assert_near(value, [-w * a * (gap - 1) for w, a, gap in zip(weight, ADVANTAGE, GAP, strict=True)])


def test_dppo_caps_the_weight_and_bears_a_certain_token() -> None:
    _, gradient = found(Dppo(max_ratio=1.1, low=0.9, high=0.9))
    assert_near(gradient, [-2.2, -2.2, math.exp(-0.6), 1.1, math.exp(-0.3)])
    _, gradient = found(Dppo(divergence="kl"), gap=[1.0] * 5)  # π = 1
    assert_near(gradient, [0.0, 0.0] + [math.e] * 3)


def test_gmpo_is_the_gradient_of_the_sequence_form() -> None:
    value, gradient = found(Gmpo())
    first, second = math.exp((0.2 + 0.4) / 2), math.exp((-0.4 + 0.1 - 0.3) / 3)
    assert_near(value, [-2 * first] * 2 + [second] * 3)
    # −A s / |o| for each token that is not clipped, times |o|
    assert_near(gradient, [-2 * first, 0.0, 0.0, second, second])
    value, _ = found(Gmpo(), advantage=[-2.0, -2.0, 1.0, 1.0, 1.0])  # nothing is clipped on the other side
    assert_near(value, [2 * math.exp(0.4)] * 2 + [-math.exp(-0.8 / 3)] * 3)


def test_vespo_weighs_by_the_ratio_of_the_sequence() -> None:
    loss, gradient = found(Vespo())
    first, second = math.exp(0.8), math.exp(-0.8)
    up = first**2 * math.exp(3 * (1 - first))
    down = second**3 * math.exp(2 * (1 - second))
    assert_near(gradient, [-2 * up] * 2 + [down] * 3)
    assert_near(loss, [-2 * up * -0.8, -2 * up * -0.4, down * -1.6, down * -0.9, down * -1.3])
    for extreme in (300.0, -300.0):
        _, gradient = found(Vespo(), gap=[extreme] * 5)
        assert gradient.isfinite().all() and gradient.abs().max() < 1e-12


@pytest.mark.parametrize(("threshold", "kept"), [(0.3, 1.0), (0.25, 0.0)])
def test_a_sequence_left_behind_is_dropped_where_its_advantage_is_negative(threshold: float, kept: float) -> None:
    # mean log π_gen − log π of the second: (.6 − .1 + .3) / 3 = .267
    _, gradient = found(OffPolicySequenceMask(threshold=threshold, loss=Reinforce()))
    assert_near(gradient, [-2.0, -2.0] + [kept] * 3)
    _, gradient = found(OffPolicySequenceMask(threshold=threshold, loss=Reinforce()), advantage=[1.0] * 5)
    assert_near(gradient, [-1.0] * 5)


def test_dropped_tokens_count_as_clipped() -> None:
    piece = OffPolicySequenceMask(threshold=0.0, loss=PpoClip())
    data = tokens_of(ADVANTAGE, ANCHOR, sequence=SEQUENCE)
    cut = piece.clipped(data, torch.tensor(GAP, dtype=torch.float64) - 1)
    assert cut.high.tolist() == [True, True, False, False, False]
    assert cut.other.tolist() == [False, False, True, True, True] and not cut.low.any()


def test_the_unbiased_kl_has_the_gradient_of_the_kl() -> None:
    """Over all tokens of a vocabulary, weighed by the sampling policy, the expectation is KL(π ‖ ref), exactly."""
    logits = torch.tensor([0.3, -0.5, 1.0], dtype=torch.float64, requires_grad=True)
    sampler, reference = (torch.tensor(p, dtype=torch.float64) for p in ([0.5, 0.3, 0.2], [0.2, 0.2, 0.6]))
    logprob = logits.log_softmax(-1)
    data = tokens_of([0.0] * 3, sampler.log(), reference_logprob=reference.log())
    term, metrics = KlPenalty(beta=1.0, unbiased=True, clamp=None)(data, logprob, logprob, {})
    kl = (logprob.exp() * (logprob - reference.log())).sum()
    assert (sampler * term).sum().item() == pytest.approx(kl.item(), rel=1e-9)
    (one,) = torch.autograd.grad((sampler * term).sum(), logits, retain_graph=True)
    (two,) = torch.autograd.grad(kl, logits)
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)
    assert values(metrics)["kl/penalised"] is not None
