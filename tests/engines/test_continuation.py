"""Completions as chains of sampled and injected spans."""

from __future__ import annotations

from tests.tiny import byte_tokenizer

from strop.engines.continuation import Chain, ContinuationPlan, StopStrings, StopWatch

EOS = 256
PHRASE = tuple(byte_tokenizer()("go on").input_ids)


def test_texts_are_looked_for_since_the_last_injection_only() -> None:
    tokenizer = byte_tokenizer()
    plan = ContinuationPlan(100, 100, marker="</think>", phrase=PHRASE, after=(4, 4))
    chain = Chain(plan, 0, StopWatch(frozenset({EOS}), ("abc",), StopStrings(tokenizer)))
    ids = list(tokenizer("xxab").input_ids)
    assert chain.ending(ids) == "budget"
    assert chain.follow(len(ids), "budget") is None and chain.phase.inject == PHRASE
    ids += [*PHRASE, *tokenizer("c").input_ids]
    assert chain.ending(ids) is None, "a stop string across an injection"
    ids += tokenizer("abc").input_ids
    assert chain.ending(ids) == "stop"
    assert chain.injected(len(ids)).nonzero()[0].tolist() == list(range(4, 4 + len(PHRASE)))
    assert chain.interrupted_at(len(ids)) == 4 and chain.interrupted_at(4) is None
