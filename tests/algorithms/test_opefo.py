"""Entropy flow and OPEFO against the published and hand-computed numbers."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.cases import collisions, scores, tokens_of

from strop.algorithms.entropy_losses import Opefo
from strop.algorithms.statistics import balance, entropy_flow, exact_entropy_flow, flow_sums
from strop.algorithms.tokens import Tokens
from strop.base.metrics import values

P = torch.tensor([0.9, 0.5, 0.1, 0.99], dtype=torch.float64)
H = torch.tensor([0.35, 0.9, 2.0, 0.06], dtype=torch.float64)
A = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
SOFTMAX = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)


def data(advantage: Any = A, **columns: Any) -> Tokens:
    return tokens_of(advantage, P.log(), scored_logprob=P.log(), scored_entropy=H, **columns)


def weights(piece: Opefo, tokens: Tokens) -> list[float]:
    plan = piece.prepare(tokens, 0).plan
    assert plan is not None
    return plan.tolist()


def test_flow_of_four_tokens() -> None:
    assert entropy_flow(A, P.log(), H).tolist() == pytest.approx([-0.002446, 0.051713, 0.245094, 0.000005], abs=6e-7)


@pytest.mark.parametrize(("power", "expected"), [(2, -0.983650), (1, -0.877899)])
def test_lambda_of_four_tokens(power: Literal[1, 2], expected: float) -> None:
    flow = entropy_flow(A, P.log(), H, power)
    assert float(balance(*flow_sums(flow))) == pytest.approx(expected, abs=6e-7)
    up, down = 1 + expected, 1 - expected
    assert weights(Opefo(power=power), data()) == pytest.approx([down, up, up, up], abs=6e-7)


def test_flow_of_a_softmax_exact_and_by_the_papers_formula() -> None:
    logprob = SOFTMAX.log()
    entropy = -(SOFTMAX * logprob).sum().expand(3)
    one = torch.ones(3, dtype=torch.float64)
    collision = collisions(logprob.expand(3, 3))
    exact = exact_entropy_flow(one, logprob, entropy, collision)
    assert exact.tolist() == pytest.approx([-0.140793, 0.332332, 0.320885], abs=6e-7)
    assert entropy_flow(one, logprob, entropy).tolist() == pytest.approx([-0.040063, 0.516876, 1.215621], abs=6e-7)


@given(st.lists(st.floats(-4, 4), min_size=2, max_size=6), st.floats(-2, 2))
def test_the_exact_flow_is_the_derivative_of_the_entropy_along_the_update(logits: list[float], a: float) -> None:
    z = torch.tensor(logits, dtype=torch.float64)
    for chosen in range(len(z)):
        token = torch.tensor([chosen])
        logprob, entropy = scores(z[None], token)
        found = exact_entropy_flow(torch.tensor([a]), logprob, entropy, collisions(z[None]))
        onehot = torch.nn.functional.one_hot(token[0], len(z)).double()
        change = a * (onehot - z.softmax(-1))
        step = 1e-5
        high, low = (scores((z + sign * step * change)[None], token)[1] for sign in (1, -1))
        assert float(found[0]) == pytest.approx(float(high - low) / (2 * step), rel=1e-4, abs=1e-8)


def test_after_reweighting_nothing_flows() -> None:
    tokens = data()
    flow = Opefo().flow(tokens)
    weight = torch.tensor(weights(Opefo(), tokens), dtype=torch.float64)
    assert float((weight * flow).sum()) == pytest.approx(0, abs=1e-12)


def test_without_flow_every_weight_is_one() -> None:
    assert weights(Opefo(), data(torch.zeros(4))) == [1.0] * 4
    _, metrics = Opefo()(Opefo().prepare(data(torch.zeros(4)), 0), P.log())
    assert values(metrics)["opefo/lambda"] == 0


def test_a_token_without_flow_keeps_weight_one() -> None:
    # A = 0, and p = 1 with H = 0
    tokens = tokens_of(
        [0.0, 1.0, 1.0, -1.0],
        scored_logprob=torch.tensor([-1.0, 0.0, -2.0, -0.1], dtype=torch.float64),
        scored_entropy=torch.tensor([0.5, 0.0, 1.0, 0.7], dtype=torch.float64),
    )
    assert weights(Opefo(), tokens)[:2] == [1.0, 1.0]
    assert weights(Opefo(), tokens)[2] != 1


def test_static_and_one_sided() -> None:
    assert weights(Opefo(balance=0.001), data()) == pytest.approx([0.999, 1.001, 1.001, 1.001])
    assert weights(Opefo(balance=0.0), data()) == [1.0] * 4
    up, down = 1 - 0.983650, 1 + 0.983650
    assert weights(Opefo(sides="increasing"), data()) == pytest.approx([1, up, up, up], abs=6e-7)
    assert weights(Opefo(sides="decreasing"), data()) == pytest.approx([down, 1, 1, 1], abs=6e-7)


def test_exact_mode_takes_its_signs_from_the_exact_flow() -> None:
    # .7 twice and .2: −.140793 · 2 decrease, .332332 increases; token 3 of p = .7 with A = −1 increases.
    rows = SOFTMAX.log().expand(4, 3)
    chosen = torch.tensor([0, 0, 1, 0])
    logprob, entropy = scores(rows, chosen)
    scored = {"scored_logprob": logprob, "scored_entropy": entropy, "scored_collision": collisions(rows)}
    tokens = tokens_of([1.0, 1.0, 1.0, -1.0], **scored)
    strength = (2 * 0.140793 - 0.332332 - 0.140793) / (3 * 0.140793 + 0.332332)
    down, up = 1 - strength, 1 + strength
    assert weights(Opefo(exact=True), tokens) == pytest.approx([down, down, up, up], abs=3e-6)
    assert Opefo(exact=True).needs_collision and not Opefo().needs_collision


def test_the_loss_has_no_ratio() -> None:
    tokens = Opefo().prepare(data(), 0)
    logprob = (P.log() - 0.3).requires_grad_()
    loss, metrics = Opefo()(tokens, logprob)
    down, up = 1.983650, 0.016350
    assert loss.tolist() == pytest.approx(
        [-w * a * lp for w, a, lp in zip([down, up, up, up], A.tolist(), logprob.tolist(), strict=True)], abs=3e-6
    )
    loss.sum().backward()
    assert logprob.grad is not None
    assert logprob.grad.tolist() == pytest.approx([-down, up, -up, up], abs=6e-7)
    found = values(metrics)
    assert found["opefo/positive"] == pytest.approx(0.051713 + 0.245094 + 0.000005, abs=2e-6)
    assert found["opefo/negative"] == pytest.approx(-0.002446, abs=6e-7)
    assert found["opefo/lambda"] == pytest.approx(-0.983650, abs=6e-7)
    assert values(Opefo(balance=0.001)(tokens, logprob)[1])["opefo/lambda"] == pytest.approx(0.001)


def test_it_says_what_it_needs() -> None:
    assert Opefo().needs_scores and Opefo().strictly_on_policy
    for wrong in (1.0, -1.0, 2.0):
        with pytest.raises(ValueError, match="balance"):
            Opefo(balance=wrong)
