"""Factors between the trainer's log-probs and the generator's, by value."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from strop.algorithms.losses import Correction, IcePop, Reinforce, SequenceMask, TokenTis
from strop.algorithms.objective import Objective, UpdateContext
from strop.algorithms.tokens import Tokens

# Sequence 0: w = 4, ½ (geometric √2, product 2); sequence 1: w = 6, 1, 1 (geometric 6^⅓ = 1.817, product 6).
GAP = torch.tensor([4.0, 0.5, 6.0, 1.0, 1.0], dtype=torch.float64).log()
SEQUENCE = torch.tensor([0, 0, 1, 1, 1])
G0, G1 = 2**0.5, 6 ** (1 / 3)


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        (TokenTis(), [2.0, 0.5, 2.0, 1.0, 1.0]),
        (TokenTis(cap=5.0), [4.0, 0.5, 5.0, 1.0, 1.0]),
        (IcePop(), [4.0, 0.5, 0.0, 1.0, 1.0]),
        (IcePop(low=0.8, high=6.0001), [4.0, 0.0, 6.0, 1.0, 1.0]),
        (SequenceMask(), [1.0] * 5),
        (SequenceMask(high=1.5), [1.0, 1.0, 0.0, 0.0, 0.0]),
        (SequenceMask(low=1.5), [0.0, 0.0, 1.0, 1.0, 1.0]),
        (SequenceMask(high=None, factor="sequence"), [G0, G0, G1, G1, G1]),
        (SequenceMask(ratio="product", high=3.0), [1.0, 1.0, 0.0, 0.0, 0.0]),
        (SequenceMask(ratio="product", low=None, high=7.0, factor="sequence"), [2.0, 2.0, 6.0, 6.0, 6.0]),
        (SequenceMask(ratio="product", low=3.0, high=None, factor="token"), [0.0, 0.0, 6.0, 1.0, 1.0]),
    ],
    ids=repr,
)
def test_factors(piece: Correction, expected: list[float]) -> None:
    assert piece(GAP, SEQUENCE).tolist() == pytest.approx(expected)
    order = torch.tensor([2, 3, 4, 0, 1])
    assert piece(GAP[order], SEQUENCE[order]).tolist() == pytest.approx([expected[i] for i in order])


@pytest.mark.parametrize("piece", [TokenTis(), IcePop(), SequenceMask(), SequenceMask(factor="sequence")], ids=repr)
def test_without_mismatch_nothing_is_corrected(piece: Correction) -> None:
    assert piece(torch.zeros(5), SEQUENCE).tolist() == [1.0] * 5
    assert piece(torch.zeros(0), SEQUENCE[:0]).tolist() == []


@pytest.mark.parametrize("piece", [TokenTis(), IcePop(), SequenceMask(), SequenceMask(ratio="product")], ids=repr)
def test_extreme_gaps_stay_finite(piece: Correction) -> None:
    for size in (1e4, -1e4):
        assert torch.isfinite(piece(torch.full((5,), size), SEQUENCE)).all()


def test_the_correction_weighs_the_policy_loss() -> None:
    index = torch.arange(5)
    zero, one = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    tokens = Tokens(SEQUENCE, index, SEQUENCE, index, zero, GAP, one, one / 5, correction=TokenTis()(GAP, SEQUENCE))
    logprob: Tensor = torch.full((5,), math.log(0.5), dtype=torch.float64)
    total, _ = Objective(loss=Reinforce())(tokens, logprob, zero, UpdateContext())
    assert float(total) == pytest.approx((2 + 0.5 + 2 + 1 + 1) / 5 * math.log(2))


@pytest.mark.parametrize("wrong", [lambda: IcePop(low=5.0, high=0.5), lambda: SequenceMask(low=2.0, high=2.0)])
def test_bounds_the_wrong_way_round_are_refused(wrong) -> None:
    with pytest.raises(ValueError):
        wrong()


@pytest.mark.parametrize("bounds", [{"low": 0.5, "high": 1.0}, {"low": 1.0, "high": 2.0}])
def test_the_bounds_themselves_are_kept(bounds: dict[str, float]) -> None:
    gap, sequence = torch.zeros(2, dtype=torch.float64), torch.tensor([0, 1])
    for piece in (SequenceMask.model_validate(bounds), IcePop.model_validate(bounds)):
        assert piece(gap, sequence).tolist() == [1.0, 1.0]
