"""The engine with pages beyond the contract: pages and their owners, sequences set aside, steps read late, kernels.

Tests of the engine with slots that say nothing of slots run here too, on the engine with pages.
"""

from __future__ import annotations

import copy
import importlib.util

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines import test_interruptions, test_scoring_and_streaming, test_torch_engine, test_torch_engine_control
from tests.engines.contract import EOS, model
from tests.engines.paged import paged_engine
from tests.engines.runs import drain, engine_of, policy_logprobs, prompts, requests, run
from tests.engines.test_interruptions import (  # noqa: F401  (they run here)
    test_an_abort_within_a_phrase_reports_what_there_is,
    test_stop_strings_are_not_looked_for_in_or_across_a_phrase,
    test_weights_swapped_within_a_phrase,
)
from tests.engines.test_scoring_and_streaming import test_scoring_disturbs_no_running_sample  # noqa: F401
from tests.engines.test_torch_engine import same, test_late_arrivals_do_not_disturb  # noqa: F401
from tests.engines.test_torch_engine_control import (  # noqa: F401
    test_shrinking_moves_sequences_without_a_trace,
    test_the_engines_copy_is_its_own_and_the_shared_one_is_not,
    test_updates_before_the_first_token_and_in_a_row_leave_no_empty_span,
)
from tests.model.test_policy import CONFIGS, model_of
from tests.tiny import byte_tokenizer, tiny_qwen3, tiny_settings
from torch import Tensor

from strop.base.types import Completion, InputError, StropError
from strop.engines.protocol import KvMode, Request, Sampling
from strop.engines.sampling import stream_key, uniforms
from strop.engines.torch import EngineSettings, TorchEngine, device_rows
from strop.engines.torch.choose import embedded_engine
from strop.engines.torch.device_rows import device_uniforms
from strop.engines.torch.kernels import LayerCache, Plan
from strop.engines.torch.kernels.plain import PlainKernels
from strop.engines.torch.paged_engine import LAG, PagedEngine
from strop.engines.torch.pages import PagePool
from strop.model.attention import AttentionContext
from strop.model.policy import Policy

LONG = Sampling(max_new_tokens=60)


@pytest.fixture(autouse=True)
def _pages_for_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (test_interruptions, test_scoring_and_streaming, test_torch_engine, test_torch_engine_control):
        monkeypatch.setattr(module, "engine_of", paged_engine)


def agree(found: dict[tuple[str, int], Completion], wanted: dict[tuple[str, int], Completion]) -> None:
    """The same tokens, log-probs and ends, up to the rounding of another order of sums."""
    assert found.keys() == wanted.keys()
    for key, completion in found.items():
        assert completion.token_ids.tolist() == wanted[key].token_ids.tolist(), key
        assert completion.finish_reason == wanted[key].finish_reason
        np.testing.assert_allclose(completion.logprobs, wanted[key].logprobs, atol=1e-5)


# ---------------------------------------------------------------------- the same completions as with slots


@pytest.mark.parametrize(
    ("name", "share"), [*((name, True) for name in CONFIGS if name != "qwen3_moe"), ("qwen2", False), ("qwen3", False)]
)
def test_completions_are_those_of_slots(name: str, share: bool) -> None:
    policy = Policy(model_of(CONFIGS[name](True)), tiny_settings())
    kinds = [
        LONG,
        Sampling(temperature=0.6, top_p=0.8, max_new_tokens=20),
        Sampling(temperature=0, max_new_tokens=9),
        Sampling(top_k=5, max_new_tokens=33, stop_token_ids=tuple(range(40, 60))),
    ]
    todo = [Request(f"{i}", ids, kinds[i % 4], seed=i, n=3) for i, ids in enumerate(prompts(10, longest=70))]
    engine = paged_engine(policy, share_parameters=share, prefill_tokens=64)
    agree(run(engine, todo), run(engine_of(policy), todo))
    assert engine.free_pages == engine.cache_pages


