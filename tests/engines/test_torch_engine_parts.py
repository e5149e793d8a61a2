"""Parts of the embedded engine on their own: uniforms, the draw, stop strings, slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.tiny import byte_tokenizer

from strop.engines.continuation import StopStrings
from strop.engines.protocol import Sampling
from strop.engines.sampling import Draw, draw, stream_key, truncate, uniforms

# The first two uniforms of (seed 0, sample 0) and of (seed 2^63 - 1, sample 7).
PINNED = [[0.16006461874122768, 0.4563472190783746], [0.19980902070006545, 0.09561532976144316]]


def stream(seed: int, index: int, count: int) -> np.ndarray:
    return uniforms(np.full(count, stream_key(seed, index), np.uint64), np.arange(count))


def test_uniforms_are_uniform_independent_and_stateless():
    values = np.stack([stream(11, index, 500) for index in range(40)])
    assert values.min() >= 0 and values.max() < 1
    assert stats.kstest(values.ravel(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1]) < 0.03
    assert len(np.unique(values)) == values.size
    key = np.array([stream_key(11, 3)], np.uint64)
    assert uniforms(key, np.array([17]))[0] == values[3, 17]


def test_uniforms_are_pinned():
    # A change here changes every completion of every run: never by accident.
    assert stream(0, 0, 2).tolist() == PINNED[0]
    assert stream(2**63 - 1, 7, 2).tolist() == PINNED[1]


def test_neighbouring_seeds_do_not_collide():
    keys = {stream_key(seed, index) for seed in range(200) for index in range(64)}
    assert len(keys) == 200 * 64


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=20), st.floats(0, 1, exclude_max=True))
def test_the_draw_inverts_the_cumulative_distribution(logits: list[float], u: float):
    z = torch.tensor([logits], dtype=torch.float32)
    token, logprob, entropy = draw(z, Draw(torch.tensor([u], dtype=torch.float64)))
    probs = z.softmax(-1)[0].double()
    low = float(probs[: token[0]].sum())
    assert probs[token[0]] > 0
    assert low - 1e-6 <= u <= low + float(probs[token[0]]) + 1e-6
    assert logprob[0] == z.log_softmax(-1)[0, token[0]]
    assert abs(float(entropy[0]) - float(torch.distributions.Categorical(logits=z[0].double()).entropy())) < 1e-5


def test_the_last_uniform_never_falls_past_the_end_nor_on_an_impossible_token():
    z = torch.tensor([[0.0, 0.0, -torch.inf, 0.0, -torch.inf]])
    for u in (0.0, 1 - 2.0**-53):
        token, _, entropy = draw(z, Draw(torch.tensor([u], dtype=torch.float64)))
        assert int(token) == (0 if u == 0 else 3)
        torch.testing.assert_close(entropy, torch.tensor([3.0]).log())


def test_truncate_follows_the_definitions():
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]])
    k = torch.tensor([2, 3])
    kept = truncate(probs, k, torch.tensor([1.0, 1.0], dtype=torch.float64))
    assert (kept > 0).tolist() == [[False, True, False, True], [True, True, True, False]]
    off = torch.tensor([4, 4])
    kept = truncate(probs, off, torch.tensor([0.69, 0.5], dtype=torch.float64))
    assert (kept > 0).tolist() == [[False, True, False, True], [True, True, False, False]]
    kept = truncate(probs, off, torch.tensor([1e-9, 1.0], dtype=torch.float64))
    assert (kept > 0).tolist() == [[False, True, False, False], [True] * 4]


def test_greedy_rows_beside_sampled_ones():
    z = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    how = Draw(torch.zeros(2, dtype=torch.float64), greedy=torch.tensor([True, False]))
    tokens, logprobs, _ = draw(z, how)
    assert tokens.tolist() == [1, 0]
    torch.testing.assert_close(logprobs, torch.tensor([[1.0], [0.0]])[:, 0] - z[0].logsumexp(-1))


def test_stop_strings_are_found_where_they_end_and_nowhere_else():
    tokenizer = byte_tokenizer()
    stops = StopStrings(tokenizer)
    wanted = ("</answer>", "é!")
    for text in ("so <answer>5</answer> and on", "x</ans</answer>", "caf\u00e9! yes"):
        ids = tokenizer(text).input_ids
        ends = [t for t in range(len(ids)) if stops.found(wanted, ids[: t + 1])]
        decoded = [str(tokenizer.decode(ids[: t + 1])) for t in ends]
        assert any(decoded[0].endswith(stop) for stop in wanted)
    assert not stops.found(wanted, tokenizer("</answer")["input_ids"])


def test_stop_strings_of_one_space():
    tokenizer = byte_tokenizer()
    stops = StopStrings(tokenizer)
    assert stops.found((": ",), tokenizer("so: ").input_ids)
    assert not stops.found((": ",), tokenizer("so :").input_ids)


def test_a_stop_that_cannot_be_is_refused() -> None:
    for wrong in ({"stop": ("",)}, {"stop_token_ids": (-1,)}):
        with pytest.raises(ValueError, match=r"stop(_token_ids)?.0"):
            Sampling.model_validate(wrong)
    assert Sampling.model_validate({"stop": "</answer>"}).stop == ("</answer>",)
