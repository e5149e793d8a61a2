"""What holds of every loss and regularizer: the split and the order of an update change neither loss nor gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.cases import Outcome, rows, run, scores, table, tokens_of

from strop.algorithms.entropy_losses import ArcherClip, ClipCov, KlCov, LowEntropyMask, Opefo
from strop.algorithms.losses import Cispo, Gspo, MaskedLoss, PolicyLoss, PpoClip, Reinforce
from strop.algorithms.objective import Objective, UpdateContext
from strop.algorithms.proximal_losses import Dppo, Gmpo, OffPolicySequenceMask, Sapo, Vespo
from strop.algorithms.regularizers import AdaptiveEntropy, EntropyBonus, KlPenalty, Regularizer, TopKl
from strop.algorithms.token_types import EntropyQuantile
from strop.base.pieces import choices

LOSSES: list[PolicyLoss] = [
    Reinforce(),
    PpoClip(),
    PpoClip(clip_high=0.28, dual_clip=2.0),
    Cispo(max_ratio=1.5),
    Gspo(),
    Gspo(clip_low=0.4, clip_high=0.4),
    ArcherClip(),
    LowEntropyMask(),
    LowEntropyMask(loss=ClipCov(share=0.2, low=0.1, clip_low=0.2, clip_high=0.2)),
    Opefo(),
    Opefo(exact=True),
    Opefo(sides="increasing", power=1),
    ClipCov(share=0.2, low=0.1),
    KlCov(share=0.2),
    Sapo(),
    Dppo(low=0.05, high=0.05),
    Dppo(divergence="kl", sides="both", low=0.01, high=0.01),
    Dppo(divergence="two_way_kl", sides="both", low=0.01, high=0.01),
    Gmpo(low=0.1, high=0.1),
    Vespo(),
    OffPolicySequenceMask(threshold=0.05),
]
REGULARIZERS: list[Regularizer] = [
    KlPenalty(beta=0.3),
    KlPenalty(beta=0.3, unbiased=True),
    TopKl(beta=0.3),
    KlPenalty(beta=0.3, beta_reasoning=0.1, normalization="type", estimator="k2"),
    EntropyBonus(),
    AdaptiveEntropy(),
    AdaptiveEntropy(gate="own", target=1.5),
]
STATE = {"coefficient": 0.004, "active": True, "entropy": 0.1}
CONTEXT = UpdateContext(seed=7, states={"r": STATE}, sampled_entropy=1.4)
LENGTHS = (3, 1, 5, 2, 4)


def objective(loss: PolicyLoss, regularizers: Mapping[str, Regularizer] | None = None) -> Objective:
    return Objective(loss=loss, regularizers=regularizers or {}, token_types=EntropyQuantile(quantile=0.6))


def assert_same(one: Outcome, two: Outcome) -> None:
    assert one.loss == pytest.approx(two.loss, rel=1e-12, abs=1e-15)
    assert one.gradient.keys() == two.gradient.keys()
    for token, row in one.gradient.items():
        assert row == pytest.approx(two.gradient[token], rel=1e-10, abs=1e-15)
    assert one.metrics.keys() == two.metrics.keys()
    for name, number in one.metrics.items():
        assert number == pytest.approx(two.metrics[name], rel=1e-9, abs=1e-12), name


def test_no_piece_is_forgotten_here() -> None:
    assert {type(loss) for loss in LOSSES} >= {p for p in choices(PolicyLoss).values() if p.__module__[:5] == "strop"}
    known = {p for p in choices(Regularizer).values() if p.__module__[:5] == "strop"}
    assert {type(regularizer) for regularizer in REGULARIZERS} >= known


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), order=st.permutations(range(len(LENGTHS))), cuts=st.sets(st.integers(1, 4)))
def test_losses_do_not_see_the_split(loss: PolicyLoss, seed: int, order: list[int], cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(LENGTHS)]
    parts = [order[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    data = table(seed, LENGTHS, spread=0.3)
    whole = run(objective(loss), data, [range(len(LENGTHS))], CONTEXT)
    assert_same(run(objective(loss), data, parts, CONTEXT), whole)


@pytest.mark.parametrize("regularizer", REGULARIZERS, ids=repr)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), order=st.permutations(range(len(LENGTHS))))
def test_regularizers_do_not_see_the_split(regularizer: Regularizer, seed: int, order: list[int]) -> None:
    data = table(seed, LENGTHS, spread=0.3)
    made = objective(Reinforce(), {"r": regularizer})
    assert_same(run(made, data, [order[:2], order[2:]], CONTEXT), run(made, data, [range(5)], CONTEXT))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_loss_that_says_that_it_vanishes_without_advantage_does(loss: PolicyLoss) -> None:
    data = table(5, LENGTHS, spread=2.0)
    quiet = replace(data, tokens=replace(data.tokens, advantage=torch.zeros_like(data.tokens.advantage)))
    found = run(objective(loss), quiet, [range(5)], CONTEXT)
    zero = found.loss == 0 and not any(any(row) for row in found.gradient.values())
    assert zero is (loss.zero_without_advantage or isinstance(loss, MaskedLoss))
    assert objective(loss).vanishes(quiet.tokens) is loss.zero_without_advantage
    assert not objective(loss).vanishes(data.tokens)
    assert not objective(loss, {"r": EntropyBonus()}).vanishes(quiet.tokens)


def test_tokens_that_a_correction_took_out_vanish() -> None:
    out = tokens_of([1.0, 0.0], correction=[0.0, 1.0])
    assert objective(Cispo()).vanishes(out)
    assert not objective(Cispo()).vanishes(replace(out, correction=torch.tensor([0.1, 1.0])))


ON_POLICY = [loss for loss in LOSSES if not isinstance(loss, LowEntropyMask | Opefo | ClipCov | KlCov)]


@pytest.mark.parametrize("loss", [*ON_POLICY, Opefo(balance=0.0)], ids=repr)
def test_on_policy_losses_are_the_policy_gradient(loss: PolicyLoss) -> None:
    data = table(3, LENGTHS, spread=0.0)
    found, plain = (run(objective(piece), data, [range(5)], CONTEXT) for piece in (loss, Reinforce()))
    assert_same(Outcome(0.0, found.gradient, {}), Outcome(0.0, plain.gradient, {}))


@pytest.mark.parametrize("loss", [PpoClip(dual_clip=2.0), ArcherClip(), KlCov(share=0.2), Opefo()], ids=repr)
def test_the_gradient_is_that_of_the_reported_loss(loss: PolicyLoss) -> None:
    """By finite differences, for the losses that hold no constant ratio."""
    data = table(11, (4, 3), spread=0.3)
    made = objective(loss)
    whole = run(made, data, [range(2)], CONTEXT)
    step = 1e-6
    logprob, entropy = scores(data.logits, data.chosen)
    tokens = data.tokens
    prepared = made.prepare(
        type(tokens)(**{**vars(tokens), "scored_logprob": logprob, "scored_entropy": entropy}), CONTEXT
    )
    for token in range(7):
        moved = [logprob + sign * step * (torch.arange(7) == token) for sign in (1, -1)]
        high, low = (float(made(prepared, where, entropy, CONTEXT)[0]) for where in moved)
        # d log π / d logit of the chosen token is 1 − p
        by_logit = (high - low) / (2 * step) * (1 - float(logprob[token].exp()))
        key = (int(tokens.sequence[token]), int(tokens.position[token]))
        assert whole.gradient[key][int(data.chosen[token])] == pytest.approx(by_logit, rel=1e-5, abs=1e-10)


def test_a_column_that_nobody_filled_is_named() -> None:
    bare = tokens_of([1.0, -1.0])
    with pytest.raises(ValueError, match=r"Tokens\.reasoning is read"):
        ArcherClip()(bare, torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"Tokens\.scored_logprob is read"):
        Opefo().prepare(bare, 0)
    with pytest.raises(ValueError, match=r"Tokens\.reference_logprob is read"):
        KlPenalty()(bare, torch.zeros(2), torch.zeros(2), {})
    with pytest.raises(ValueError, match=r"Tokens\.old_entropy is read"):
        EntropyQuantile()(bare)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_an_empty_micro_batch_adds_nothing(loss: PolicyLoss) -> None:
    data = table(0, (2,), spread=0.3)
    logprob, entropy = scores(data.logits, data.chosen)
    nothing = torch.zeros(0, dtype=torch.int64)
    tokens = data.tokens
    filled = type(tokens)(
        **{**vars(tokens), "scored_logprob": logprob, "scored_entropy": entropy, "scored_collision": entropy}
    )
    empty = rows(objective(loss).prepare(filled, CONTEXT), nothing)
    total, metrics = objective(loss)(empty, logprob[:0], entropy[:0], CONTEXT)
    assert float(total) == 0 and metrics == {}
