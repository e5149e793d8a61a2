"""Rows of the embedded engine: which of them read equally many keys, and when sequences change their slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.runs import drain, engine_of, policy_logprobs, run
from tests.tiny import tiny_qwen3

from strop.base.types import Completion
from strop.engines.protocol import Request, Sampling
from strop.engines.torch.kv import BLOCK, SlotCache, Span, blocks, keys_read, spans
from strop.model.policy import Policy

LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=70)


@given(LENGTHS)
def test_spans_cover_every_row_and_reach_its_length(lengths: list[int]):
    found = spans(np.array(lengths))
    assert [span.start for span in found] == [0, *(span.stop for span in found[:-1])]
    assert found[-1].stop == len(lengths)
    for span in found:
        assert span.length % BLOCK == 0
        assert span.length == max(blocks(length) for length in lengths[span.start : span.stop])


@given(LENGTHS)
def test_rows_in_order_of_length_are_padded_by_a_quarter_and_a_block(lengths: list[int]):
    ordered = np.array(sorted(lengths, reverse=True))
    eights = [(int(ordered[start]), len(ordered[start : start + 8])) for start in range(0, len(ordered), 8)]
    least = sum(blocks(longest) * rows for longest, rows in eights)
    assert least <= keys_read(spans(ordered)) <= 1.25 * least + BLOCK * len(ordered)
    assert keys_read(spans(ordered)) <= blocks(int(ordered[0])) * len(ordered)


def test_spans_by_hand():
    assert spans(np.array([40] * 8 + [33] * 8)) == [Span(0, 16, 64)]
    assert spans(np.array([500] * 8 + [100] * 8 + [90] * 3)) == [Span(0, 8, 512), Span(8, 19, 128)]
    assert spans(np.array([100] * 8 + [500] * 8)) == [Span(0, 8, 128), Span(8, 16, 512)]
    mixed = np.array([500, 1, 1, 1, 1, 1, 1, 1] * 4)
    assert spans(mixed) == [Span(0, 32, 512)]


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


class Copies:
    """Counts the sequences that change slots: every copy of keys and values that is not of one slot to others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved = 0
        plain = SlotCache.copy

        def counting(cache: SlotCache, source, target, tokens) -> None:
            self.moved += len(source) if len(source) > 1 else 0
            plain(cache, source, target, tokens)

        monkeypatch.setattr(SlotCache, "copy", counting)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n", [1, 4])
def test_sorted_rows_sample_what_they_would_alone(monkeypatch: pytest.MonkeyPatch, n: int, dtype: str):
    policy = tiny_qwen3(dtype=dtype)
    copies = Copies(monkeypatch)
    todo = long_and_short(n)
    found = run(engine_of(policy, slots=16, shrink=False), todo)
    assert copies.moved > 0
    for completion in found.values():
        gap = np.abs(completion.logprobs - policy_logprobs(policy, completion)).max()
        assert gap < (1e-4 if dtype == "float32" else 0.25)  # a few roundings of logits of magnitude 10
    if dtype == "float32":
        alone = {key: c for request in todo[:3] for key, c in run(engine_of(policy), [request]).items()}
        assert all(np.array_equal(found[key].token_ids, alone[key].token_ids) for key in alone)


def test_rows_of_equal_length_stay_where_they_are(monkeypatch: pytest.MonkeyPatch):
    copies = Copies(monkeypatch)
    ids = np.arange(20, dtype=np.int32)
    run(engine_of(tiny_qwen3(), slots=32, shrink=False), [Request("a", ids, Sampling(max_new_tokens=60), 0, 32)])
    assert copies.moved == 0


def test_sorting_is_the_same_whatever_the_engine_did_before():
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
