"""The embedded engine under control, beyond what the contract says of every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engines.runs import drain, engine_of, policy_logprobs, prompts, requests, run
from tests.tiny import tiny_qwen3
from torch import Tensor

from strop.base.types import InputError
from strop.engines.protocol import Request, Sampling
from strop.model.attention import AttentionContext
from strop.model.policy import Policy

LONG = Sampling(max_new_tokens=40, temperature=1.0)
PROMPT = np.arange(30, dtype=np.int32)


def fresh(seed: int, tie: bool = True) -> dict[str, Tensor]:
    return tiny_qwen3(seed, tie=tie).weights()


def test_the_engines_copy_is_its_own_and_the_shared_one_is_not():
    trainer = tiny_qwen3(0)
    copied, shared = engine_of(trainer, share_parameters=False), engine_of(trainer)
    probe = prompts(2, longest=30)[1]
    before = copied.verify_weights(probe)
    with torch.no_grad():
        for parameter in trainer.parameters():
            parameter.add_(0.05)
    shared.set_version(1)
    assert np.array_equal(copied.verify_weights(probe), before)
    assert not np.allclose(shared.verify_weights(probe), before, atol=1e-2)
    shared.update_weights(trainer.weights(), 2)  # its own tensors: nothing to write
    assert shared.weight_version == 2
    with pytest.raises(InputError):
        shared.update_weights(fresh(3), 3)
    with pytest.raises(InputError, match="share_parameters"):
        engine_of(trainer, dtype="bfloat16")


def test_updates_before_the_first_token_and_in_a_row_leave_no_empty_span():
    engine = engine_of(tiny_qwen3(0))
    engine.submit(requests(prompts(1), LONG)[0])
    engine.set_version(1)
    engine.step()
    for version in (2, 2, 3):
        engine.set_version(version)
    engine.step()
    engine.set_version(3)
    completion = drain(engine)[0]
    assert completion.versions == ((1, 0, 1), (3, 1, len(completion.token_ids)))


@pytest.mark.parametrize(
    ("todo", "computed"),
    [
        ([Request("x", PROMPT, LONG, seed=3, n=40)], 29),  # the prompt but its last token, once
        ([Request(str(seed), PROMPT, LONG, seed=seed, n=2) for seed in range(8)], 29),
        ([Request(str(n), PROMPT[:size], LONG, seed=0) for n, size in enumerate((30, 1, 20, 1, 30))], 29 + 19),
    ],
)
def test_samples_of_a_prompt_share_one_prefill(monkeypatch: pytest.MonkeyPatch, todo: list[Request], computed: int):
    policy = tiny_qwen3()
    rows: list[int] = []
    hidden = Policy.hidden

    def counted(
        self: Policy, ids: Tensor, positions: Tensor, context: AttentionContext, experts: Tensor | None = None
    ) -> Tensor:
        rows.append(len(ids))
        return hidden(self, ids, positions, context, experts)

    monkeypatch.setattr(Policy, "hidden", counted)
    engine = engine_of(policy, shrink=False)
    found = run(engine, todo)
    assert sum(rows) - 16 * len(rows) == computed  # beside 16 rows a step
    for completion in found.values():
        np.testing.assert_allclose(completion.logprobs, policy_logprobs(policy, completion), atol=1e-4)


def test_shrinking_moves_sequences_without_a_trace():
    policy = tiny_qwen3()
    rng = np.random.default_rng(1)
    todo = [
        Request(str(i), prompt, Sampling(max_new_tokens=int(rng.integers(1, 90))), seed=i)
        for i, prompt in enumerate(prompts(96, longest=30))
    ]
    fixed = run(engine_of(policy, slots=96, shrink=False), todo)
    shrunk = run(engine_of(policy, slots=96), todo)
    for key, completion in fixed.items():
        assert completion.token_ids.tolist() == shrunk[key].token_ids.tolist()
        np.testing.assert_allclose(completion.logprobs, shrunk[key].logprobs, atol=1e-5)
