"""Every run's token statistics, by value and through the real trainer."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.cases import scores, table, tokens_of
from tests.tiny import tiny_qwen3
from tests.training.cases import TinyPolicy, make_samples

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.entropy_losses import ClipCov, Opefo
from strop.algorithms.losses import Cispo, PpoClip, Reinforce
from strop.algorithms.objective import Objective, UpdateContext
from strop.algorithms.regularizers import KlPenalty
from strop.algorithms.statistics import entropy_flow, exact_entropy_flow
from strop.base.metrics import Covariance, Deviation, Metrics, Ratio, merge, values
from strop.model.policy import PackedInputs
from strop.training.packing import pack
from strop.training.settings import AdamW
from strop.training.step import Trainer

P = torch.tensor([0.9, 0.5, 0.1, 0.99], dtype=torch.float64)
H = torch.tensor([0.35, 0.9, 2.0, 0.06], dtype=torch.float64)


def found(objective: Objective, tokens, logprob: torch.Tensor, entropy: torch.Tensor) -> dict[str, float | None]:
    return values(objective(tokens, logprob, entropy, UpdateContext())[1])


def test_entropy_flow_of_any_run() -> None:
    tokens = tokens_of([1.0, -1.0, 1.0, -1.0], P.log())
    row = found(Objective(loss=Reinforce()), tokens, P.log(), H)
    assert row["entropy_flow/positive"] == pytest.approx(0.051713 + 0.245094 + 0.000005, abs=2e-6)
    assert row["entropy_flow/negative"] == pytest.approx(-0.002446, abs=6e-7)
    assert row["entropy_flow/net"] == pytest.approx(0.051713 + 0.245094 + 0.000005 - 0.002446, abs=2e-6)
    assert row["entropy_flow/lambda"] == pytest.approx(-0.983650, abs=6e-7)
    still = found(Objective(loss=Reinforce()), replace(tokens, advantage=torch.zeros(4)), P.log(), H)
    assert still["entropy_flow/lambda"] == 0 and still["entropy_flow/positive"] == 0


def test_flow_of_clipped_tokens_at_each_bound() -> None:
    # ratios 1.5 (A > 0: cut above), .5 (A < 0: cut below), .5 (A > 0: kept), 1.5 (A < 0: kept)
    ratio = torch.tensor([1.5, 0.5, 0.5, 1.5], dtype=torch.float64)
    tokens = tokens_of([1.0, -1.0, 1.0, -1.0], P.log() - ratio.log())
    row = found(Objective(loss=PpoClip()), tokens, P.log(), H)
    assert row["entropy_flow/clipped_high"] == pytest.approx(-0.002446, abs=6e-7)
    assert row["entropy_flow/clipped_low"] == pytest.approx(0.051713, abs=6e-7)
    assert row["ratio/clipped_high_share"] == 0.25 and row["ratio/clipped_low_share"] == 0.25
    assert row["ratio/clipped_share"] == 0.5
    capped = found(Objective(loss=Cispo(max_ratio=1.2)), tokens, P.log(), H)
    assert capped["entropy_flow/clipped_high"] == pytest.approx(-0.002446 + 0.000005, abs=1e-6)
    assert capped["entropy_flow/clipped_low"] == 0


def test_advantages_and_their_covariance_with_the_log_prob() -> None:
    tokens = tokens_of([2.0, -1.0, 1.0, 0.0])
    row = found(Objective(loss=Reinforce()), tokens, torch.tensor([-1.0, -2.0, -3.0, -4.0], dtype=torch.float64), H)
    assert row["advantage/mean"] == pytest.approx(0.5)
    assert row["advantage/std"] == pytest.approx(math.sqrt(1.25))  # (1.5² + 1.5² + .5² + .5²) / 4
    assert (row["advantage/min"], row["advantage/max"], row["advantage/positive_share"]) == (-1, 2, 0.5)
    assert row["covariance"] == pytest.approx((1.5 * 1.5 - 1.5 * 0.5 - 0.5 * 0.5 + 0.5 * 1.5) / 4)


def test_nothing_is_asked_of_the_gradient() -> None:
    data = table(0, (3, 2), spread=0.3)
    logits = data.logits.clone().requires_grad_()
    logprob, entropy = scores(logits, data.chosen)
    _, metrics = Objective(loss=PpoClip(dual_clip=2.0))(data.tokens, logprob, entropy, UpdateContext())
    tensors = [v for stat in metrics.values() for v in vars(stat).values() if isinstance(v, torch.Tensor)]
    assert tensors and not any(tensor.requires_grad for tensor in tensors)


@pytest.mark.parametrize("loss", [Opefo(), ClipCov(share=0.2, low=0.0)], ids=repr)
def test_an_update_by_the_trainer_does_not_change_with_the_budget(loss) -> None:
    samples = make_samples(10)
    rows = []
    for budget in (1, 23, 10_000):
        policy = TinyPolicy(dtype=torch.float64)
        trainer = Trainer(policy, Objective(loss=loss), AdamW(lr=1e-3), total_updates=1)
        rows.append(values(trainer.update(pack(samples, TokenMean(), budget), UpdateContext(seed=5))))
    for row in rows[:2]:
        for name in set(row) - {"packing_efficiency", "micro_batches"}:
            assert row[name] == pytest.approx(rows[2][name], rel=1e-5, abs=1e-9), name
    if isinstance(loss, Opefo):
        assert rows[0]["opefo/lambda"] == pytest.approx(rows[0]["entropy_flow/lambda"], rel=1e-4)
        assert abs(rows[0]["opefo/lambda"] or 0) > 1e-3


def test_exact_opefo_on_a_real_policy() -> None:
    policy = tiny_qwen3()
    update = pack(make_samples(6), TokenMean(), 40)
    seen = []

    class Watching(Opefo):
        def prepare(self, tokens, seed):
            seen.append(tokens)
            return super().prepare(tokens, seed)

    objective = Objective(loss=Watching(exact=True))
    trainer = Trainer(policy, objective, AdamW(lr=1e-3), total_updates=1, temperature=0.8)
    row = values(trainer.update(update, UpdateContext()))
    tokens = seen[0]
    flow = exact_entropy_flow(tokens.advantage, tokens.scored_logprob, tokens.scored_entropy, tokens.scored_collision)
    assert row["opefo/positive"] == pytest.approx(float(flow.clamp(min=0).sum()), rel=1e-4)
    short = entropy_flow(tokens.advantage, tokens.scored_logprob, tokens.scored_entropy)
    assert row["entropy_flow/positive"] == pytest.approx(float(short.clamp(min=0).sum()), rel=1e-3)
    assert row["opefo/positive"] != pytest.approx(row["entropy_flow/positive"], rel=0.01)


def test_the_policy_gives_the_collision_of_its_own_logits() -> None:
    policy = tiny_qwen3()
    packed = PackedInputs.whole([[1, 5, 2, 9], [3, 4, 8]])
    with torch.no_grad():
        plain = policy(packed, 0.7)
        logprob, entropy, found = policy(packed, 0.7, with_collision=True)
        hidden = policy.hidden(packed.token_ids, packed.positions, _context(packed))[packed.rows]
        log_p = (policy.logits(hidden, fp32=True) / 0.7).log_softmax(-1)
    torch.testing.assert_close((logprob, entropy), plain)
    expected = (log_p.exp() ** 2 * (log_p + entropy[:, None])).sum(-1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def _context(packed: PackedInputs):
    from strop.model.attention import PackedContext

    return PackedContext(packed.lengths, torch.device("cpu"))


def test_a_reference_that_is_the_policy_has_no_kl() -> None:
    tokens = tokens_of([1.0] * 4, reference_logprob=P.log())
    objective = Objective(loss=Reinforce(), regularizers={"r": KlPenalty(beta=1.0)})
    row = found(objective, tokens, P.log(), H)
    assert row["kl/reference"] == row["kl/reference_k1"] == row["kl/penalised"] == 0


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.integers(1, 11))
def test_derived_metrics_merge_exactly(numbers: list[float], cut: int) -> None:
    def describe(part: list[float]) -> Metrics:
        squares, cubes = sum(v**2 for v in part), sum(v**3 for v in part)
        return {
            "ratio": Ratio(sum(part), len(part), otherwise=0.0),
            "deviation": Deviation(sum(part), squares, len(part)),
            "covariance": Covariance(sum(part), squares, cubes, len(part)),
        }

    row = values(merge([describe(numbers[:cut]), describe(numbers[cut:])]))
    assert row["ratio"] == pytest.approx(np.mean(numbers), abs=1e-9)
    assert row["deviation"] == pytest.approx(np.std(numbers), abs=1e-6)
    assert row["covariance"] == pytest.approx(np.cov(numbers, np.square(numbers), ddof=0)[0, 1], abs=1e-6)


def test_derived_metrics_of_nothing() -> None:
    row = values({"a": Ratio(0, 0), "b": Ratio(0, 0, 0.0), "c": Deviation(0, 0, 0), "d": Covariance(0, 0, 0, 0)})
    assert row == {"a": None, "b": 0, "c": None, "d": None}
