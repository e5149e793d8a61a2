"""The C kernels of layers against float64 and against the modules of transformers, and whole policies likewise."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from strop.model.attention import NAME
from strop.model.kernels import modules, native
from strop.model.kernels.modules import SharedLayout, fuse
from strop.model.kernels.native import Activation, LayerKernels
from strop.model.policy import PackedInputs, Policy
from strop.model.settings import FreshModel, ModelSettings

SMALL = {"hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 128}  # fmt: skip
# Relative errors that rounding explains: of float32 sums, and of results and gradients kept in bfloat16.
CLOSE = {torch.float32: 3e-6, torch.bfloat16: 6e-3}
DTYPES = list(CLOSE)


def noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gap(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def held_against(
    ours: Callable[..., Tensor], exact: Callable[..., Tensor], leaves: list[Tensor], dtype: torch.dtype
) -> None:
    """Value and gradients of `ours` at the leaves rounded to a type, against `exact` at the same in float64."""
    own = [leaf.to(dtype).requires_grad_() for leaf in leaves]
    wide = [leaf.detach().double().requires_grad_() for leaf in own]
    found, wanted = ours(*own), exact(*wide)
    up = noise(*wanted.shape, seed=99).to(dtype)
    assert found.dtype == dtype and gap(found, wanted) < CLOSE[dtype]
    pairs = zip(torch.autograd.grad(found, own, up), torch.autograd.grad(wanted, wide, up.double()), strict=True)
    for one, true in pairs:
        assert one.dtype == dtype and gap(one, true) < CLOSE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize(("rows", "features"), [(1, 16), (63, 48), (130, 256)])
def test_rms_norm(rows: int, features: int, plus: bool, dtype: torch.dtype, kernels: LayerKernels):
    held_against(
        lambda x, weight: kernels.rms_norm(x, weight, 1e-6, plus),
        lambda x, weight: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (weight + plus),
        [noise(rows, features, seed=1) * 3, 1 + 0.3 * noise(features, seed=2)], dtype,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("normed", "plus"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("tokens", "heads", "features"), [(1, 1, 32), (70, 3, 64)])
def test_rotary(
    tokens: int, heads: int, features: int, normed: bool, plus: bool, dtype: torch.dtype, kernels: LayerKernels
):
    angle = torch.arange(tokens)[:, None] * 0.37 ** torch.arange(features // 2)
    cos, sin = (part.repeat(1, 2).to(dtype) for part in (angle.cos(), angle.sin()))

    def exact(x: Tensor, weight: Tensor | None = None) -> Tensor:
        if weight is not None:
            x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (weight + plus)
        return apply_rotary_pos_emb(x, x, cos.double(), sin.double(), unsqueeze_dim=1)[0]

    def ours(x: Tensor, weight: Tensor | None = None) -> Tensor:
        return kernels.rotary(x, weight, cos, sin, 1e-6, plus)

    leaves = [noise(tokens, heads, features, seed=3), 1 + 0.3 * noise(features, seed=4)]
    held_against(ours, exact, leaves if normed else leaves[:1], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [16, 80])
@pytest.mark.parametrize(("kind", "exact"), [
    (Activation.SILU, F.silu), (Activation.GELU, lambda x: F.gelu(x, approximate="tanh")),
])  # fmt: skip
def test_a_gated_unit(
    kind: Activation, exact: Callable[[Tensor], Tensor], features: int, dtype: torch.dtype, kernels: LayerKernels
):
    leaves = [noise(9, features, seed=5) * 4, noise(9, features, seed=6)]
    held_against(lambda gate, up: kernels.gated(gate, up, kind), lambda gate, up: exact(gate) * up, leaves, dtype)


@pytest.mark.parametrize("kind", Activation)
def test_a_gated_unit_of_large_and_broken_numbers(kind: Activation, kernels: LayerKernels):
    gate = torch.tensor([-1e4, -100.0, 100.0, 1e4, float("nan"), float("inf"), *[0.0] * 10]).requires_grad_()
    y = kernels.gated(gate, torch.ones(16), kind)
    (slope,) = torch.autograd.grad(y.sum(), gate)
    torch.testing.assert_close(y[:4], torch.tensor([0.0, 0.0, 100.0, 1e4]), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(slope[:4], torch.tensor([0.0, 0.0, 1.0, 1.0]), atol=1e-6, rtol=1e-6)
    assert y[4].isnan() and slope[4].isnan() and not y[5].isfinite()


def exact_attention(lengths: list[int], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each sequence with its whole table of scores."""
    group = query.shape[1] // key.shape[1]
    parts = []
    for q, k, v in zip(*(states.split(lengths) for states in (query, key, value)), strict=True):
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        hidden = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
        score = torch.einsum("qhd,khd->hqk", q, k).mul(0.3).masked_fill(hidden, -torch.inf)
        parts.append(torch.einsum("hqk,khd->qhd", score.softmax(-1), v))
    return torch.cat(parts)


