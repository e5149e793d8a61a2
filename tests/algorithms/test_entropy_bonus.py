"""Entropy bonuses: the constant one, and Skywork-OR1's controller step by step."""

from __future__ import annotations

import json

import pytest
import torch
from tests.algorithms.cases import tokens_of

from strop.algorithms.losses import Reinforce
from strop.algorithms.objective import Objective, UpdateContext
from strop.algorithms.regularizers import AdaptiveEntropy, EntropyBonus
from strop.algorithms.tokens import Tokens
from strop.base.pieces import State

ENTROPY = torch.tensor([0.3, 1.2], dtype=torch.float64)


def term(piece: EntropyBonus | AdaptiveEntropy, state: State) -> list[float]:
    return piece(tokens_of([1.0, 1.0]), -ENTROPY, ENTROPY, state)[0].tolist()


def after(piece: AdaptiveEntropy, entropies: list[float], state: State | None = None) -> State:
    found = piece.initial() if state is None else state
    for entropy in entropies:
        found = piece.update(found, {"entropy/sampled": entropy})
    return found


def test_constant() -> None:
    assert term(EntropyBonus(), {}) == pytest.approx([-0.003, -0.012])
    entropy = ENTROPY.clone().requires_grad_()
    EntropyBonus(coefficient=0.5)(tokens_of([1.0, 1.0]), -ENTROPY, entropy, {})[0].sum().backward()
    assert entropy.grad is not None and entropy.grad.tolist() == [-0.5, -0.5]


def test_the_coefficient_climbs_below_the_target_and_falls_above() -> None:
    piece = AdaptiveEntropy()
    assert piece.initial() == {"coefficient": 0.0, "active": True, "entropy": None}
    low = after(piece, [0.1, 0.15, 0.19])
    assert low["coefficient"] == pytest.approx(3e-4) and low["active"]
    high = after(piece, [0.25], low)
    assert high["coefficient"] == pytest.approx(2e-4) and not high["active"]
    assert term(piece, low) == pytest.approx([-3e-4 * 0.3, -3e-4 * 1.2])
    assert term(piece, high) == [0.0, 0.0]


def test_the_gate_starts_open() -> None:
    piece = AdaptiveEntropy(start=0.001)
    assert term(piece, piece.initial()) == pytest.approx([-3e-4, -1.2e-3])


def test_cap_and_floor() -> None:
    assert after(AdaptiveEntropy(), [0.1] * 60)["coefficient"] == 5e-3
    assert after(AdaptiveEntropy(), [0.9] * 3)["coefficient"] == 0.0
    assert after(AdaptiveEntropy(maximum=None), [0.1] * 60)["coefficient"] == pytest.approx(6e-3)
    assert after(AdaptiveEntropy(minimum=None), [0.9] * 3)["coefficient"] == pytest.approx(-3e-4)


def test_at_the_target_the_code_shrinks_and_the_paper_holds() -> None:
    code = after(AdaptiveEntropy(start=0.001), [0.2])
    assert code["coefficient"] == pytest.approx(9e-4) and not code["active"]
    paper = after(AdaptiveEntropy(start=0.001, at_target="hold"), [0.2])
    assert paper["coefficient"] == 0.001 and paper["active"]


def prepared(piece: AdaptiveEntropy, sampled: float) -> Tokens:
    """Two tokens of an update, in a step of this entropy; the update's own is another."""
    objective = Objective(Reinforce(), {"r": piece})
    return objective.prepare(tokens_of([1.0, 1.0], [-9.0, 0.0]), UpdateContext(sampled_entropy=sampled))


def test_the_papers_gate_goes_by_the_steps_own_entropy() -> None:
    piece = AdaptiveEntropy(start=0.001, gate="own", at_target="hold", minimum=None, maximum=None)
    closed = {"coefficient": 0.001, "active": False, "entropy": 9.0}
    for sampled, factor in ((0.125, 1), (0.5, 0)):
        tokens = prepared(piece, sampled)
        found = piece(tokens, -ENTROPY, ENTROPY, closed)[0].tolist()
        assert found == pytest.approx([-factor * 3e-4, -factor * 1.2e-3])
    edge = AdaptiveEntropy(start=0.001, target=0.25, gate="own", at_target="hold")
    tokens = prepared(edge, 0.25)
    assert edge(tokens, -ENTROPY, ENTROPY, closed)[0].tolist() == pytest.approx([-3e-4, -1.2e-3])


def test_a_step_without_a_sampled_entropy_changes_nothing() -> None:
    piece = AdaptiveEntropy()
    state = after(piece, [0.1])
    assert piece.update(state, {"entropy/sampled": None}) == state


def test_the_state_survives_json() -> None:
    state = after(AdaptiveEntropy(), [0.1, 0.3, 0.1])
    assert json.loads(json.dumps(state)) == state


def test_a_start_out_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="start"):
        AdaptiveEntropy(start=0.1)
