"""The embedded engine: what it samples, and what it records."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy import stats
from tests.engines.runs import drain, engine_of, policy_logprobs, prompts, requests, run
from tests.test_policy import CONFIGS, model_of
from tests.tiny import byte_tokenizer, tiny_qwen3, tiny_settings

from strop.engines.base import Request, Sampling
from strop.policy import Policy
from strop.types import Completion, InputError

EOS = 256


def generated(policy: Policy, ids: np.ndarray, tokens: int) -> list[int]:
    """What transformers' own greedy `generate` gives, its attention eager."""
    model = copy.deepcopy(policy.model)
    model.set_attn_implementation("eager")
    prompt = torch.from_numpy(ids.astype(np.int64))[None]
    mask = torch.ones_like(prompt)
    found = model.generate(prompt, attention_mask=mask, do_sample=False, max_new_tokens=tokens, pad_token_id=257)
    return found[0, len(ids) :].tolist()


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_is_generate_for_ragged_prompts_and_more_requests_than_slots(name: str):
    policy = Policy(model_of(CONFIGS[name](True)), tiny_settings())
    ids = prompts(24)
    todo = requests(ids, Sampling(temperature=0, max_new_tokens=12))
    found = run(engine_of(policy, prefill_tokens=16), todo)
    for i, prompt in enumerate(ids):
        assert found[str(i), 0].token_ids.tolist() == generated(policy, prompt, 12)
        np.testing.assert_allclose(found[str(i), 0].logprobs, policy_logprobs(policy, found[str(i), 0]), atol=1e-4)


@pytest.mark.parametrize("tie", [True, False])
def test_recorded_logprobs_are_the_policys(tie: bool):
    policy = tiny_qwen3(tie=tie)
    sampling = Sampling(temperature=0.8, max_new_tokens=80)
    found = run(engine_of(policy), requests(prompts(10), sampling, n=5))
    for completion in found.values():
        np.testing.assert_allclose(completion.logprobs, policy_logprobs(policy, completion, 0.8), atol=1e-4)
        assert completion.logprobs.dtype == np.float32 and completion.token_ids.dtype == np.int32
        assert completion.versions == ((0, 0, len(completion.token_ids)),)
        assert not completion.injected.any()
    assert {c.finish_reason for c in found.values()} == {"stop", "length"}
    for completion in found.values():
        ended = completion.token_ids[-1] == EOS
        assert (completion.finish_reason == "stop") == ended
        assert EOS not in completion.token_ids[:-1]
        assert "<eos>" not in completion.text


def same(a: Completion, b: Completion) -> bool:
    if not np.array_equal(a.token_ids, b.token_ids) or a.finish_reason != b.finish_reason:
        return False
    return bool(np.allclose(a.logprobs, b.logprobs, atol=1e-5))


def test_completions_depend_on_seed_and_sample_only():
    policy = tiny_qwen3()
    ids = prompts(12)
    todo = requests(ids, Sampling(temperature=1.0, max_new_tokens=24), n=3)
    reference = run(engine_of(policy, slots=64), todo)
    variants = {
        "few slots": run(engine_of(policy, slots=16), todo),
        "other order": run(engine_of(policy, slots=23), todo[::-1]),
        "fixed rows": run(engine_of(policy, slots=48, shrink=False), todo),
        "small prefills": run(engine_of(policy, slots=32, prefill_tokens=16), todo),
        "alone": {key: c for request in todo for key, c in run(engine_of(policy), [request]).items()},
    }
    for name, variant in variants.items():
        assert variant.keys() == reference.keys()
        assert all(same(variant[key], reference[key]) for key in reference), name
    others = run(engine_of(policy), [Request(r.id, r.prompt_ids, r.sampling, r.seed + 1, r.n) for r in todo])
    assert sum(same(others[key], reference[key]) for key in reference) <= 2
    first = [reference[str(i), 0].token_ids.tolist() for i in range(12)]
    second = [reference[str(i), 1].token_ids.tolist() for i in range(12)]
    assert first != second


def test_late_arrivals_do_not_disturb():
    policy = tiny_qwen3()
    todo = requests(prompts(12), Sampling(max_new_tokens=20), n=2)
    reference = run(engine_of(policy), todo)
    engine = engine_of(policy)
    found: list[Completion] = []
    for request in todo:
        engine.submit(request)
        found += engine.step() + engine.step()
    found += drain(engine)
    assert all(same(c, reference[c.request_id, c.index]) for c in found) and len(found) == 24


