"""Clip-Cov, KL-Cov and the hash by which they choose."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.cases import rows, tokens_of

from strop.algorithms.entropy_losses import ClipCov, KlCov, mix, token_hash
from strop.algorithms.statistics import token_covariance
from strop.algorithms.tokens import Tokens
from strop.base.metrics import values

MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """The generator's step in Python's unbounded integers."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_hash_is_splitmix64() -> None:
    # the first two published outputs of the generator for the seed 0
    found = mix(torch.tensor([0, 0x9E3779B97F4A7C15 - (1 << 64)]))
    assert [int(v) & MASK for v in found] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.integers(0, (1 << 63) - 1), st.lists(st.tuples(INT64, INT64), min_size=1, max_size=9))
def test_products_wrap(seed: int, tokens: list[tuple[int, int]]) -> None:
    sample, position = torch.tensor(tokens).unbind(1)
    expected = [splitmix64(splitmix64(splitmix64(seed) ^ (s & MASK)) ^ (p & MASK)) >> 1 for s, p in tokens]
    assert token_hash(seed, sample, position).tolist() == expected


def test_the_hash_is_even() -> None:
    sample, position = torch.arange(200).repeat_interleave(100), torch.arange(100).repeat(200)
    numbers = token_hash(3, sample, position).double() / 2**63
    assert len(numbers.unique()) == 20_000
    assert float(numbers.mean()) == pytest.approx(0.5, abs=0.01)
    counts = torch.histc(numbers, 20, 0, 1)
    assert float((counts - 1000).abs().max()) < 150


LOGPROB = torch.tensor([-0.5, -3.0, -1.0, -1.5, -4.0, -2.0], dtype=torch.float64)
ADVANTAGE = [2.0, -2.0, 1.0, -1.0, -1.0, 1.0]
# mean A 0, mean log p −2: (A)(log p + 2)
COVARIANCE = [3.0, 2.0, 1.0, -0.5, 2.0, 0.0]


def data(ratio: list[float] | None = None) -> Tokens:
    gaps = torch.tensor([math.log(r) for r in ratio or [1.0] * 6], dtype=torch.float64)
    return tokens_of(ADVANTAGE, LOGPROB - gaps, scored_logprob=LOGPROB)


def plan(tokens: Tokens) -> list[float]:
    assert tokens.plan is not None
    return tokens.plan.tolist()


def test_covariance_by_hand() -> None:
    found = token_covariance(torch.tensor(ADVANTAGE), LOGPROB)
    assert found.tolist() == pytest.approx(COVARIANCE)


def test_clip_cov_chooses_among_tokens_strictly_inside_the_range() -> None:
    removed = set()
    for seed in range(60):
        chosen = [i for i, kept in enumerate(plan(ClipCov().prepare(data(), seed))) if kept == 0]
        assert len(chosen) == 1
        removed.add(chosen[0])
    assert removed == {0, 1, 4}  # cov 1 itself is out
    assert plan(ClipCov(share=1.0).prepare(data(), 0)) == [0, 0, 1, 1, 0, 1]
    assert plan(ClipCov(share=1.0, high=3.0).prepare(data(), 0)) == [1, 0, 1, 1, 0, 1]
    assert plan(ClipCov(share=1.0, low=4.0).prepare(data(), 0)) == [1] * 6
    assert sum(plan(ClipCov(share=0.4).prepare(data(), 0))) == 4  # int(.4 · 6) = 2 removed


def test_what_the_ratio_clips_already_is_not_chosen() -> None:
    ratio = [1.3, 0.7, 1.0, 1.0, 1.3, 1.0]  # 0: A > 0 beyond; 1: A < 0 beyond; 4: A < 0 and above: not clipped
    piece = ClipCov(share=1.0, clip_low=0.2, clip_high=0.2)
    assert plan(piece.prepare(data(ratio), 0)) == [1, 1, 1, 1, 0, 1]
    # the published bounds: 0 and 2
    assert plan(ClipCov(share=1.0).prepare(data([2.1, 0.01, 1.0, 1.0, 1.3, 1.0]), 0)) == [1, 0, 1, 1, 0, 1]