def attended(kernels: LayerKernels, lengths: list[int], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Sequences that share nothing."""
    ends = torch.tensor((0, *lengths)).cumsum(0)
    return kernels.attention(query, key, value, ends, torch.arange(len(ends)), 0.3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "features"), [(4, 2, 32), (3, 3, 16), (6, 1, 64), (2, 1, 144)])
def test_attention(heads: int, kv_heads: int, features: int, dtype: torch.dtype, kernels: LayerKernels):
    lengths = [1, 16, 17, 31, 32, 33, 100]
    leaves = [noise(sum(lengths), count, features, seed=seed)
              for seed, count in enumerate((heads, kv_heads, kv_heads))]  # fmt: skip
    held_against(
        lambda q, k, v: attended(kernels, lengths, q, k, v),
        lambda q, k, v: exact_attention(lengths, q, k, v),
        leaves, dtype,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_with_shared_beginnings(dtype: torch.dtype, kernels: LayerKernels):
    """Three groups; outputs of a token and gradients are those of whole sequences, beginnings repeated in each."""
    groups = [[20, 3, 1, 40], [7], [33, 65]]  # the beginning, then what goes on from it
    sizes = [size for group in groups for size in group]
    ends, count = torch.tensor((0, *sizes)).cumsum(0), torch.tensor((0, *map(len, groups))).cumsum(0)
    index, lengths, wanted, at = [], [], [], 0
    for group in groups:
        begin, after = list(range(at, at + group[0])), at + group[0]
        for size in group[1:] or [0]:
            index += [*begin, *range(after, after + size)]
            lengths.append(group[0] + size)
            after += size
        at += sum(group)
    places = torch.tensor(index)
    for token in range(at):  # the first copy of each token
        wanted.append(index.index(token))

    def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return exact_attention(lengths, q[places], k[places], v[places])[torch.tensor(wanted)]

    leaves = [noise(at, heads, 32, seed=heads) for heads in (4, 2, 2)]
    held_against(lambda q, k, v: kernels.attention(q, k, v, ends, count, 0.3), exact, leaves, dtype)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=4), st.integers(0, 3))
def test_a_sequences_bits_do_not_depend_on_its_neighbours(lengths: list[int], before: int):
    kernels = native.load()
    if kernels is None:
        pytest.skip("no C compiler here")
    q, k, v = (noise(sum(lengths), count, 32, seed=count).float().requires_grad_() for count in (4, 2, 2))
    together = attended(kernels, lengths, q, k, v)
    grads = torch.autograd.grad(together.square().sum(), (q, k, v))
    place = before % len(lengths)
    part = slice(sum(lengths[:place]), sum(lengths[: place + 1]))
    own = [states.detach()[part].requires_grad_() for states in (q, k, v)]
    alone = attended(kernels, lengths[place : place + 1], own[0], own[1], own[2])
    assert torch.equal(alone, together[part])
    for one, all_of_them in zip(torch.autograd.grad(alone.square().sum(), own), grads, strict=True):
        assert torch.equal(one, all_of_them[part])
    # Nor on whether its beginning is shared: two pieces of one sequence are the sequence.
    half = torch.tensor((0, (lengths[place] + 1) // 2, lengths[place])).unique()
    pieces = kernels.attention(own[0], own[1], own[2], half, torch.tensor((0, len(half) - 1)), 0.3)
    assert torch.equal(pieces, alone)


def test_far_scores_and_broken_numbers(kernels: LayerKernels):
    """A score hundreds above the others takes everything, and what is not finite comes out as it."""
    query, key, value = (torch.ones(20, 1, 32) for _ in range(3))
    key[7], value[7] = 90.0, 5.0
    found = attended(kernels, [20], query, key, value)
    torch.testing.assert_close(found[:7], value[:7])
    torch.testing.assert_close(found[7:], torch.full_like(found[7:], 5.0))
    query[3] = float("nan")
    found = attended(kernels, [20], query, key, value)
    assert found[3].isnan().all() and found[:3].isfinite().all() and found[4:].isfinite().all()


def policy(model: str, dtype: torch.dtype, **changed: object) -> Policy:
    """A small one of a family, the same weights for all settings."""
    torch.manual_seed(0)
    made = {
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=32)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL | {"num_attention_heads": 2})),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)),  # heads of 16: not turned
    }[model]()
    name = "float32" if dtype == torch.float32 else "bfloat16"
    return Policy(made.to(dtype), ModelSettings(fresh=FreshModel(), dtype=name, **changed))


def test_what_no_target_needs_is_not_computed():
    """Two completions of a prompt, the second of one token; one of another prompt, which is not scored to its end; and
    one of which nothing is."""
    ids = torch.tensor([5, 6, 7, 8, 5, 6, 9, 5, 7, 1, 2, 3, 4, 4])
    positions = torch.tensor([0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, 0, 1])
    rows = torch.tensor([1, 2, 5, 8, 9])  # predict 7, 8; 9; 1, 2
    layout = SharedLayout.of(ids, positions, (4, 3, 5, 2), rows)
    assert layout.token_ids.tolist() == [5, 6, 7, 5, 7, 1] and layout.positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert layout.rows.tolist() == [1, 2, 1, 4, 5]
    assert layout.ends.tolist() == [0, 2, 3, 6] and layout.groups.tolist() == [0, 2, 3]
    nothing = SharedLayout.of(ids[:1], positions[:1], (1,), rows[:0])
    assert nothing.token_ids.tolist() == [5] and nothing.ends.tolist() == [0, 1] and len(nothing.rows) == 0


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=7))
def test_a_shared_prompt_is_as_good_as_one_each(drawn: list[tuple[int, int, int]]):
    """Sequences of three prompts: log-probs and gradients are those of every sequence by itself."""
    prompts = [[3, 1, 4], [3, 1], [2]]
    rng = np.random.default_rng(len(drawn))
    chosen = [(prompts[which], rng.integers(0, 97, size).tolist(), tail) for which, size, tail in drawn]
    ids = [token for prompt, completion, tail in chosen for token in (*prompt, *completion, *[9] * tail)]
    lengths = tuple(len(prompt) + len(completion) + tail for prompt, completion, tail in chosen)
    starts = np.cumsum((0, *lengths))
    rows = [start + len(prompt) - 1 + t for start, (prompt, completion, _) in zip(starts, chosen, strict=False)
            for t in range(len(completion))]  # fmt: skip
    positions = torch.cat([torch.arange(length) for length in lengths])
    packed = PackedInputs(
        torch.tensor(ids), positions, lengths, torch.tensor(rows), torch.tensor(ids)[torch.tensor(rows) + 1]
    )
    found = {}
    for on in (False, True):
        of = policy("qwen2", torch.float32, cpu_kernels=on)
        logprob, entropy = of(packed, 0.7)
        (logprob.sum() + entropy.sum()).backward()
        found[on] = logprob.detach(), {name: p.grad for name, p in of.named_parameters()}
    torch.testing.assert_close(found[True][0], found[False][0], atol=1e-5, rtol=1e-5)
    for name, gradient in found[False][1].items():
        torch.testing.assert_close(found[True][1][name], gradient, atol=2e-5, rtol=2e-4, msg=name)


def test_two_threads_make_the_same_gradients_every_time() -> None:
    """Two runs of a seed are equal bit for bit, however the machine's other work shifts the threads."""
    of = policy("qwen2", torch.float32, cpu_kernels=True)
    packed = PackedInputs.whole([[3, *((31 * t * t + n) % 97 for t in range(40))] for n in range(96)])  # one beginning
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first: list[Tensor] | None = None
        for _ in range(6):
            of.zero_grad(set_to_none=True)
            logprob, entropy = of(packed, 1.0)
            (logprob.sum() + 0.1 * entropy.sum()).backward()
            now = [p.grad.clone() for p in of.parameters() if p.grad is not None]
            first = now if first is None else first
            assert all(map(torch.equal, now, first))
    finally:
        torch.set_num_threads(threads)


def learned(of: Policy) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs and gradients of some tokens."""
    packed = PackedInputs.whole([[(31 * t + 5) % 97 for t in range(n)] for n in (9, 14, 40)])
    logprob, entropy = of(packed, 1.0)
    (logprob.sum() + 0.1 * entropy.sum()).backward()
    return logprob.detach(), {name: p.grad for name, p in of.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("model", ["qwen3", "qwen2", "llama"])
def test_a_policy_with_kernels_is_the_plain_one(
    model: str, checkpointing: bool, dtype: torch.dtype, kernels: LayerKernels
):
    fused = policy(model, dtype, gradient_checkpointing=checkpointing)
    exact = policy(model, dtype, cpu_kernels=False).double()
    plain = policy(model, dtype, cpu_kernels=False)
    (found, grads), (true, wanted), (before, ordinary) = learned(fused), learned(exact), learned(plain)
    assert type(fused.model.model.norm).__name__ == f"Fused{type(plain.model.model.norm).__name__}"
    assert gap(found, true) < max(1.5 * gap(before, true), CLOSE[torch.float32])
    for name, gradient in wanted.items():
        assert gap(grads[name], gradient) < max(1.5 * gap(ordinary[name], gradient), CLOSE[torch.float32]), name
    assert list(fused.state_dict()) == list(plain.state_dict())
    copied = copy.deepcopy(fused).requires_grad_(True)
    copied.zero_grad()
    again, _ = learned(copied)
    assert torch.equal(again, found)


def test_only_what_computes_the_same_is_fused_and_stays_so(kernels: LayerKernels):
    norms, layers = 4, SMALL["num_hidden_layers"]  # of a layer of Qwen3, to which its attention and gated unit come
    of = policy("qwen3", torch.float32)
    assert fused(of.model, kernels) == {"RMSNorm": layers * norms + 1, "Attention": layers, "MLP": layers}
    assert fuse(of.model, kernels) == 0
    gelu = Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=32, hidden_act="gelu", attn_implementation=NAME))
    assert fused(gelu, kernels) == {"RMSNorm": layers * norms + 1, "Attention": layers}


def fused(model: PreTrainedModel, kernels: LayerKernels) -> dict[str, int]:
    """How many modules of each kind compute with kernels, linear layers left out."""
    fuse(model, kernels)
    names = Counter(type(module).__name__ for module in model.modules())
    return {name.removeprefix("FusedQwen3"): count for name, count in names.items() if name.startswith("FusedQwen3")}


def test_without_a_compiler_a_policy_computes_as_it_did(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    monkeypatch.setenv("STROP_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "load", native.load.__wrapped__)
    assert native.load() is None
    found, plain = learned(policy("qwen3", torch.float32)), learned(policy("qwen3", torch.float32, cpu_kernels=False))
    assert torch.equal(found[0], plain[0])
    assert all(torch.equal(gradient, plain[1][name]) for name, gradient in found[1].items())
    (record,) = caplog.records  # said once, however often it is looked for
    assert "no-such-compiler" in record.message and "times slower" in record.message and "gcc" in record.message


def test_kernels_further_from_float32_than_the_modules_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(LayerKernels, "gated", lambda self, gate, up, activation: gate * up)
    monkeypatch.setattr(modules, "_gap", lambda module, fused, given: 0.0)  # as if the kernels gave the same
    found, plain = learned(policy("qwen2", torch.float32)), learned(policy("qwen2", torch.float32, cpu_kernels=False))
    assert "Qwen2ForCausalLM" in caplog.text
    torch.testing.assert_close(found[0], plain[0], atol=1e-6, rtol=1e-5)


def test_bits_do_not_depend_on_the_number_of_threads(kernels: LayerKernels):
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            q, k, v = (noise(600, heads, 32, seed=heads).float().requires_grad_() for heads in (4, 2, 2))
            weight = noise(32, seed=1).float().requires_grad_()
            out = kernels.rms_norm(attended(kernels, [100, 200, 300], q, k, v), weight, 1e-6)
            found.append((out.detach(), *torch.autograd.grad(out.sin().sum(), (q, k, v, weight))))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
