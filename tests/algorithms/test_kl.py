"""KL to the reference: estimators, their gradients, Archer's weights and denominators."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.cases import tokens_of
from torch import Tensor

from strop.algorithms.losses import Reinforce
from strop.algorithms.objective import Objective, UpdateContext
from strop.algorithms.regularizers import Estimator, KlInReward, KlPenalty, estimate
from strop.algorithms.tokens import Tokens
from strop.base.metrics import values

GAP = torch.tensor([0.5, -0.5, 0.0, 2.0], dtype=torch.float64)
K3 = [math.exp(-d) - 1 + d for d in GAP.tolist()]
TYPES = torch.tensor([True, False, False, False])


def data(gap: Tensor = GAP, **columns: Any) -> Tokens:
    return tokens_of(torch.zeros(len(gap)), reference_logprob=-1 - gap, **columns)


def term(piece: KlPenalty, tokens: Tokens) -> list[float]:
    logprob = torch.full((len(tokens),), -1.0, dtype=torch.float64)
    return piece(tokens, logprob, logprob, {})[0].tolist()


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", GAP.tolist()), ("k2", [0.125, 0.125, 0.0, 2.0]), ("k3", [0.106531, 0.148721, 0.0, 1.135335])],
)
def test_estimators(estimator: Estimator, expected: list[float]) -> None:
    assert estimate(GAP, estimator).tolist() == pytest.approx(expected, abs=6e-7)
    penalty = term(KlPenalty(estimator=estimator, beta=0.1), data())
    assert penalty == pytest.approx([0.1 * k for k in expected], abs=6e-7)


LOGITS = torch.tensor([1.0, 0.0, -1.0, 0.4], dtype=torch.float64)
REFERENCE = torch.tensor([0.0, 0.5, -2.0, 0.1], dtype=torch.float64).log_softmax(-1)


def mean_gradient(estimator: Estimator) -> Tensor:
    """Σ_a π(a) ∇ k(a), the expectation over samples, the probabilities held fixed."""
    logits = LOGITS.clone().requires_grad_()
    logprob = logits.log_softmax(-1)
    (logprob.detach().exp() * estimate(logprob - REFERENCE, estimator)).sum().backward()
    assert logits.grad is not None
    return logits.grad


def test_what_each_estimators_gradient_descends() -> None:
    backward, forward = LOGITS.clone().requires_grad_(), LOGITS.clone().requires_grad_()
    (backward.softmax(-1) * (backward.log_softmax(-1) - REFERENCE)).sum().backward()
    (REFERENCE.exp() * (REFERENCE - forward.log_softmax(-1))).sum().backward()
    torch.testing.assert_close(mean_gradient("k1"), torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(mean_gradient("k2"), backward.grad)
    torch.testing.assert_close(mean_gradient("k3"), forward.grad)
    assert float((mean_gradient("k2") - mean_gradient("k3")).abs().max()) > 0.01


def test_as_numbers_k1_and_k3_estimate_the_kl() -> None:
    p = LOGITS.softmax(-1)
    kl = float((p * (p.log() - REFERENCE)).sum())
    for estimator in ("k1", "k3"):
        assert float((p * estimate(p.log() - REFERENCE, estimator)).sum()) == pytest.approx(kl)


def test_the_clamp_holds_value_and_gradient() -> None:
    tokens = data(torch.tensor([-100.0, -3.0, 20.0], dtype=torch.float64))
    logprob = torch.full((3,), -1.0, dtype=torch.float64, requires_grad=True)
    found, _ = KlPenalty(beta=1.0)(tokens, logprob, logprob, {})
    assert found.tolist() == pytest.approx([10.0, 10.0, 10.0])
    found.sum().backward()
    assert logprob.grad is not None and logprob.grad.tolist() == [0.0, 0.0, 0.0]
    assert term(KlPenalty(beta=1.0, clamp=None), tokens)[1:] == pytest.approx([math.exp(3) - 4, math.exp(-20) + 19])
    assert term(KlPenalty(beta=1.0, estimator="k1"), tokens) == [-10.0, -3.0, 10.0]


def test_archers_two_weights() -> None:
    piece = KlPenalty(beta=0.001, beta_reasoning=0.0)
    tokens = data(reasoning=TYPES)
    assert term(piece, tokens) == pytest.approx([0.0, *(0.001 * k for k in K3[1:])])
    _, metrics = piece(tokens, torch.full((4,), -1.0, dtype=torch.float64), GAP, {})
    assert values(metrics) == pytest.approx({"kl/reasoning": K3[0], "kl/knowledge": sum(K3[1:]) / 3})
    assert piece.needs_token_types and not KlPenalty().needs_token_types and piece.needs_reference


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [("all", 0.2 * K3[0] / 4 + 0.5 * sum(K3[1:]) / 4), ("type", 0.2 * K3[0] + 0.5 * sum(K3[1:]) / 3)],
)
def test_denominators(normalization, expected: float) -> None:
    piece = KlPenalty(beta=0.5, beta_reasoning=0.2, normalization=normalization)
    objective = Objective(loss=Reinforce(), regularizers={"r": piece})
    tokens = objective.prepare(data(reasoning=TYPES), UpdateContext())
    logprob = torch.full((4,), -1.0, dtype=torch.float64)
    assert float(objective(tokens, logprob, logprob, UpdateContext())[0]) == pytest.approx(expected)


def test_another_regularizer_keeps_its_own_denominator() -> None:
    pair = {"a": KlPenalty(beta=0.5, normalization="type"), "b": KlPenalty(beta=0.5)}
    objective = Objective(loss=Reinforce(), regularizers=pair)
    tokens = objective.prepare(data(reasoning=TYPES), UpdateContext())
    logprob = torch.full((4,), -1.0, dtype=torch.float64)
    by_type, by_all = 0.5 * (K3[0] + sum(K3[1:]) / 3), 0.5 * sum(K3) / 4
    assert float(objective(tokens, logprob, logprob, UpdateContext())[0]) == pytest.approx(by_type + by_all)


def test_an_update_of_one_type_only() -> None:
    tokens = KlPenalty(normalization="type").prepare(data(reasoning=torch.ones(4, dtype=torch.bool)))
    assert tokens.regularizer_weight is not None and tokens.regularizer_weight.tolist() == [0.25] * 4


def test_kl_in_the_reward() -> None:
    logprob, reference = np.array([-1.0, -2.0], dtype=np.float32), np.array([-1.5, -1.0], dtype=np.float32)
    found = KlInReward(beta=0.1)(logprob, reference)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [-0.05, 0.1], rtol=1e-6)
    k3 = KlInReward(beta=0.1, estimator="k3")(logprob, reference)
    np.testing.assert_allclose(k3, [-0.0106531, -0.0718282], rtol=1e-5)


def test_the_reference_shows_in_every_runs_metrics() -> None:
    logprob = torch.full((4,), -1.0, dtype=torch.float64)
    objective = Objective(loss=Reinforce())
    found = values(objective(data(), logprob, logprob.exp(), UpdateContext())[1])
    assert found["kl/reference"] == pytest.approx(sum(K3) / 4)
    assert found["kl/reference_k1"] == pytest.approx(0.5)
    without = values(objective(replace(data(), reference_logprob=None), logprob, logprob, UpdateContext())[1])
    assert "kl/reference" not in without


@pytest.mark.parametrize("gap", [-25.0, -200.0])
def test_beyond_its_range_k3_pushes_nowhere(gap: float) -> None:
    found = torch.tensor([gap], requires_grad=True)
    estimate(found, "k3").sum().backward()
    assert found.grad is not None and found.grad.item() == 0  # and never away from the reference
