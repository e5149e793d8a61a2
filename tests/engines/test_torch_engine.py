"""The embedded engine: what it samples, and what it records, beyond what the contract says of every engine."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tests.engines.runs import drain, engine_of, policy_logprobs, policy_scores, prompts, requests, run
from tests.model.test_policy import CONFIGS, model_of
from tests.tiny import tiny_qwen3, tiny_settings

from strop.base.types import Completion, InputError
from strop.engines.protocol import Request, Sampling
from strop.model.policy import Policy

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


@pytest.mark.parametrize("native", [True, False])
def test_entropies_are_the_policys_whatever_a_row_leaves_out(native: bool):
    policy = tiny_qwen3()
    kinds = {
        "plain": Sampling(temperature=0.7, max_new_tokens=15),
        "greedy": Sampling(temperature=0, max_new_tokens=9),
        "truncated": Sampling(temperature=1.3, top_k=4, top_p=0.9, max_new_tokens=12),
    }
    for names in (("plain", "greedy"), ("truncated", "plain")):  # a row with a top-k is drawn by torch, with the others
        todo = [Request(f"{name}-{i}", ids, kinds[name], i, n=3) for name in names for i, ids in enumerate(prompts(4))]
        for (request, _), completion in run(engine_of(policy, native=native), todo).items():
            temperature = kinds[request.split("-")[0]].temperature or 1.0
            assert completion.entropies is not None and completion.entropies.dtype == np.float32
            _, wanted = policy_scores(policy, completion, temperature)
            np.testing.assert_allclose(completion.entropies, wanted, atol=1e-4)


def test_more_stop_ids_than_there_was_room_for():
    """The table of stop ids widens while sequences run; each completion ends at the first of its own ids."""
    policy = tiny_qwen3()
    kinds = [Sampling(max_new_tokens=40, stop_token_ids=tuple(range(count))) for count in (2, 30, 90)]
    todo = [Request(str(i), ids, kinds[i % 3], seed=i) for i, ids in enumerate(prompts(9))]
    together = run(engine_of(policy), todo)
    for request in todo:
        found = together[request.id, 0]
        assert same(run(engine_of(policy), [request])[request.id, 0], found)
        ends = [t for t, token in enumerate(found.token_ids) if token in (*request.sampling.stop_token_ids, EOS)]
        assert ends == ([len(found.token_ids) - 1] if found.finish_reason == "stop" else [])
    assert {completion.finish_reason for completion in together.values()} == {"stop", "length"}


@pytest.mark.gpu
def test_completions_on_a_gpu_are_those_of_a_cpu():
    """Stop strings, top-p, groups and newcomers, in float32."""
    policy = tiny_qwen3()
    kinds = [
        Sampling(max_new_tokens=60),
        Sampling(top_p=0.7, max_new_tokens=30),
        Sampling(stop=("e", "zq"), max_new_tokens=50),
    ]
    todo = [Request(str(i), ids, kinds[i % 3], seed=i, n=7) for i, ids in enumerate(prompts(15, longest=90))]
    wanted = run(engine_of(policy), todo)
    found = run(engine_of(copy.deepcopy(policy).to("cuda"), slots=64), todo)
    differing = [key for key in wanted if found[key].token_ids.tolist() != wanted[key].token_ids.tolist()]
    assert len(differing) <= 2, differing  # where two sums of another order fall on either side of a uniform


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


def test_more_tokens_than_the_model_has_positions_are_refused():
    with pytest.raises(InputError, match="engine.max_tokens"):
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
