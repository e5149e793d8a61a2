"""Completions as chains of sampled and injected spans: an implementation of several turns, in the embedded engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tests.engines.runs import drain, engine_of, policy_logprobs
from tests.tiny import byte_tokenizer, tiny_qwen3

from strop.base.types import FinishReason
from strop.engines.continuation import Chain, Continuation, ContinuationPlan, Ending, Phase, StopStrings, StopWatch
from strop.engines.protocol import Request, Sampling

PROMPT = np.array([5, 17, 80], np.int32)
EOS = 256
REPLY = tuple(byte_tokenizer()("go on").input_ids)


@dataclass
class Turns:
    """`turns` spans of `budget` tokens at most, a reply behind each but the last, whatever ended it."""

    turns: int
    budget: int

    def first(self) -> Phase:
        return Phase(self.budget)

    def next(self, token_ids: list[int], ending: Ending) -> Phase | FinishReason:
        self.turns -= 1
        return Phase(self.budget, REPLY) if self.turns else ("stop" if ending == "stop" else "length")


class TurnsPlan(ContinuationPlan):
    def continuation(self, key: int) -> Continuation:
        return Turns(3, 6)


def test_an_engine_injects_as_often_as_it_is_told() -> None:
    policy = tiny_qwen3()
    engine = engine_of(policy)
    engine.submit(Request("x", PROMPT, Sampling(max_new_tokens=100), seed=3, n=8))
    engine._scheduler.waiting[0].plan = TurnsPlan(100, 100)
    found = drain(engine)
    assert len(found) == 8
    for completion in found:
        ids, at = completion.token_ids.tolist(), 0
        for turn in range(3):
            start = at
            while at - start < 6 and (at == start or ids[at - 1] != EOS):
                assert not completion.injected[at]
                at += 1
            if turn < 2:
                assert tuple(ids[at : at + len(REPLY)]) == REPLY and completion.injected[at : at + len(REPLY)].all()
                at += len(REPLY)
        assert at == len(ids) and completion.finish_reason == ("stop" if ids[-1] == EOS else "length")
        own = ~completion.injected
        np.testing.assert_allclose(completion.logprobs[own], policy_logprobs(policy, completion)[own], atol=1e-4)
        assert not completion.logprobs[~own].any()


def test_texts_are_looked_for_since_the_last_injection_only() -> None:
    tokenizer = byte_tokenizer()
    chain = Chain(Turns(3, 50), StopWatch(frozenset({EOS}), ("abc",), StopStrings(tokenizer)))
    ids = list(tokenizer("xxab").input_ids)
    assert chain.ending(ids) is None
    assert chain.follow(ids, "budget") is None and chain.phase.inject == REPLY
    ids += [*REPLY, *tokenizer("c").input_ids]
    assert chain.ending(ids) is None, "a stop string across an injection"
    ids += tokenizer("abc").input_ids
    assert chain.ending(ids) == "stop"
    assert chain.injected(len(ids)).nonzero()[0].tolist() == list(range(4, 4 + len(REPLY)))
    assert chain.interrupted_at(len(ids)) == 4 and chain.interrupted_at(4) is None