def test_uniforms_of_the_device_are_those_of_the_host() -> None:
    rng = np.random.default_rng(0)
    keys = np.array([stream_key(int(seed), i) for i, seed in enumerate(rng.integers(0, 1 << 40, 500))], np.uint64)
    keys[:3] = 0, (1 << 64) - 1, 1 << 63
    counts = rng.integers(0, 50_000, 500)
    found = device_uniforms(torch.from_numpy(keys.view(np.int64)), torch.from_numpy(counts))
    assert np.array_equal(found.numpy(), uniforms(keys, counts))


def test_the_host_reads_late_and_reports_nothing_drawn_after_an_end() -> None:
    policy = tiny_qwen3()
    engine = paged_engine(policy)
    engine.submit(Request("x", np.arange(5, dtype=np.int32), Sampling(max_new_tokens=3), seed=1, n=16))
    reported = []
    while engine.unfinished:
        reported.append([len(c.token_ids) for c in engine.step()])
    # Three steps are queued; the fourth call finds no row that could draw, and reads what there is.
    assert [len(one) for one in reported[:LAG]] == [0] * LAG and len(reported) == 4
    assert {length for one in reported for length in one} <= {1, 2, 3}
    ended = run(engine, [Request("y", np.arange(5, dtype=np.int32), Sampling(max_new_tokens=60), seed=5, n=64)])
    stopped = [c for c in ended.values() if c.finish_reason == "stop"]
    assert len(stopped) > 4
    for completion in stopped:
        assert completion.token_ids.tolist().index(EOS) == len(completion.token_ids) - 1
        np.testing.assert_allclose(completion.logprobs, policy_logprobs(policy, completion), atol=1e-4)


def test_more_stop_ids_than_there_was_room_for() -> None:
    policy = tiny_qwen3()
    kinds = [Sampling(max_new_tokens=40, stop_token_ids=tuple(range(count))) for count in (2, 30, 90)]
    todo = [Request(str(i), ids, kinds[i % 3], seed=i) for i, ids in enumerate(prompts(9))]
    agree(run(paged_engine(policy), todo), run(engine_of(policy), todo))


def test_a_request_with_more_stop_ids_than_there_was_room_for_is_cancelled() -> None:
    engine = paged_engine(tiny_qwen3())
    kind = Sampling(max_new_tokens=40, stop_token_ids=tuple(range(100, 130)))
    engine.submit(Request("a", np.arange(5, dtype=np.int32), kind, seed=0, n=4))
    engine.step()
    engine.cancel("a")
    assert [completion.finish_reason for completion in engine.step()] == ["abort"] * 4


def test_rows_are_sorted_for_top_p_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rows, "_SORTED", 5)  # of 16 rows
    policy = tiny_qwen3()
    todo = requests(prompts(12), Sampling(max_new_tokens=12, top_p=0.7, top_k=40))
    agree(run(paged_engine(policy), todo), run(engine_of(policy), todo))


def test_bfloat16_is_the_policys_up_to_rounding() -> None:
    policy = tiny_qwen3(dtype="bfloat16")
    for completion in run(paged_engine(policy), requests(prompts(6), Sampling(max_new_tokens=10))).values():
        np.testing.assert_allclose(completion.logprobs, policy_logprobs(policy, completion), atol=0.25)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install 'strop[gpu]'")
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the whole contract runs with them")
def test_completions_of_the_triton_kernels() -> None:
    from strop.engines.torch.kernels.triton_kernels import TritonKernels

    policy = model(0, tie=True)  # heads of 32
    todo = [
        Request("a", np.arange(37, dtype=np.int32), Sampling(max_new_tokens=2), seed=3, n=2),
        Request("b", np.arange(1, dtype=np.int32), Sampling(temperature=0, max_new_tokens=2), seed=4),
        Request("c", np.arange(15, dtype=np.int32), Sampling(temperature=0.7, max_new_tokens=2), seed=5),
    ]
    agree(run(paged_engine(policy, TritonKernels()), todo), run(engine_of(policy), todo))


