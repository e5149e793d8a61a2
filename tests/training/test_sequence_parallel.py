"""Ulysses sequence parallelism: two ranks that share every micro-batch come to what one process does, by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runs import small_config
from tests.training.several import together
from tests.training.test_sharded_trainer import CASES, MODEL, assert_close, groups, single, three_steps

from strop.algorithms.aggregation import TokenMean
from strop.base.types import InputError
from strop.model.policy import PackedInputs
from strop.model.sequence_parallel import refuse_heads
from strop.recipes.resolve import resolve
from strop.training.learner import Learner
from strop.training.packing import pack
from strop.training.samples import as_samples

SHARED = ("orchestration.trainers=2", "orchestration.sequence_parallel=2")
EXPERTS = ("model.fresh.experts=4", "model.fresh.hidden_size=32", "model.fresh.intermediate_size=64")
SHAPES = {
    "as many heads of keys as ranks": (),
    "one head of keys for two ranks": ("model.fresh.kv_heads=1",),
    "layers computed again in backward": ("model.gradient_checkpointing=true",),
    "experts": EXPERTS,
}


def forward_and_backward(learner: Learner, rank: int = 0) -> dict[str, Any]:
    """Log-probs, entropies and gradients of a packed batch of uneven sequences, at a temperature."""
    completions = [rollout.completion for group in groups(0) for rollout in group.rollouts]
    samples = [as_samples(completion, ticket)[0] for ticket, completion in enumerate(completions)]
    (batch,) = pack(samples, TokenMean(), 10_000).micro_batches
    policy, ranks = learner.policy, learner.trainer.ranks
    logprob, entropy = policy(batch.packed, 0.7)
    torch.manual_seed(0)
    ((logprob * torch.randn(len(logprob)) + 0.1 * entropy).sum() * ranks.size).backward()
    named = {name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None}
    nothing = PackedInputs.whole([[5]])  # a micro-batch of a team that only takes part
    empty = policy(nothing, 1.0)[0]
    empty.sum().backward()
    return {
        "columns": {"logprob": logprob.detach(), "entropy": entropy.detach()},
        "gradients": {name: grad.clone() for name, grad in learner.storage.whole(named).items()},
        "tokens": len(batch.packed.token_ids),
        "empty": len(empty),
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_log_probs_and_gradients_are_those_of_one_rank(shape: str, tmp_path: Path) -> None:
    config = small_config(*MODEL, *SHAPES[shape])
    expected = forward_and_backward(single(config))
    shared = small_config(*MODEL, *SHAPES[shape], *SHARED)
    first, second = together(shared, 2, tmp_path, forward_and_backward)
    assert expected["tokens"] % 2 == 1  # so that there is a token of padding
    for name, column in expected["columns"].items():
        torch.testing.assert_close(first["columns"][name], column, rtol=1e-5, atol=2e-6, msg=name)
        assert torch.equal(first["columns"][name], second["columns"][name])
    assert first["gradients"].keys() == expected["gradients"].keys()
    for name, gradient in expected["gradients"].items():
        gap = float((first["gradients"][name] - gradient).abs().max())
        assert gap <= 1e-5 * float(gradient.abs().max()), (name, gap)  # sums of float32 in another order
    assert first["empty"] == expected["empty"] == 0


@pytest.mark.parametrize(("case", "ranks"), [("opefo, critic, reference", 2), ("entropy quantile", 4)])
def test_three_steps_come_to_what_one_process_does(case: str, ranks: int, tmp_path: Path) -> None:
    """With four ranks two teams of two, which deal the micro-batches between them."""
    expected = three_steps(single(small_config(*MODEL, *CASES[case])))
    config = small_config(*MODEL, *CASES[case], f"orchestration.trainers={ranks}", SHARED[1])
    first, *others = together(config, ranks, tmp_path, three_steps)
    assert_close(first["policy"], expected["policy"])
    assert_close(first["critic"], expected["critic"])
    for one, two in zip(first["rows"], expected["rows"], strict=True):
        for name in ("loss", "grad_norm", "entropy", "trained_tokens"):
            assert one[name] == pytest.approx(two[name], rel=2e-3, abs=2e-5), name
    for other in others:
        assert other["rows"] == first["rows"] and np.array_equal(other["probe"], first["probe"])


def test_heads_that_cannot_be_shared_are_refused() -> None:
    shape = {"num_attention_heads": 12, "num_key_value_heads": 4}
    for ranks in (1, 2, 4, 12):
        refuse_heads(shape, ranks)
    for ranks in (3, 5, 6, 8):
        with pytest.raises(InputError, match=f"sequence_parallel={ranks}: .*12.*4.*1, 2, 4, 12"):
            refuse_heads(shape, ranks)
    sets = ["orchestration.trainers=3", "orchestration.sequence_parallel=2"]
    with pytest.raises(InputError, match="sequence_parallel=2"):
        resolve("grpo", sets, small=True)
