"""What the embedded engine offers besides the protocol: running samples looked at, given tokens scored."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engines.runs import engine_of, prompts
from tests.tiny import tiny_qwen3

from strop.engines.base import Request, Sampling, Scoring, Streaming
from strop.policy import Packed
from strop.types import Completion, InputError


def test_scores_are_the_policys_whatever_the_packing() -> None:
    policy = tiny_qwen3()
    sequences = prompts(9, seed=3, longest=40)
    for prefill in (16, 8192):
        engine = engine_of(policy, prefill_tokens=prefill)
        assert isinstance(engine, Scoring)
        scores = engine.score(sequences, temperature=0.7, top=4)
        for ids, score in zip(sequences, scores, strict=True):
            assert score.logprobs.shape == (len(ids) - 1,) and score.top_ids.shape == (len(ids) - 1, 4)
            if len(ids) == 1:
                continue
            wanted, _ = policy(Packed.whole([ids.tolist()]), 0.7)
            np.testing.assert_allclose(score.logprobs, wanted.detach().numpy(), atol=1e-4)
            assert (np.diff(score.top_logprobs, axis=1) <= 0).all()
            for place, token in enumerate(ids[1:]):  # a token among the best has the best's own value
                for best, value in zip(score.top_ids[place], score.top_logprobs[place], strict=True):
                    assert best != token or value == score.logprobs[place]


def test_scoring_disturbs_no_running_sample() -> None:
    request = Request("r", prompts(2)[1], Sampling(max_new_tokens=30), seed=4, n=3)
    alone, disturbed = engine_of(tiny_qwen3()), engine_of(tiny_qwen3())
    found = []
    for engine in (alone, disturbed):
        engine.submit(request)
        mine = []
        while engine.unfinished:
            mine += engine.step()
            if engine is disturbed:
                engine.score(prompts(3, seed=9), top=1)
        found.append({c.index: c.token_ids.tolist() for c in mine})
    assert found[0] == found[1]


@pytest.mark.parametrize(("ids", "said"), [([], "0 tokens"), ([1] * 600, "at most 512"), ([1, 999], "outside the 258")])
def test_what_cannot_be_scored_is_refused(ids: list[int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        engine_of(tiny_qwen3()).score([np.array(ids, np.int32)])


def test_what_was_drawn_adds_up_to_the_completions() -> None:
    engine = engine_of(tiny_qwen3())
    assert isinstance(engine, Streaming)
    engine.submit(Request("a", prompts(2)[1], Sampling(max_new_tokens=40), seed=1, n=18))  # two of them wait
    engine.submit(Request("b", prompts(3)[2], Sampling(max_new_tokens=9), seed=2))
    since = {("a", index): 0 for index in range(18)}
    seen: dict[tuple[str, int], list[int]] = {key: [] for key in since}
    logprobs: dict[tuple[str, int], list[float]] = {key: [] for key in since}
    done: dict[tuple[str, int], Completion] = {}
    while engine.unfinished:
        done |= {(c.request_id, c.index): c for c in engine.step()}
        for drawn in engine.drawn(since):
            key = drawn.request_id, drawn.index
            assert key in since and len(drawn.token_ids) == 1  # a token a step, of those that were asked for
            seen[key] += drawn.token_ids.tolist()
            logprobs[key] += drawn.logprobs.tolist()
            since[key] += 1
    for key, ids in seen.items():  # the last token comes with the completion
        assert ids == done[key].token_ids[:-1].tolist() and logprobs[key] == done[key].logprobs[:-1].tolist()
    assert engine.drawn(since) == []