@pytest.mark.gpu
def test_completions_on_a_gpu_are_those_of_a_cpu() -> None:
    """Graphs of several forms, stop strings read at once, top-p, groups and newcomers, in float32."""
    policy = model(0, tie=True)
    kinds = [LONG, Sampling(top_p=0.7, max_new_tokens=30), Sampling(stop=("e", "zq"), max_new_tokens=50)]
    todo = [Request(str(i), ids, kinds[i % 3], seed=i, n=7) for i, ids in enumerate(prompts(15, longest=90))]
    wanted = run(engine_of(policy), todo)
    for slots, pages in ((16, None), (64, None), (16, 60)):
        own = copy.deepcopy(policy).to("cuda")
        engine = paged_engine(own, share_parameters=False, slots=slots, cache_pages=pages, max_tokens=200)
        found = run(engine, todo)
        differing = [key for key in wanted if found[key].token_ids.tolist() != wanted[key].token_ids.tolist()]
        assert len(differing) <= 2, differing  # where two sums of another order fall on either side of a uniform
        assert engine.free_pages == engine.cache_pages


class Replayed:
    """In place of a CUDA graph: it runs the step that it was made of."""

    def __init__(self, steps: device_rows.Steps, form: tuple[int, Plan, bool]) -> None:
        self.steps = steps
        self.form = form

    def replay(self) -> None:
        self.steps.rows.step(*self.form)