def test_frequencies_are_the_models_probabilities():
    policy = tiny_qwen3(seed=3)
    prompt = np.array([5, 17, 80], np.int32)
    count = 4000
    for temperature in (1.0, 0.5):
        sampling = Sampling(temperature=temperature, max_new_tokens=1)
        found = run(engine_of(policy, slots=256), [Request("x", prompt, sampling, seed=7, n=count)])
        drawn = np.bincount([int(c.token_ids[0]) for c in found.values()], minlength=258)
        model = copy.deepcopy(policy.model)
        model.set_attn_implementation("eager")
        logits = model(torch.from_numpy(prompt.astype(np.int64))[None]).logits[0, -1].double()
        expected = (logits / temperature).softmax(-1).detach().numpy() * count
        often = expected >= 5
        observed = np.append(drawn[often], drawn[~often].sum())
        wanted = np.append(expected[often], expected[~often].sum())
        assert stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-4


def test_top_k_and_top_p_bound_the_support_but_not_the_recorded_logprob():
    policy = tiny_qwen3()
    prompt = np.array([5, 17, 80], np.int32)
    model = copy.deepcopy(policy.model)
    model.set_attn_implementation("eager")
    probs = model(torch.from_numpy(prompt.astype(np.int64))[None]).logits[0, -1].softmax(-1).detach()
    ranked, order = probs.sort(descending=True)
    nucleus = set(order[: int((ranked.cumsum(0) < 0.6).sum()) + 1].tolist())
    cases = [
        (Sampling(top_k=3, max_new_tokens=1), set(order[:3].tolist())),
        (Sampling(top_p=0.6, max_new_tokens=1), nucleus),
        (Sampling(top_k=1, max_new_tokens=1), {int(order[0])}),
    ]
    engine = engine_of(policy, slots=64)
    todo = [Request(str(i), prompt, sampling, seed=i, n=300) for i, (sampling, _) in enumerate(cases)]
    found = run(engine, todo)
    for i, (_, support) in enumerate(cases):
        mine = [c for (name, _), c in found.items() if name == str(i)]
        assert {int(c.token_ids[0]) for c in mine} == support
        for completion in mine:
            assert completion.logprobs[0] == pytest.approx(math.log(probs[completion.token_ids[0]]), abs=1e-4)


def test_mixed_options_side_by_side():
    policy = tiny_qwen3()
    ids = prompts(4)
    kinds = [
        Sampling(temperature=0, max_new_tokens=9),
        Sampling(temperature=0.7, max_new_tokens=15),
        Sampling(top_k=4, max_new_tokens=12),
        Sampling(temperature=1.3, top_p=0.5, max_new_tokens=7),
    ]
    todo = [Request(f"{i}-{j}", ids[i], kinds[j], seed=i) for i in range(4) for j in range(4)]
    together = run(engine_of(policy), todo)
    for request in todo:
        alone = run(engine_of(policy), [request])
        assert same(alone[request.id, 0], together[request.id, 0])


def test_eos_stop_ids_and_budget():
    policy = tiny_qwen3()
    prompt = prompts(3)[2]
    free = run(engine_of(policy), [Request("a", prompt, Sampling(max_new_tokens=40), seed=4)])["a", 0]
    stop = int(free.token_ids[6])
    first = free.token_ids.tolist().index(stop)
    found = run(engine_of(policy), [Request("a", prompt, Sampling(max_new_tokens=40, stop_token_ids=(stop,)), seed=4)])
    assert found["a", 0].token_ids.tolist() == free.token_ids[: first + 1].tolist()
    assert found["a", 0].finish_reason == "stop"
    short = run(engine_of(policy), [Request("a", prompt, Sampling(max_new_tokens=5), seed=4)])["a", 0]
    assert short.token_ids.tolist() == free.token_ids[:5].tolist() and short.finish_reason == "length"
    assert short.truncated


