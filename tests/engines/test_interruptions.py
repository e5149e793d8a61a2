"""Length control in the embedded engine: budgets of thinking and answer, forced interruptions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.engines.contract import EOS, PROMPT
from tests.engines.length_contract import PHRASE as SHORT
from tests.engines.length_contract import TOKENIZER, ids_of, thinking_ends
from tests.engines.length_contract import interrupted as sampling
from tests.engines.runs import drain, engine_of, policy_logprobs, policy_scores, prompts, requests, run
from tests.made import PROBLEM, rollout
from tests.tiny import tiny_qwen3

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.aggregation import TokenMean
from strop.base.types import Completion, Group, InputError, Rollout
from strop.engines.continuation import ContinuationPlan
from strop.engines.protocol import PHRASE, Interruption, KvMode, Request, Sampling
from strop.engines.sampling import stream_key, uniforms
from strop.training.packing import pack
from strop.training.samples import make_candidates, make_samples

POLICY = tiny_qwen3()


def expect_interrupted(completion: Completion, free: Completion, phrase: str = SHORT) -> int:
    """The position of the phrase, after everything that must hold around it has been checked."""
    at = completion.interrupted_at
    assert at is not None
    ids, end = ids_of(phrase), at + len(ids_of(phrase))
    assert completion.token_ids[:at].tolist() == free.token_ids[:at].tolist()
    assert completion.token_ids[at:end].tolist() == ids
    assert completion.injected.nonzero()[0].tolist() == list(range(at, end))
    assert not completion.logprobs[at:end].any()
    expected, entropies = policy_scores(POLICY, completion)
    sampled = ~completion.injected
    np.testing.assert_allclose(completion.logprobs[sampled], expected[sampled], atol=1e-4)
    assert completion.entropies is not None and not completion.entropies[at:end].any()
    np.testing.assert_allclose(completion.entropies[sampled], entropies[sampled], atol=1e-4)
    assert completion.versions == ((0, 0, len(completion.token_ids)),)
    return at


def test_the_phrase_of_the_paper_is_the_default():
    assert Interruption(after=(10_000, 12_000)).phrase == PHRASE
    assert PHRASE.endswith("</think>") and PHRASE.startswith("Okay, time is up.")


def test_positions_are_uniform_and_nothing_before_them_changes():
    count = 300
    todo = [Request("x", PROMPT, sampling(3, 7, answer_tokens=4), seed=5, n=count)]
    plain = [Request("x", PROMPT, Sampling(max_new_tokens=7), seed=5, n=count)]
    found, free = run(engine_of(POLICY, slots=128), todo), run(engine_of(POLICY, slots=128), plain)
    positions = []
    for key, completion in found.items():
        if completion.interrupted_at is None:  # the model ended it first
            assert completion.token_ids.tolist() == free[key].token_ids[: len(completion.token_ids)].tolist()
            assert completion.finish_reason == "stop" and len(completion.token_ids) <= 7
            continue
        positions.append(expect_interrupted(completion, free[key]))
        answer = len(completion.token_ids) - positions[-1] - len(ids_of(SHORT))
        assert answer == 4 or (1 <= answer < 4 and completion.token_ids[-1] == EOS)
        assert (completion.finish_reason == "length") == (completion.token_ids[-1] != EOS)
    assert len(positions) > 0.8 * count
    assert stats.chisquare(np.bincount(positions, minlength=8)[3:]).pvalue > 1e-3


def test_completions_depend_on_seed_and_sample_only():
    ids = prompts(8)
    kinds = [sampling(2, 12, answer_tokens=5), Sampling(max_new_tokens=25), sampling(0, 0), sampling(9, 20, "x")]
    todo = [Request(str(i), prompt, kinds[i % 4], seed=i, n=4) for i, prompt in enumerate(ids)]
    reference = run(engine_of(POLICY, slots=64, shrink=False), todo)
    for variant in (
        run(engine_of(POLICY, slots=17), todo[::-1]),
        {key: c for request in todo for key, c in run(engine_of(POLICY), [request]).items()},
    ):
        assert variant.keys() == reference.keys()
        for key, completion in reference.items():
            assert variant[key].token_ids.tolist() == completion.token_ids.tolist()
            assert variant[key].injected.tolist() == completion.injected.tolist()
            assert variant[key].interrupted_at == completion.interrupted_at
    plain = [c for (name, _), c in reference.items() if int(name) % 4 == 1]
    assert plain and all(c.interrupted_at is None and not c.injected.any() for c in plain)
    assert {c.interrupted_at for (name, _), c in reference.items() if int(name) % 4 == 2} == {0}


def test_injected_tokens_are_never_trained():
    found = run(engine_of(POLICY), [Request("x", PROMPT, sampling(4, 9, answer_tokens=8), seed=2, n=4)])
    verdict = rollout(1).verdict
    group = Group(3, PROBLEM, tuple(Rollout(PROBLEM, c, verdict, float(i)) for (_, i), c in sorted(found.items())))
    samples = make_samples(make_candidates([group], {3}, "none"), GroupRelative(normalization="none"))
    interrupted = 0
    for sample, (_, completion) in zip(samples, sorted(found.items()), strict=True):
        trained = sample.trained[len(PROMPT) :]
        assert trained.tolist() == (~completion.injected).tolist()
        interrupted += completion.interrupted_at is not None
    assert interrupted >= 3
    update = pack(samples, TokenMean(), 10_000)
    assert update.trained_tokens == sum(int((~c.injected).sum()) for c in found.values())
    batch = update.micro_batches[0]
    logprob, _ = POLICY(batch.packed, 1.0)
    np.testing.assert_allclose(batch.tokens.generator_logprob, logprob.detach(), atol=1e-4)


def marker_of(free: Completion) -> str:
    """Two letters that a free completion holds, so that it ends its own thinking by them."""
    tokens = free.token_ids.tolist()
    texts = [str(TOKENIZER.decode(tokens[t : t + 2])) for t in range(len(tokens) - 1)]
    return next(text for text in texts[2:] if len(text) == 2 and text.isascii() and text.isprintable())


def test_thinking_that_ends_by_itself_is_left_alone_and_its_answer_is_bounded():
    free = run(engine_of(POLICY), requests(prompts(5), Sampling(max_new_tokens=60), n=8))
    tried = 0
    for (name, index), completion in free.items():
        if len(completion.token_ids) < 30 or tried == 4:
            continue
        marker = marker_of(completion)
        end = thinking_ends(completion.token_ids.tolist(), marker)
        assert end is not None
        tried += 1
        for position, own in ((end, True), (end + 1, True), (end - 1, False)):
            asked = sampling(position, position, end_of_thinking=marker, answer_tokens=3)
            todo = [Request("x", completion.prompt_ids, asked, 1000 + int(name), index + 1)]
            found = run(engine_of(POLICY), todo)["x", index]
            if own:
                assert found.interrupted_at is None and not found.injected.any()
                assert found.token_ids.tolist() == completion.token_ids[: end + 3].tolist()
            else:
                assert expect_interrupted(found, completion) == end - 1
    assert tried == 4


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_lengths_are_what_the_budgets_say(data: st.DataObject):
    """Budgets without any force, against a reading of the free completion from its start."""
    total = data.draw(st.integers(2, 40))
    thinking = data.draw(st.none() | st.integers(1, total - 1))
    answer = data.draw(st.none() | st.integers(1, total - (thinking or 0)))
    marker = data.draw(st.sampled_from(["e", "a", "never"]))
    seed = data.draw(st.integers(0, 5))
    asked = Sampling(max_new_tokens=total, thinking_tokens=thinking, answer_tokens=answer, end_of_thinking=marker)
    found = run(engine_of(POLICY), [Request("x", PROMPT, asked, seed, n=16)])
    free = run(engine_of(POLICY), [Request("x", PROMPT, Sampling(max_new_tokens=total), seed, n=16)])
    for key, completion in found.items():
        tokens = free[key].token_ids.tolist()
        end = thinking_ends(tokens[: total if thinking is None else thinking], marker)
        limit = (thinking or total) if end is None else min(total, end + (answer or total))
        assert completion.token_ids.tolist() == tokens[:limit]
        assert completion.finish_reason == ("stop" if completion.token_ids[-1] == EOS else "length")


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_interruptions_of_any_length_and_position(data: st.DataObject):
    phrase = data.draw(st.sampled_from(["x", "</think>", SHORT, "é…"]))
    first = data.draw(st.integers(0, 20))
    last = data.draw(st.integers(first, 24))
    answer = data.draw(st.none() | st.integers(1, 9))
    spare = data.draw(st.integers(0, 5))
    total = last + len(ids_of(phrase)) + (answer or 1) + spare
    asked = sampling(first, last, phrase, answer_tokens=answer, max_new_tokens=total)
    seed = data.draw(st.integers(0, 3))
    found = run(engine_of(POLICY), [Request("x", PROMPT, asked, seed, n=8)])
    free = run(engine_of(POLICY), [Request("x", PROMPT, Sampling(max_new_tokens=24), seed, n=8)])
    for key, completion in found.items():
        assert len(completion.token_ids) <= total
        if completion.interrupted_at is None:
            assert completion.finish_reason == "stop" and len(completion.token_ids) <= last
            continue
        at = expect_interrupted(completion, free[key], phrase)
        assert first <= at <= last
        full = min(total, at + len(ids_of(phrase)) + (answer or total))
        assert len(completion.token_ids) == full or completion.token_ids[-1] == EOS


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_weights_swapped_within_a_phrase(kv: KvMode):
    engine = engine_of(tiny_qwen3(0), share_parameters=False)
    new = tiny_qwen3(1)
    engine.submit(Request("x", PROMPT, sampling(4, 4), seed=1, n=4))
    found = [c for _ in range(4 + 6) for c in engine.step()]  # the phrase has 16 tokens
    engine.update_weights(new.weights(), 2, kv=kv)
    found += drain(engine)
    gaps = []
    for completion in (c for c in found if c.interrupted_at is not None):
        assert completion.versions == ((0, 0, 10), (2, 10, len(completion.token_ids)))
        assert completion.token_ids[4:20].tolist() == ids_of(SHORT)
        gaps.append(np.abs(completion.logprobs[20:] - policy_logprobs(new, completion)[20:]).max())
    assert len(gaps) >= 3
    assert max(gaps) < 1e-4 if kv == "recompute" else max(gaps) > 1e-2


def test_an_abort_within_a_phrase_reports_what_there_is():
    for steps, at, injected in ((4, None, 0), (5, 4, 1), (11, 4, 7)):
        engine = engine_of(POLICY)
        engine.submit(Request("x", PROMPT, sampling(4, 4), seed=1))
        for _ in range(steps):
            assert engine.step() == []
        engine.cancel("x")
        (completion,) = engine.step()
        assert completion.finish_reason == "abort" and len(completion.token_ids) == steps
        assert completion.interrupted_at == at and int(completion.injected.sum()) == injected
    engine.submit(Request("y", PROMPT, Sampling(max_new_tokens=25), seed=1))  # into the slot that was interrupted
    (plain,) = drain(engine)
    assert not plain.injected.any()


def test_stop_strings_are_not_looked_for_in_or_across_a_phrase():
    free = run(engine_of(POLICY), [Request("x", PROMPT, sampling(4, 4, "abc"), seed=1)])["x", 0]
    stops = ["abc", "bc", "c" + str(TOKENIZER.decode(free.token_ids[7:8])), str(TOKENIZER.decode(free.token_ids[3:5]))]
    asked = sampling(4, 4, "abc", stop=tuple(stops))
    assert run(engine_of(POLICY), [Request("x", PROMPT, asked, seed=1)])["x", 0].token_ids.tolist() == (
        free.token_ids.tolist()
    )
    after = str(TOKENIZER.decode(free.token_ids[7:9]))
    ended = run(engine_of(POLICY), [Request("x", PROMPT, sampling(4, 4, "abc", stop=after), seed=1)])["x", 0]
    assert ended.finish_reason == "stop" and ended.token_ids.tolist() == free.token_ids[:9].tolist()


def test_a_marker_in_the_prompt_does_not_count():
    prompt = np.array(ids_of("<think></think><think>"), np.int32)
    completion = run(engine_of(POLICY), [Request("x", prompt, sampling(2, 2), seed=1)])["x", 0]
    assert completion.interrupted_at == 2
    assert SHORT in completion.text


REFUSED = [
    ({"thinking_tokens": 50, "answer_tokens": 15}, "thinking_tokens=50 .*65"),
    ({"answer_tokens": 61}, "answer_tokens=61"),
    ({"interruption": {"after": (7, 3)}}, "after"),
    ({"interruption": {"after": (3, 30)}, "thinking_tokens": 29}, "thinking_tokens=29"),
    ({"interruption": {"after": (3, 50)}, "answer_tokens": 10}, "max_new_tokens=61"),
    ({"interruption": {"after": (3, 4), "phrase": ""}}, "phrase"),
    ({"interruption": {"after": (-1, 4)}}, "after"),
    ({"thinking_tokens": 0}, "thinking_tokens"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_settings_that_contradict_each_other(fields: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        Sampling.model_validate({"max_new_tokens": 60, **fields})


def test_what_only_the_tokenizer_can_tell_is_refused_at_submit():
    engine = engine_of(POLICY)
    for asked, message in (
        (sampling(3, 50), "max_new_tokens=67"),
        (sampling(3, 5, "stop<eos>"), "stop<eos>"),
    ):
        with pytest.raises(InputError, match=message):
            engine.submit(Request("x", PROMPT, asked, seed=0))
        with pytest.raises(InputError, match=message):
            engine.check(asked)
    assert engine.unfinished == 0


def test_where_a_sample_is_interrupted_says_nothing_about_its_tokens():
    """Position and first token come from streams apart; a shared one would force some first tokens early."""
    plan = ContinuationPlan.of(sampling(0, 30), TOKENIZER, ())
    keys = [stream_key(seed, index) for seed in range(200) for index in range(10)]
    positions = np.array([plan.position(key) for key in keys])
    for token in (0, 1, 30):
        drawn = uniforms(np.array(keys, np.uint64), np.full(len(keys), token))
        assert abs(np.corrcoef(positions, drawn)[0, 1]) < 0.1
    assert stats.chisquare(np.bincount(positions, minlength=31)).pvalue > 1e-3
