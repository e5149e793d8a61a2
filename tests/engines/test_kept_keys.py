"""Sequences that are continued: from the keys and values that the engine kept of them, and as if they were computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engines.runs import drain, engine_of, policy_scores, prompts, requests, run
from tests.kit.bring import bring
from tests.model.test_policy import CONFIGS, model_of
from tests.tiny import tiny_qwen3, tiny_settings

from strop.base.types import Completion
from strop.engines.protocol import Request, Sampling
from strop.engines.torch.engine import ModelRunner, TorchEngine
from strop.engines.torch.kv import KeptKeys, PrefillJob, SlotCache
from strop.model.policy import Policy, load_policy
from strop.model.settings import ModelSettings

SAMPLING = Sampling(max_new_tokens=9)


def first_turns(count: int = 10, n: int = 2) -> list[Request]:
    return [replace(one, keeps=True) for one in requests(prompts(count), SAMPLING, n=n)]


def next_turns(turns: Sequence[Completion], name: str) -> list[Request]:
    """What goes on behind each turn and an observation of any length, from none to longer than a prompt."""
    chance = np.random.default_rng(3)
    found = []
    for place, turn in enumerate(turns):
        said = chance.integers(0, 256, int(chance.integers(0, 40))).astype(np.int32)
        ids = np.concatenate([turn.prompt_ids, turn.token_ids, said]).astype(np.int32)
        name_of, later, _ = turn.request_id.partition("~")
        continues = name_of if later else f"{turn.request_id}/{turn.index}"
        found.append(Request(f"{continues}~{name}", ids, SAMPLING, place, keeps=True, continues=continues))
    return found


def computed(monkeypatch: pytest.MonkeyPatch) -> list[PrefillJob]:
    """The prompts that engines compute from now on."""
    found: list[PrefillJob] = []
    step = ModelRunner.step

    def noted(runner: ModelRunner, width: int, jobs: Sequence[PrefillJob]) -> object:
        found.extend(jobs)
        return step(runner, width, jobs)

    monkeypatch.setattr(ModelRunner, "step", noted)
    return found


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_continued_is_what_the_policy_says(
    name: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(model_of(CONFIGS[name](True)), tiny_settings())
    engine = engine_of(policy, native=native, prefill_tokens=64)
    turns = list(run(engine, first_turns()).values())
    again = next_turns(turns, "b")
    jobs = computed(monkeypatch)
    for request in requests(prompts(6, seed=1), SAMPLING):  # beginners, which wait behind those that go on
        engine.submit(replace(request, id=f"new {request.id}"))
    for request in again:
        engine.submit(request)
    found = {one.request_id: one for one in drain(engine)}
    past = {job.past: job for job in jobs if job.past}
    assert len([job for job in jobs if job.past]) == sum(
        len(request.prompt_ids) - 1 > len(turn.prompt_ids) + len(turn.token_ids) - 1
        for request, turn in zip(again, turns, strict=True)
    )
    assert past and max(map(len, (job.token_ids for job in past.values()))) < 41
    fresh = run(engine_of(policy, native=native), [replace(one, keeps=False, continues=None) for one in again])
    for request in again:
        one = found[request.id]
        assert np.array_equal(one.token_ids, fresh[request.id, 0].token_ids)
        logprobs, entropies = policy_scores(policy, one)
        assert np.allclose(one.logprobs, logprobs, atol=1e-4)
        assert one.entropies is not None and np.allclose(one.entropies, entropies, atol=1e-4)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("family", ["mistral with a window", "llama4_text", "gpt_oss"])
def test_windows_chunks_and_sinks_hold_across_turns(family: str, native: bool, tmp_path: Path) -> None:
    policy = load_policy(ModelSettings(path=str(bring(family, "qwen3", tmp_path / "model")), chunk_tokens=7))[0]
    engine = engine_of(policy, native=native, prefill_tokens=64)
    again = next_turns(list(run(engine, first_turns()).values()), "b")
    assert max(len(request.prompt_ids) for request in again) > 40  # beyond every window
    for request in again:
        engine.submit(request)
    for one in drain(engine):
        assert np.allclose(one.logprobs, policy_scores(policy, one)[0], atol=1e-4)


def test_a_third_turn_and_the_same_bits_whatever_runs_beside() -> None:
    policy = tiny_qwen3()

    def played(slots: int, beside: int) -> dict[str, Completion]:
        engine = engine_of(policy, slots=slots)
        turns = list(run(engine, first_turns()).values())
        for name in "bc":
            turns = sorted(turns, key=lambda one: (one.request_id, one.index))
            todo = next_turns(turns, name)
            for request in requests(prompts(beside, seed=1), SAMPLING):
                engine.submit(replace(request, id=f"new {request.id}"))
            for request in todo:
                engine.submit(request)
            turns = [one for one in drain(engine) if not one.request_id.startswith("new")]
        return {one.request_id: one for one in turns}

    one, other = played(16, 1), played(48, 7)
    assert len(one) == 20 and one.keys() == other.keys()
    for name, completion in one.items():
        assert np.array_equal(completion.token_ids, other[name].token_ids)
        assert np.array_equal(completion.logprobs, other[name].logprobs)


def test_without_room_it_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_qwen3()
    kept, computing = engine_of(policy), engine_of(policy, kept_mib=0)
    turns = list(run(kept, first_turns()).values())
    assert all(np.array_equal(one.token_ids, other.token_ids) for one, other in zip(
        turns, run(computing, first_turns()).values(), strict=True))  # fmt: skip
    jobs = computed(monkeypatch)
    found = run(computing, next_turns(turns, "b"))
    assert not any(job.past for job in jobs)
    expected = run(kept, next_turns(turns, "b"))
    assert any(job.past for job in jobs)
    for key, one in expected.items():
        assert np.array_equal(found[key].token_ids, one.token_ids)
        assert np.allclose(found[key].logprobs, one.logprobs, atol=1e-5)


def weights_of(policy: Policy, factor: float) -> dict[str, torch.Tensor]:
    return {name: one.detach() * factor for name, one in policy.weights().items()}


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_new_weights_recompute_what_they_are_told_to(kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_qwen3()
    engine = engine_of(policy, share_parameters=False)
    turns = list(run(engine, first_turns()).values())
    engine.update_weights(weights_of(policy, 1.1).items(), 1, kv)  # type: ignore[arg-type]
    jobs = computed(monkeypatch)
    run(engine, next_turns(turns, "b"))
    assert any(job.past for job in jobs) == (kv == "keep")


def test_what_nobody_continued_is_dropped_after_two_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_qwen3()
    engine: TorchEngine = engine_of(policy, share_parameters=False)
    turns = list(run(engine, first_turns()).values())
    for version in (1, 2):
        engine.update_weights(weights_of(policy, 1.0).items(), version)
    jobs = computed(monkeypatch)
    run(engine, next_turns(turns, "b"))
    assert not any(job.past for job in jobs)


def test_keys_stay_in_their_slots_until_others_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With slots to spare nothing is copied; where beginners take them, what they held is copied and put back."""
    copied: list[int] = []
    taken = SlotCache.taken

    def noted(cache: SlotCache, slot: int, tokens: int) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        copied.append(slot)
        return taken(cache, slot, tokens)

    monkeypatch.setattr(SlotCache, "taken", noted)
    policy = tiny_qwen3()

    def played(beginners: int) -> dict[str, Completion]:
        engine = engine_of(policy, slots=32, shrink=False)
        turns = list(run(engine, first_turns()).values())
        copied.clear()
        if beginners:
            run(engine, requests(prompts(beginners, seed=1), SAMPLING))
        jobs = computed(monkeypatch)
        found = run(engine, next_turns(sorted(turns, key=lambda one: (one.request_id, one.index)), "b"))
        assert sum(job.past > 0 for job in jobs) > 10
        return {one.request_id: one for one in found.values()}

    alone = played(0)
    assert not copied
    beside = played(30)
    assert len(copied) == 20 - (32 - 30)
    for name, one in alone.items():
        assert np.array_equal(one.logprobs, beside[name].logprobs)


