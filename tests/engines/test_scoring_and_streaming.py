"""How the embedded engine scores given tokens: whatever the packing, and beside running samples."""

from __future__ import annotations

import numpy as np
from tests.engines.runs import engine_of, prompts
from tests.tiny import tiny_qwen3

from strop.engines.protocol import Request, Sampling, Scoring
from strop.model.policy import PackedInputs


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
            wanted, _ = policy(PackedInputs.whole([ids.tolist()]), 0.7)
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
