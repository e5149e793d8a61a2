"""Rows of the embedded engine: which of them read equally many keys, and when sequences change their slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engines.runs import drain, engine_of, policy_logprobs, run
from tests.tiny import tiny_qwen3

from strop.base.types import Completion
from strop.engines.protocol import Request, Sampling
from strop.engines.torch.kv import SlotCache
from strop.model.policy import Policy


def test_slots_may_change_places():
    cache = SlotCache(3, torch.device("cpu"))
    key = torch.zeros(1, 2, 4)
    for layer in range(2):
        for part in cache.layer(layer, key, key):
            part.copy_(torch.arange(3.0)[:, None, None, None].expand_as(part))
    cache.copy([2, 0, 1], [0, 1, 2], 5)
    for layer in range(2):
        for part in cache.layer(layer, key, key):
            assert part[:, 0, :5, 0].tolist() == [[2.0] * 5, [0.0] * 5, [1.0] * 5]
            assert part[:, 1, 5:].flatten(1).unique(dim=1).flatten().tolist() == [0.0, 1.0, 2.0]


def long_and_short(n: int) -> list[Request]:
    """Prompts of 5 and of about 300 tokens in turns, `n` samples each, of different lengths."""
    rng = np.random.default_rng(4)
    sizes = [5 if place % 2 else 300 - place for place in range(12)]
    return [
        Request(str(i), rng.integers(0, 256, size).astype(np.int32), Sampling(max_new_tokens=30 + i), seed=i, n=n)
        for i, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n", [1, 4])
def test_rows_of_different_lengths_sample_what_they_would_alone(n: int, dtype: str):
    policy = tiny_qwen3(dtype=dtype)
    todo = long_and_short(n)
    found = run(engine_of(policy, slots=16, shrink=False), todo)
    for completion in found.values():
        gap = np.abs(completion.logprobs - policy_logprobs(policy, completion)).max()
        assert gap < (1e-4 if dtype == "float32" else 0.25)  # a few roundings of logits of magnitude 10
    if dtype == "float32":
        alone = {key: c for request in todo[:3] for key, c in run(engine_of(policy), [request]).items()}
        assert all(np.array_equal(found[key].token_ids, alone[key].token_ids) for key in alone)


def test_samples_are_the_same_whatever_the_engine_did_before():
    policy = tiny_qwen3()

    def sampled(engine) -> dict[tuple[str, int], Completion]:
        return run(engine, long_and_short(2))

    fresh, used = engine_of(policy), engine_of(policy)
    used.submit(long_and_short(3)[0])
    used.submit(long_and_short(3)[1])
    drain(used)
    first, second = sampled(fresh), sampled(used)
    assert all(np.array_equal(first[key].logprobs, second[key].logprobs) for key in first)


def test_idle_rows_leave_by_sixteens(monkeypatch: pytest.MonkeyPatch):
    widths: list[int] = []
    policy = tiny_qwen3()
    engine = engine_of(policy, slots=64)
    plain = Policy.hidden

    def watched(self, ids, positions, context):
        widths.append(len(ids))
        return plain(self, ids, positions, context)

    monkeypatch.setattr(Policy, "hidden", watched)
    for place in range(64):
        # One sequence ends with every step from the sixth on, from the front to the back.
        sampling = Sampling(temperature=0, max_new_tokens=5 + place, stop_token_ids=())
        engine.submit(Request(str(place), np.array([7], np.int32), sampling, seed=place))
    tokens = {c.request_id: len(c.token_ids) for c in drain(engine)}
    running = [sum(length > step for length in tokens.values()) for step in range(len(widths))]
    assert max(tokens.values()) > 40
    assert widths == [-(-rows // 16) * 16 for rows in running]