def cache_of(slots: int, tokens: int, size: int) -> SlotCache:
    """A cache of one layer whose keys tell the slot and the place."""
    cache = SlotCache(slots, torch.device("cpu"))
    cache.reserve(tokens)
    row = torch.zeros(1, 1, size)
    for part in cache.layer(0, row, row):
        part[:] = torch.arange(slots)[:, None, None, None] + torch.arange(part.shape[2])[:, None] / 1000
    return cache


def test_the_store_by_value() -> None:
    ids = np.arange(9)
    size = (1 << 20) // 4 // 8 // 8  # keys and values of 8 tokens in float32 are a quarter of a MiB
    cache = cache_of(8, 64, size)
    store = KeptKeys(cache, 1)

    def copied(name: str, slot: int, length: int = 8) -> None:
        store.keep(name, slot, ids[:length], 0)
        store.vacate(slot)
        assert not store.holds(slot)

    store.keep("a", 1, ids[:5], 0)
    assert store.holds(1) and store.slot_of("a", ids) == 1
    assert store.slot_of("a", ids[:5]) is None  # nothing would be left to feed
    assert store.slot_of("a", np.array([0, 1, 2, 9, 4, 5])) is None  # others than those that were kept
    assert store.resume("a", 1, ids) == 5 and not store.holds(1)
    assert store.resume("a", 1, ids) == 0  # it was taken out
    copied("a", 1, 5)
    keys = cache.layer(0, torch.zeros(1, 1, size), torch.zeros(1, 1, size))[0]
    assert store.resume("a", 3, ids) == 5
    assert torch.equal(keys[3, :, :5], keys[1, :, :5]) and not torch.equal(keys[3, :, 5], keys[1, :, 5])
    for slot, name in enumerate("abcde"):
        copied(name, slot)
    assert store.resume("a", 7, ids) == 0 and store.resume("b", 7, ids) == 8  # the first had to make room
    copied("c", 2, 5)  # in the place of the other
    assert [store.resume(name, 7, ids) for name in "cde"] == [5, 8, 8]
    store.keep("whole", 4, np.arange(cache.capacity), 0)
    assert not store.holds(4)  # the slot's next token would have been written over the last one
    nothing = KeptKeys(cache, 0)
    nothing.keep("a", 1, ids[:5], 0)
    assert not nothing.holds(1)