def test_stop_strings_span_tokens_and_are_included():
    policy, tokenizer = tiny_qwen3(), byte_tokenizer()
    ascii_ids = set(tokenizer("".join(map(chr, range(33, 127)))).input_ids)
    free = run(engine_of(policy), requests(prompts(20), Sampling(max_new_tokens=60), n=4))
    tried = 0
    for (name, index), completion in free.items():
        ids = completion.token_ids.tolist()
        pairs = [t for t in range(1, len(ids)) if ids[t] in ascii_ids and ids[t - 1] in ascii_ids]
        if not pairs or tried == 5:
            continue
        tried += 1
        stop = str(tokenizer.decode(ids[pairs[-1] - 1 : pairs[-1] + 1]))
        assert len(stop) == 2
        end = next(t + 1 for t in range(1, len(ids)) if tokenizer.decode(ids[t - 1 : t + 1]) == stop)
        sampling = Sampling(max_new_tokens=60, stop=("never to be seen", stop))
        request = Request("s", completion.prompt_ids, sampling, seed=1000 + int(name), n=index + 1)
        found = run(engine_of(policy), [request])["s", index]
        assert found.token_ids.tolist() == ids[:end]
        assert found.finish_reason == "stop" and found.text.endswith(stop)
    assert tried == 5


def test_pad_equal_to_eos_changes_nothing():
    policy = tiny_qwen3()
    policy.model.config.pad_token_id = EOS
    policy.model.generation_config.pad_token_id = EOS
    found = run(engine_of(policy), requests(prompts(8), Sampling(max_new_tokens=60), n=6))
    ended = [c for c in found.values() if c.finish_reason == "stop"]
    assert ended
    for completion in ended:
        assert completion.token_ids[-1] == EOS
        np.testing.assert_allclose(completion.logprobs, policy_logprobs(policy, completion), atol=1e-4)


LONG = np.zeros(500, np.int32)
ONE = np.zeros(1, np.int32)
REFUSED = [
    (LONG, Sampling(max_new_tokens=13), 1, "exceed the engine's 512"),
    (ONE[:0], Sampling(), 1, "non-empty"),
    (np.zeros((2, 2), np.int32), Sampling(), 1, "non-empty row"),
    (np.array([258], np.int32), Sampling(), 1, "outside the 258"),
    (np.array([-1], np.int32), Sampling(), 1, "outside the 258"),
    (ONE, Sampling(stop_token_ids=(900,)), 1, "stop_token_ids"),
    (ONE, Sampling(), 0, "at least one sample"),
]


@pytest.mark.parametrize(("ids", "sampling", "n", "message"), REFUSED)
def test_requests_outside_the_limits_are_refused(ids: np.ndarray, sampling: Sampling, n: int, message: str):
    engine = engine_of(tiny_qwen3())
    with pytest.raises(InputError, match=message):
        engine.submit(Request("x", ids, sampling, seed=0, n=n))
    assert engine.unfinished == 0 and engine.step() == []


def test_the_longest_request_fits_exactly():
    found = run(engine_of(tiny_qwen3()), [Request("x", LONG, Sampling(max_new_tokens=12), seed=0)])
    assert len(found["x", 0].token_ids) == 12
    with pytest.raises(InputError, match="beyond the model's 512 positions"):
        engine_of(tiny_qwen3(), max_tokens=513)


def test_bfloat16_runs_with_the_head_in_float32():
    policy = tiny_qwen3(dtype="bfloat16")
    found = run(engine_of(policy), requests(prompts(6), Sampling(max_new_tokens=10)))
    for completion in found.values():
        np.testing.assert_allclose(completion.logprobs, policy_logprobs(policy, completion), atol=0.25)
    logits = policy.logits(torch.randn(16, 32, dtype=torch.bfloat16), policy.settings.generator_fp32_head)
    assert not torch.equal(logits, logits.bfloat16().float())


@pytest.mark.parametrize("first", range(1, 70, 6))
def test_a_slot_freed_at_the_end_of_the_cache_does_no_harm(first: int) -> None:
    """A sequence that ends just where the cache does, while a shorter one runs on (every length up to 100 tokens)."""
    policy = tiny_qwen3()
    for budget in range(first, first + 6):
        engine = engine_of(policy)
        engine.submit(Request("long", np.arange(30, dtype=np.int32), Sampling(max_new_tokens=budget), seed=1))
        engine.submit(Request("short", np.arange(2, dtype=np.int32), Sampling(max_new_tokens=budget + 9), seed=2))
        assert len(drain(engine)) == 2
