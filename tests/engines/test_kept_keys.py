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
from strop.engines.torch.kv import KeptTurn, KeptTurns, PrefillJob
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
    engine = engine_of(policy, native=native, prefill_tokens=64, slots=32, shrink=False)
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
    engine = engine_of(policy, native=native, prefill_tokens=64, slots=32, shrink=False)
    again = next_turns(list(run(engine, first_turns()).values()), "b")
    assert max(len(request.prompt_ids) for request in again) > 40  # beyond every window
    for request in again:
        engine.submit(request)
    for one in drain(engine):
        assert np.allclose(one.logprobs, policy_scores(policy, one)[0], atol=1e-4)


def test_a_third_turn_and_the_same_bits_whatever_runs_beside() -> None:
    policy = tiny_qwen3()

    def played(slots: int, beside: int) -> dict[str, Completion]:
        engine = engine_of(policy, slots=slots, shrink=False)
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

    one, other = played(32, 1), played(48, 7)
    assert len(one) == 20 and one.keys() == other.keys()
    for name, completion in one.items():
        assert np.array_equal(completion.token_ids, other[name].token_ids)
        assert np.array_equal(completion.logprobs, other[name].logprobs)


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
    policy = tiny_qwen3()

    def played(beginners: int) -> tuple[dict[str, Completion], int]:
        engine = engine_of(policy, slots=32, shrink=False)
        turns = list(run(engine, first_turns()).values())
        if beginners:
            run(engine, requests(prompts(beginners, seed=1), SAMPLING))
        jobs = computed(monkeypatch)
        found = run(engine, next_turns(sorted(turns, key=lambda one: (one.request_id, one.index)), "b"))
        return {one.request_id: one for one in found.values()}, sum(job.past > 0 for job in jobs)

    alone, continued = played(0)
    beside, fewer = played(22)  # ten of which take slots in which others have run
    assert continued > 15 and fewer < continued
    for name, one in alone.items():
        assert np.array_equal(one.token_ids, beside[name].token_ids)
        assert np.allclose(one.logprobs, beside[name].logprobs, atol=1e-5)


def test_the_turns_by_value() -> None:
    ids = np.arange(9)
    kept = KeptTurns()
    kept.keep("a", KeptTurn(1, ids[:5], 0))
    found = kept.before("a", ids)
    assert found is not None and found.slot == 1 and kept.holds(1)
    assert kept.before("a", ids[:5]) is None  # nothing would be left to feed
    assert kept.before("a", np.array([0, 1, 2, 9, 4, 5])) is None  # others than those that were kept
    kept.keep("a", KeptTurn(2, ids[:3], 1))
    assert not kept.holds(1) and kept.holds(2)
    kept.keep("b", KeptTurn(3, ids[:4], 2))
    kept.forget_before(2)
    assert kept.before("a", ids) is None and kept.before("b", ids) is not None
    kept.drop(3)
    assert kept.before("b", ids) is None and not kept.holds(3)