def test_a_form_of_a_step_is_run_then_captured_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most three forms are kept; when there are more, all are dropped, and their pool of memory with them."""
    captured: list[tuple[int, Plan, bool]] = []
    kept: list[int] = []
    waited: list[object] = []

    def capture(steps: device_rows.Steps, *form) -> Replayed:
        assert steps._graphs[form] is None  # it has run once
        kept.append(len(steps._graphs))
        steps._pool = object()
        captured.append(form)
        return Replayed(steps, form)

    monkeypatch.setattr(device_rows.Steps, "_MOST", 3)
    monkeypatch.setattr(device_rows.Steps, "_captured", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    policy = tiny_qwen3()
    kinds = [LONG, Sampling(top_p=0.7, max_new_tokens=9), Sampling(max_new_tokens=30, stop_token_ids=tuple(range(9)))]
    todo = [Request(str(i), ids, kinds[i % 3], seed=i, n=3) for i, ids in enumerate(prompts(15, longest=90))]
    engine = paged_engine(policy, slots=48, max_tokens=200)
    engine._steps._use_graphs = True
    agree(run(engine, todo), run(engine_of(policy), todo))
    assert len(captured) > 3 and max(kept) <= 3 and waited


@pytest.mark.gpu
def test_graphs_are_dropped_and_captured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """More forms of a step than graphs may be kept, and stop ids for which the state is made anew."""
    monkeypatch.setattr(device_rows.Steps, "_MOST", 2)
    policy = model(0, tie=True)
    kinds = [LONG, Sampling(max_new_tokens=30, stop_token_ids=tuple(range(100, 140)))]
    todo = [Request(str(i), ids, kinds[i % 2], seed=i, n=7) for i, ids in enumerate(prompts(15, longest=90))]
    wanted = run(engine_of(policy), todo)
    found = run(paged_engine(copy.deepcopy(policy).to("cuda"), share_parameters=False, slots=64, max_tokens=200), todo)
    differing = [key for key in wanted if found[key].token_ids.tolist() != wanted[key].token_ids.tolist()]
    assert len(differing) <= 2, differing


# ---------------------------------------------------------------------- pages


@given(st.lists(st.tuples(st.sampled_from(["take", "share", "drop"]), st.integers(0, 5)), max_size=60))
def test_a_page_has_as_many_owners_as_were_given(moves: list[tuple[str, int]]) -> None:
    pool = PagePool(12)
    owners: dict[int, int] = {}
    for what, number in moves:
        if what == "take" and number <= pool.available:
            taken = pool.take(number)
            assert not set(taken) & owners.keys() and len(set(taken)) == number and 0 not in taken
            owners |= dict.fromkeys(taken, 1)
        elif what != "take" and owners:
            page = sorted(owners)[number % len(owners)]
            getattr(pool, what)([page])
            owners[page] += 1 if what == "share" else -1
            if not owners[page]:
                del owners[page]
        assert pool.available == 11 - len(owners)
    with pytest.raises(ValueError, match="pages asked for"):
        pool.take(12)
    for page in [page for page, count in owners.items() for _ in range(count)]:
        pool.drop([page])
    assert pool.available == 11
    with pytest.raises(ValueError, match="more often"):
        pool.drop([3])


def test_a_group_holds_the_full_pages_of_its_prompt_once() -> None:
    engine = paged_engine(tiny_qwen3())
    engine.submit(Request("x", np.arange(101, dtype=np.int32), LONG, seed=1, n=12))
    engine.step()
    used = engine.cache_pages - engine.free_pages
    assert used == 6 + 12  # 100 tokens fill six pages of 16 and four places of one that each sample has of its own
    engine.cancel("x")
    assert engine.free_pages == engine.cache_pages and len(engine.step()) == 12


def test_samples_that_wait_find_the_prompt_of_those_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_qwen3()
    computed: list[int] = []
    hidden = policy.hidden

    def counted(ids: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        computed.append(len(ids))
        return hidden(ids, positions, context)

    engine = paged_engine(policy)
    monkeypatch.setattr(policy, "hidden", counted)
    todo = [Request("x", np.arange(37, dtype=np.int32), Sampling(max_new_tokens=4), seed=1, n=60)]
    found = run(engine, todo)
    assert computed == [36]
    agree(found, run(engine_of(policy), todo))
    assert engine.free_pages == engine.cache_pages


def test_pages_that_run_out_set_sequences_aside_and_nothing_changes() -> None:
    policy = tiny_qwen3()
    todo = [
        Request(str(i), ids, Sampling(max_new_tokens=50), seed=i, n=2) for i, ids in enumerate(prompts(6, longest=40))
    ]
    engine = paged_engine(policy, max_tokens=96, cache_pages=12)  # one sequence may need 6
    for request in todo:
        engine.submit(request)
    found, aside = [], 0
    while engine.unfinished:
        found += engine.step()
        health = engine.health()
        aside = max(aside, len(engine._pages.parked))
        assert health.running + health.waiting >= engine.unfinished
    assert aside > 0 and engine.free_pages == engine.cache_pages
    agree({(c.request_id, c.index): c for c in found}, run(engine_of(policy), todo))
    assert all(c.versions == ((0, 0, len(c.token_ids)),) for c in found)


@settings(max_examples=6)
@given(st.data())
def test_few_pages_never_hold_anybody_up(data: st.DataObject) -> None:
    """Groups with prompts of several pages, which wait beside each other while little is left."""
    policy = tiny_qwen3()
    engine = paged_engine(policy, max_tokens=96, cache_pages=data.draw(st.integers(7, 16)))
    counts = data.draw(st.lists(st.tuples(st.integers(1, 80), st.integers(1, 5), st.integers(1, 16)), max_size=6))
    for place, (prompt, n, tokens) in enumerate(counts):
        ids = np.arange(prompt, dtype=np.int32)
        engine.submit(Request(str(place), ids, Sampling(max_new_tokens=tokens), seed=place, n=n))
    for _ in range(40 + 20 * sum(n for _, n, _ in counts)):
        for completion in engine.step():
            np.testing.assert_allclose(completion.logprobs, policy_logprobs(policy, completion), atol=1e-4)
    assert engine.unfinished == 0 and engine.free_pages == engine.cache_pages


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_a_sequence_set_aside_meets_new_weights_and_may_be_cancelled(kv: KvMode) -> None:
    old, new = tiny_qwen3(0), tiny_qwen3(1)
    engine = paged_engine(old, max_tokens=150, cache_pages=13, share_parameters=False)
    for request in [Request(str(i), np.arange(20, dtype=np.int32), Sampling(max_new_tokens=120), i) for i in range(6)]:
        engine.submit(request)
    found: list[Completion] = []
    while not engine._pages.parked:
        found += engine.step()
    engine.update_weights(new.weights(), 1, kv)
    aside = engine._pages.parked[0]
    name, done = aside.sequence.entry.request.id, len(aside.drawn)
    last = engine._pages.parked[-1].sequence.entry.request.id
    if last != name:
        engine.cancel(last)
    found += drain(engine)
    completion = next(c for c in found if c.request_id == name)
    assert completion.versions[0] == (0, 0, done) and completion.versions[1].version == 1
    # It was computed again with the new weights, whatever became of the pages of those that ran on.
    np.testing.assert_allclose(completion.logprobs[done:], policy_logprobs(new, completion)[done:], atol=1e-4)
    if last != name:
        assert next(c for c in found if c.request_id == last).finish_reason == "abort"
    assert len(found) == 6 and engine.free_pages == engine.cache_pages


def test_own_parameters_are_views_of_the_fused_ones_and_shared_ones_are_copied() -> None:
    trainer = tiny_qwen3()
    own, shared = paged_engine(trainer, share_parameters=False), paged_engine(trainer)
    layer = own.policy.model.base_model.layers[0]
    projections = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
    assert len({p.weight.untyped_storage().data_ptr() for p in projections}) == 1
    assert len({p.untyped_storage().data_ptr() for p in trainer.parameters()}) == len(list(trainer.parameters()))
    with torch.no_grad():
        for parameter in trainer.parameters():
            parameter.mul_(1.1)
    shared.set_version(1)
    own.update_weights(trainer.weights(), 1)
    todo = requests(prompts(5), Sampling(max_new_tokens=12))
    for engine in (own, shared):
        for completion in run(engine, todo).values():
            np.testing.assert_allclose(completion.logprobs, policy_logprobs(trainer, completion), atol=1e-4)
    with torch.no_grad():  # parameters that move to other memory
        for parameter in trainer.parameters():
            parameter.data = parameter * 0.8
    shared.set_version(2)
    for completion in run(shared, todo).values():
        np.testing.assert_allclose(completion.logprobs, policy_logprobs(trainer, completion), atol=1e-4)


# ---------------------------------------------------------------------- which engine, and what is refused


def test_the_settings_choose() -> None:
    policy = tiny_qwen3()
    for cache, wanted in (("auto", TorchEngine), ("slots", TorchEngine), ("paged", PagedEngine)):
        engine = embedded_engine(policy, byte_tokenizer(), EngineSettings(slots=16, cache=cache))
        assert type(engine) is wanted


class _Broken(PlainKernels):
    """Kernels that forget the last token of a context."""

    def attend(
        self, query: Tensor, cache: LayerCache, table: Tensor, lengths: Tensor, scale: float, how: Plan
    ) -> Tensor:
        return super().attend(query, cache, table, lengths - 1, scale, how)


def test_kernels_that_compute_something_else_are_found_at_the_start() -> None:
    with pytest.raises(StropError, match='differs by .* set engine.cache = "slots"'):
        paged_engine(tiny_qwen3(), _Broken())
    with pytest.raises(StropError, match="differs by"):
        paged_engine(tiny_qwen3(dtype="bfloat16"), _Broken())


def test_what_cannot_be_is_refused_in_a_line() -> None:
    experts = Policy(model_of(CONFIGS["qwen3_moe"](True)), tiny_settings())
    with pytest.raises(InputError, match="Qwen3MoeForCausalLM is none of"):
        paged_engine(experts)
    with pytest.raises(InputError, match="too few for a sequence of 512: lower engine.max_tokens"):
        paged_engine(tiny_qwen3(), cache_pages=20)
    with pytest.raises(ValueError, match="power of two"):
        EngineSettings(page_tokens=48)