def test_clip_cov_is_ppo_without_the_chosen() -> None:
    ratio = [1.3, 1.0, 1.1, 1.0, 1.3, 1.0]
    piece = ClipCov(share=1.0, clip_low=0.2, clip_high=0.2)
    tokens = piece.prepare(data(ratio), 0)
    logprob = LOGPROB.clone().requires_grad_()
    loss, metrics = piece(tokens, logprob)
    assert loss.tolist() == pytest.approx([-2.4, 0.0, -1.1, 1.0, 0.0, -1.0])
    loss.sum().backward()
    assert logprob.grad is not None
    assert logprob.grad.tolist() == pytest.approx([0.0, 0.0, -1.1, 1.0, 0.0, -1.0])
    found = values(metrics)
    assert found["covariance/chosen_share"] == pytest.approx(2 / 6)
    assert found["ratio/clipped_high_share"] == pytest.approx(1 / 6)
    assert found["ratio/clipped_share"] == pytest.approx(3 / 6)


@pytest.mark.parametrize(("count", "removed"), [(100, 1), (9_999, 1), (10_000, 2), (25_000, 5)])
def test_how_many_clip_cov_removes(count: int, removed: int) -> None:
    generator = torch.Generator().manual_seed(0)
    advantage = 1.5 * torch.randn(count, generator=generator, dtype=torch.float64)
    logprob = -advantage.abs() - torch.rand(count, generator=generator, dtype=torch.float64)
    tokens = tokens_of(torch.where(advantage < 0, advantage, -advantage), logprob, scored_logprob=logprob)
    assert sum(plan(ClipCov().prepare(tokens, 1))) == count - removed


def test_kl_cov_penalises_the_top() -> None:
    assert plan(KlCov().prepare(data(), 0)) == [1, 0, 0, 0, 0, 0]
    assert plan(KlCov(share=0.5).prepare(data(), 0)) == [1, 1, 0, 0, 1, 0]
    # equal covariances (tokens 1 and 4): one of the two, by the seed
    seen = {tuple(plan(KlCov(share=0.34).prepare(data(), seed))) for seed in range(20)}
    assert seen == {(1, 1, 0, 0, 0, 0), (1, 0, 0, 0, 1, 0)}


def test_kl_cov_by_value_and_without_clipping() -> None:
    ratio = [1.5, 0.5, 2.0, 1.0, 0.8, 1.0]
    piece = KlCov(share=0.5, coefficient=0.7)
    tokens = piece.prepare(data(ratio), 0)
    logprob = LOGPROB.clone().requires_grad_()
    loss, metrics = piece(tokens, logprob)
    kl = [0.7 * abs(math.log(r)) * p for r, p in zip(ratio, [1, 1, 0, 0, 1, 0], strict=True)]
    plain = [-a * r for a, r in zip(ADVANTAGE, ratio, strict=True)]
    assert loss.tolist() == pytest.approx([a + b for a, b in zip(plain, kl, strict=True)])
    loss.sum().backward()
    assert logprob.grad is not None
    assert logprob.grad.tolist() == pytest.approx([-3.0 + 0.7, 1.0 - 0.7, -2.0, 1.0, 0.8 - 0.7, -1.0])
    assert values(metrics)["ratio/clipped_share"] == 0


@pytest.mark.parametrize("piece", [ClipCov(share=0.3), KlCov(share=0.3)])
@given(order=st.permutations(range(6)), seed=st.integers(0, 1 << 62))
def test_the_choice_follows_the_tokens(piece: ClipCov | KlCov, order: list[int], seed: int) -> None:
    shuffled = piece.prepare(rows(data(), torch.tensor(order)), seed)
    expected = plan(piece.prepare(data(), seed))
    assert plan(shuffled) == [expected[i] for i in order]


def test_bounds_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ValueError):
        ClipCov(low=5.0, high=1.0)


def test_rounding_is_no_distance() -> None:
    loss = KlCov(share=1.0, coefficient=3.0)
    anchor = torch.tensor([-1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    tokens = replace(tokens_of([0.0] * 4, anchor), plan=torch.ones(4, dtype=torch.float64))
    logprob = (anchor + torch.tensor([4e-6, -4e-6, 1e-3, -1e-3])).requires_grad_()
    found, _ = loss(tokens, logprob)
    found.sum().backward()
    assert logprob.grad is not None and logprob.grad.tolist() == [0, 0, 3, -3]
    assert found.tolist() == pytest.approx([1.2e-5, 1.2e-5, 3e-3, 3e-3], rel=1e-3)


def test_both_means_are_taken_off() -> None:
    advantage, logprob = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([-1.0, -2.0, -6.0])
    assert token_covariance(advantage, logprob).tolist() == [-4.0, -1.0, -9.0]
