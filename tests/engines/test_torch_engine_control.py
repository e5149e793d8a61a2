"""The embedded engine under control: cancel, pause, weights, versions, failures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engines.runs import drain, engine_of, policy_logprobs, prompts, requests, run
from tests.tiny import tiny_qwen3
from torch import Tensor

from strop.attention import AttentionContext
from strop.engines.base import KvMode, Request, Sampling
from strop.policy import Packed
from strop.types import InputError, StropError

LONG = Sampling(max_new_tokens=40, temperature=1.0)


def fresh(seed: int, tie: bool = True) -> dict[str, Tensor]:
    return tiny_qwen3(seed, tie=tie).weights()


def test_cancel_reports_what_was_sampled_and_what_never_started():
    engine = engine_of(tiny_qwen3())
    for request in requests(prompts(3), LONG, n=10):
        engine.submit(request)
    early = [c for _ in range(3) for c in engine.step()]
    assert engine.unfinished == 30 - len(early)
    engine.cancel("1")
    reported = [c for c in engine.step() if c.request_id == "1"]
    assert len([c for c in early if c.request_id == "1"]) + len(reported) == 10
    assert all(c.finish_reason == "abort" for c in reported)
    assert sorted({len(c.token_ids) for c in reported}) == [0, 3]
    with pytest.raises(InputError, match="no unfinished request"):
        engine.cancel("1")
    rest = drain(engine)
    assert len(early) + len(reported) + len(rest) >= 30 - 10 and engine.unfinished == 0
    reference = run(engine_of(tiny_qwen3()), requests(prompts(3), LONG, n=10))
    for completion in rest:
        assert completion.token_ids.tolist() == reference[completion.request_id, completion.index].token_ids.tolist()


def test_pause_keeps_and_abort_ends():
    policy = tiny_qwen3()
    todo = requests(prompts(5), LONG, n=4)
    reference = run(engine_of(policy), todo)
    engine = engine_of(policy)
    for request in todo:
        engine.submit(request)
    found = engine.step() + engine.step()
    engine.pause()
    before = engine.unfinished
    assert engine.step() == [] and engine.unfinished == before
    with pytest.raises(InputError, match="paused"):
        engine.submit(Request("late", np.zeros(1, np.int32), LONG, seed=0))
    engine.resume()
    found += drain(engine)
    assert len(found) == 20
    assert all(c.token_ids.tolist() == reference[c.request_id, c.index].token_ids.tolist() for c in found)

    engine = engine_of(policy)
    for request in todo:
        engine.submit(request)
    found = engine.step()
    engine.pause("abort")
    found += engine.step()
    assert len(found) == 20 and engine.unfinished == 0
    assert {c.finish_reason for c in found} >= {"abort"}
    assert engine.health().running == engine.health().waiting == 0


def test_an_id_is_unique_while_unfinished():
    engine = engine_of(tiny_qwen3())
    request = Request("x", np.zeros(2, np.int32), Sampling(max_new_tokens=2), seed=0)
    engine.submit(request)
    with pytest.raises(InputError, match="unfinished"):
        engine.submit(request)
    drain(engine)
    engine.submit(request)
    assert len(drain(engine)) == 1


def broken(weights: dict[str, Tensor], what: str) -> dict[str, Tensor]:
    name = "model.layers.1.mlp.up_proj.weight"
    changed = dict(weights)
    match what:
        case "shape":
            changed[name] = changed[name][1:]
        case "dtype":
            changed[name] = changed[name].double()
        case "finite":
            changed[name] = changed[name].clone()
            changed[name][3, 4] = torch.nan
        case "missing":
            del changed[name]
        case "unknown":
            changed["model.layers.7.mlp.up_proj.weight"] = changed[name]
        case "tied":
            changed["lm_head.weight"] = changed["model.embed_tokens.weight"] + 1
    return changed


@pytest.mark.parametrize("what", ["shape", "dtype", "finite", "missing", "unknown", "tied", "version", "twice"])
def test_a_bad_update_changes_nothing(what: str):
    engine = engine_of(tiny_qwen3(0), share_parameters=False)
    engine.set_version(4)
    before = {name: tensor.clone() for name, tensor in engine.policy.weights().items()}
    source = broken(fresh(1), what)
    given = [*source.items(), *list(source.items())[:1]] if what == "twice" else source
    with pytest.raises(InputError):
        engine.update_weights(given, 3 if what == "version" else 5)
    assert engine.weight_version == 4
    assert all(torch.equal(before[name], tensor) for name, tensor in engine.policy.weights().items())


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("form", ["mapping", "pairs", "with the tied head"])
def test_an_update_is_what_the_trainer_has(tie: bool, form: str):
    trainer = tiny_qwen3(1, tie=tie)
    engine = engine_of(tiny_qwen3(0, tie=tie), share_parameters=False)
    probe = prompts(2, longest=30)[1]
    expected = trainer(Packed.whole([probe.tolist()]), 1.0)[0].detach().numpy()
    assert not np.allclose(engine.verify_weights(probe), expected, atol=1e-2)
    source = trainer.model.state_dict() if form == "with the tied head" else trainer.weights()
    engine.update_weights(iter(source.items()) if form == "pairs" else source, 1)
    np.testing.assert_allclose(engine.verify_weights(probe), expected, atol=1e-5)
    assert engine.weight_version == 1


def test_the_engines_copy_is_its_own_and_the_shared_one_is_not():
    trainer = tiny_qwen3(0)
    copied, shared = engine_of(trainer, share_parameters=False), engine_of(trainer)
    probe = prompts(2, longest=30)[1]
    before = copied.verify_weights(probe)
    with torch.no_grad():
        for parameter in trainer.parameters():
            parameter.add_(0.05)
    shared.set_version(1)
    assert np.array_equal(copied.verify_weights(probe), before)
    assert not np.allclose(shared.verify_weights(probe), before, atol=1e-2)
    shared.update_weights(trainer.weights(), 2)  # its own tensors: nothing to write
    assert shared.weight_version == 2
    with pytest.raises(InputError, match="trainer's own parameters"):
        shared.update_weights(fresh(3), 3)
    with pytest.raises(InputError, match="share_parameters"):
        engine_of(trainer, dtype="bfloat16")


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_versions_are_recorded_and_recompute_is_fresh(kv: KvMode):
    engine = engine_of(tiny_qwen3(0), share_parameters=False)
    new = tiny_qwen3(1)
    todo = requests(prompts(6), LONG, n=2)
    for request in todo:
        engine.submit(request)
    found = [c for _ in range(7) for c in engine.step()]
    engine.update_weights(new.weights(), 5, kv=kv)
    found += drain(engine)
    spanning = [c for c in found if len(c.token_ids) > 7]
    assert len(found) == 12 and len(spanning) > 4
    old = tiny_qwen3(0)
    gaps = []
    for completion in spanning:
        assert completion.versions == ((0, 0, 7), (5, 7, len(completion.token_ids)))
        np.testing.assert_allclose(completion.logprobs[:7], policy_logprobs(old, completion)[:7], atol=1e-4)
        gaps.append(np.abs(completion.logprobs[7:] - policy_logprobs(new, completion)[7:]).max())
    assert max(gaps) < 1e-4 if kv == "recompute" else max(gaps) > 1e-2


def test_updates_before_the_first_token_and_in_a_row_leave_no_empty_span():
    engine = engine_of(tiny_qwen3(0))
    engine.submit(requests(prompts(1), LONG)[0])
    engine.set_version(1)
    engine.step()
    for version in (2, 2, 3):
        engine.set_version(version)
    engine.step()
    engine.set_version(3)
    completion = drain(engine)[0]
    assert completion.versions == ((1, 0, 1), (3, 1, len(completion.token_ids)))


def test_prompts_are_never_shared_across_versions():
    engine = engine_of(tiny_qwen3(0), share_parameters=False)
    new = tiny_qwen3(1)
    prompt = prompts(2, longest=40)[1]
    engine.submit(Request("x", prompt, LONG, seed=3, n=40))
    found = [c for _ in range(5) for c in engine.step()]
    engine.update_weights(new.weights(), 1)
    found += drain(engine)
    late = [c for c in found if c.versions[0].version == 1]
    assert len(found) == 40 and len(late) >= 24
    for completion in late:
        np.testing.assert_allclose(completion.logprobs, policy_logprobs(new, completion), atol=1e-4)


def test_samples_of_a_request_share_one_prefill(monkeypatch: pytest.MonkeyPatch):
    policy = tiny_qwen3()
    rows: list[int] = []
    hidden = policy.hidden

    def counted(ids: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        rows.append(len(ids))
        return hidden(ids, positions, context)

    monkeypatch.setattr(policy, "hidden", counted)
    engine = engine_of(policy, shrink=False)
    prompt = np.arange(30, dtype=np.int32)
    found = run(engine, [Request("x", prompt, LONG, seed=3, n=40)])
    assert sum(rows) - 16 * len(rows) == 29  # beside 16 rows a step, the prompt but its last token, once
    for completion in found.values():
        np.testing.assert_allclose(completion.logprobs, policy_logprobs(policy, completion), atol=1e-4)


def test_shrinking_moves_sequences_without_a_trace():
    policy = tiny_qwen3()
    rng = np.random.default_rng(1)
    todo = [
        Request(str(i), prompt, Sampling(max_new_tokens=int(rng.integers(1, 90))), seed=i)
        for i, prompt in enumerate(prompts(96, longest=30))
    ]
    fixed = run(engine_of(policy, slots=96, shrink=False), todo)
    shrunk = run(engine_of(policy, slots=96), todo)
    for key, completion in fixed.items():
        assert completion.token_ids.tolist() == shrunk[key].token_ids.tolist()
        np.testing.assert_allclose(completion.logprobs, shrunk[key].logprobs, atol=1e-5)


def test_overflow_ends_the_engine_loudly():
    policy = tiny_qwen3()
    engine = engine_of(policy)
    engine.submit(requests(prompts(1), LONG)[0])
    with torch.no_grad():
        policy.head_weight.fill_(torch.inf)
    with pytest.raises(StropError, match="not finite"):
        engine.step()
    assert not engine.health().ok
    with pytest.raises(InputError, match="make a new one"):
        engine.step()


def test_health_and_close():
    engine = engine_of(tiny_qwen3())
    for request in requests(prompts(3), LONG, n=10):
        engine.submit(request)
    assert (engine.health().running, engine.health().waiting) == (0, 30)
    finished = len(engine.step())
    assert engine.health().ok and engine.health().running == 16 - finished and engine.health().waiting == 14
    engine.close()
    assert not engine.health().ok
    with pytest.raises(InputError, match="closed"):
        engine.step()
