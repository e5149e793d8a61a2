"""Engine steps without the layers' modules: the same numbers, by compiled kernels or by torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.engines.runs import engine_of, policy_logprobs, prompts, requests, run
from tests.model.test_policy import CONFIGS, model_of, sequences
from tests.tiny import tiny_qwen3, tiny_settings
from torch import Tensor
from transformers import GraniteConfig

from strop.base import machine
from strop.engines.protocol import Request, Sampling
from strop.engines.sampling import Draw, draw
from strop.engines.torch import fused_forward
from strop.engines.torch.fused_forward import DecodeKernels, FusedForward
from strop.model.attention import PackedContext
from strop.model.kernels import native as layers
from strop.model.kernels.native import Products
from strop.model.policy import PackedInputs as PackedTokens
from strop.model.policy import Policy
from strop.model.settings import FreshModel

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module")
def kernels() -> DecodeKernels:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    found = fused_forward.load()
    assert found is not None
    return found


def roomy(name: str) -> Policy:
    """A model of a family whose heads are of 32, as the kernels demand."""
    config = CONFIGS[name](True)
    config.head_dim, config.hidden_size = 32, 128
    return Policy(model_of(config), tiny_settings())


def wide_heads(dtype: str = "float32", generator_fp32_head: bool = True) -> Policy:
    fresh = FreshModel(
        hidden_size=32, layers=2, heads=4, kv_heads=2, head_dim=32, intermediate_size=48, max_positions=512,
        initializer_range=0.3,
    )  # fmt: skip
    return tiny_qwen3(fresh=fresh, dtype=dtype, generator_fp32_head=generator_fp32_head)


@pytest.mark.parametrize("multiplies", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_hidden_states_and_logits_are_the_modules(
    name: str, multiplies: bool, kernels: DecodeKernels, monkeypatch: pytest.MonkeyPatch
):
    if not multiplies:  # as on a processor whose vectors the products do not know
        monkeypatch.setattr(Products, "multiplies", lambda self, dtype: False)
    policy = roomy(name)
    found = FusedForward.of(policy, native=True)
    assert found is not None
    packed = PackedTokens.whole(sequences())
    context = PackedContext(packed.lengths, policy.device)
    with torch.inference_mode():
        wanted = policy.hidden(packed.token_ids, packed.positions, context)
        hidden = found.hidden(packed.token_ids, packed.positions, context)
        torch.testing.assert_close(hidden, wanted, atol=5e-5, rtol=5e-5)
        torch.testing.assert_close(found.logits(hidden), policy.logits(hidden, True), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fp32_head", [True, False])
def test_bfloat16_rounds_where_the_modules_do(fp32_head: bool, kernels: DecodeKernels):
    policy = wide_heads(dtype="bfloat16", generator_fp32_head=fp32_head)
    found = FusedForward.of(policy, native=True)
    assert found is not None
    packed = PackedTokens.whole(sequences())
    context = PackedContext(packed.lengths, policy.device)
    with torch.inference_mode():
        wanted = policy.hidden(packed.token_ids, packed.positions, context)
        hidden = found.hidden(packed.token_ids, packed.positions, context)
        # The products sum in another order, which now and then rounds the other way.
        assert (hidden == wanted).float().mean() > 0.6
        logits = found.logits(wanted)
        expected = policy.logits(wanted, fp32_head)
    rounding = (logits.bfloat16().float() == logits).float().mean()
    assert (rounding == 1) == (not fp32_head)
    torch.testing.assert_close(logits, expected, atol=1e-4 if fp32_head else 0.1, rtol=1e-4 if fp32_head else 1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_and_plain_engines_sample_alike(dtype: str, kernels: DecodeKernels):
    policy = wide_heads(dtype=dtype)
    kinds = [Sampling(temperature=0.8, max_new_tokens=40), Sampling(temperature=0, max_new_tokens=20),
             Sampling(top_k=5, max_new_tokens=10)]  # fmt: skip
    todo = [Request(f"{i}-{j}", ids, kinds[j], seed=i) for i, ids in enumerate(prompts(6)) for j in range(3)]
    for compiled in (True, False):
        found = run(engine_of(policy, native=compiled), todo)
        for (name, _), completion in found.items():
            wanted = policy_logprobs(policy, completion, kinds[int(name[-1])].temperature or 1.0)
            gap = np.abs(completion.logprobs - wanted).max()
            assert gap < (1e-4 if dtype == "float32" else 0.25)
        if dtype == "float32" and compiled:
            reference = {key: completion.token_ids.tolist() for key, completion in found.items()}
    if dtype == "float32":
        assert reference == {key: completion.token_ids.tolist() for key, completion in found.items()}


def test_a_row_has_the_same_bits_among_any_others(kernels: DecodeKernels):
    policy = wide_heads()
    todo = requests(prompts(12, longest=40), Sampling(max_new_tokens=40), n=2)
    together = run(engine_of(policy, slots=32), todo)
    loaded = layers.load()
    apart = loaded is not None and loaded.products.multiplies(torch.float32)
    for request in todo[:4]:
        for key, completion in run(engine_of(policy), [request]).items():
            assert completion.token_ids.tolist() == together[key].token_ids.tolist()
            if apart:
                assert completion.logprobs.tolist() == together[key].logprobs.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", [None, [0, 0, 15, 0, 16, 37, 100, 149]])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(2, 2, 32), (4, 2, 64), (7, 1, 32), (12, 2, 128), (3, 1, 96)]
)
def test_attention_by_value(
    dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, first: list[int] | None, kernels: DecodeKernels
):
    firsts = None if first is None else torch.tensor(first)
    generator = torch.Generator().manual_seed(heads)
    lengths = torch.tensor([1, 0, 16, 17, 64, 65, 128, 150])
    rows, capacity = len(lengths), 160

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    keys, values = drawn(rows, kv_heads, capacity, head_dim), drawn(rows, kv_heads, capacity, head_dim)
    query, key, value = drawn(rows, heads, head_dim), drawn(rows, kv_heads, head_dim), drawn(rows, kv_heads, head_dim)
    before, out = keys.clone(), torch.empty_like(query)
    kernels.decode(query, key, value, keys, values, lengths, firsts, head_dim**-0.5, out)
    assert torch.equal(keys[1], before[1]) and not out[1].any()
    for row, length in enumerate(lengths.tolist()):
        if not length:
            continue
        assert torch.equal(keys[row, :, length - 1], key[row]) and torch.equal(values[row, :, length - 1], value[row])
        begin = 0 if first is None else first[row]
        k, v = (part[row, :, begin:length].double().repeat_interleave(heads // kv_heads, 0) for part in (keys, values))
        weights = (torch.einsum("hd,hld->hl", query[row].double(), k) * head_dim**-0.5).softmax(-1)
        wanted = torch.einsum("hl,hld->hd", weights, v)
        atol = 1e-6 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(out[row].double(), wanted, atol=atol, rtol=atol)
        alone = torch.empty_like(out[:1])
        kernels.decode(query[row : row + 1], key[row : row + 1], value[row : row + 1], keys[row : row + 1],
                       values[row : row + 1], lengths[row : row + 1],
                       None if firsts is None else firsts[row : row + 1], head_dim**-0.5, alone)  # fmt: skip
        assert torch.equal(alone[0], out[row])


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm as transformers' modules round it."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    if delta is not None:
        x += delta
    return normed(x, weight, eps)


def rotate(
    x: Tensor, norms: tuple[Tensor, Tensor] | None, tables: tuple[Tensor, Tensor], positions: Tensor,
    heads: int, kv_heads: int, head_dim: int, eps: float,
) -> None:  # fmt: skip
    both = x.view(len(x), -1, head_dim)[:, : heads + kv_heads]
    if norms is not None:
        both[:, :heads] = normed(both[:, :heads], norms[0], eps)
        both[:, heads:] = normed(both[:, heads:], norms[1], eps)
    cosine, sine = (table[positions][:, None] for table in tables)
    first, second = both.chunk(2, dim=-1)
    both.copy_(both * cosine + torch.cat((-second, first), dim=-1) * sine)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_turns_and_gates_are_torchs(dtype: torch.dtype, kernels: DecodeKernels):
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype) * 3

    x, delta, weight = drawn(9, 64), drawn(9, 64), drawn(64)
    angle = torch.rand(50, 64, generator=generator) * 6
    tables = angle.cos().to(dtype), angle.sin().to(dtype)
    positions = torch.randint(50, (9,), generator=generator)
    tolerance = 1e-5 if dtype == torch.float32 else 0.0
    for given in (delta, None):
        own, theirs = x.clone(), x.clone()
        found, wanted = kernels.add_norm(own, given, weight, 1e-6), add_norm(theirs, given, weight, 1e-6)
        assert torch.equal(own, theirs)
        # A mean summed in another order may round the other way; in bfloat16 hardly ever.
        assert torch.isclose(found.float(), wanted.float(), atol=tolerance, rtol=tolerance).float().mean() > 0.99
    for norms in ((drawn(64), drawn(64)), None):
        states = drawn(9, 5 * 64)
        own, theirs = states.clone(), states.clone()
        kernels.rotate(own, norms, tables, positions, 2, 1, 64, 1e-6)
        rotate(theirs, norms, tables, positions, 2, 1, 64, 1e-6)
        assert torch.isclose(own.float(), theirs.float(), atol=tolerance, rtol=tolerance).float().mean() > 0.99
        assert torch.equal(own[:, 3 * 64 :], states[:, 3 * 64 :])
    wide = torch.cat((drawn(9, 96), torch.tensor([[-1e4, 1e4, -90.0, 90.0, 0.0] * 6] * 9).to(dtype), drawn(9, 66)), 1)
    found, wanted = kernels.gate(wide), F.silu(wide[:, :96]) * wide[:, 96:]
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("vocabulary", [5, 258, 1024, 3000])
def test_the_compiled_draw_is_torchs(vocabulary: int, kernels: DecodeKernels):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(400, vocabulary, generator=generator) * 4
    logits[:, 3] = -torch.inf
    uniform = torch.rand(400, dtype=torch.float64, generator=generator)
    uniform[0], uniform[1] = 0.0, 1 - 2.0**-53
    temperature = torch.where(torch.arange(400) % 3 == 0, 0.7, 1.0)
    greedy = torch.arange(400) % 5 == 0
    wanted, wanted_logprobs, wanted_entropies = draw(logits, Draw(uniform, temperature[:, None], greedy))
    tokens, logprobs, entropies = kernels.draw(logits.clone(), temperature, uniform, greedy)
    assert (tokens == wanted).float().mean() > 0.99  # a uniform may fall between two roundings of a sum
    assert 3 not in tokens.tolist()
    exact = (logits / temperature[:, None]).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs, exact, atol=2e-6, rtol=1e-6)
    same = tokens == wanted
    torch.testing.assert_close(logprobs[same], wanted_logprobs[same], atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(entropies, wanted_entropies, atol=5e-6, rtol=2e-6)


def test_logits_that_overflowed_give_no_finite_logprob(kernels: DecodeKernels):
    logits = torch.zeros(3, 40)
    logits[0, 7], logits[1, 8] = torch.nan, torch.inf
    ones = torch.ones(3)
    _, logprobs, _ = kernels.draw(logits, ones, torch.full((3,), 0.5, dtype=torch.float64), torch.zeros(3).bool())
    assert logprobs.isfinite().tolist() == [False, False, True]


def test_weights_changed_in_place_are_noticed():
    policy = wide_heads()
    engine = engine_of(policy)
    probe = np.arange(20, dtype=np.int32)
    first = engine.verify_weights(probe)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(0.9)
    second = engine.verify_weights(probe)
    wanted = policy(PackedTokens.whole([probe.tolist()]), 1.0)[0].detach().numpy()
    assert np.abs(first - second).max() > 1e-2
    np.testing.assert_allclose(second, wanted, atol=1e-5)
    for parameter in policy.parameters():
        parameter.data = parameter.data * 1.1  # as a trainer does that moves its parameters elsewhere
    engine.set_version(1)
    wanted = policy(PackedTokens.whole([probe.tolist()]), 1.0)[0].detach().numpy()
    np.testing.assert_allclose(engine.verify_weights(probe), wanted, atol=1e-5)


def test_models_too_large_to_copy_keep_their_own_weights(monkeypatch: pytest.MonkeyPatch):
    policy = wide_heads()
    todo = requests(prompts(6), Sampling(max_new_tokens=20))
    reference = run(engine_of(policy), todo)
    own = sum(parameter.nbytes for parameter in policy.parameters())
    monkeypatch.setattr(machine, "memory", lambda: (6 * own - 6, own))  # room for the head alone
    engine = engine_of(policy)
    found = run(engine, todo)
    monkeypatch.setattr(fused_forward, "_COPIED_PART", 0)
    assert all(np.array_equal(found[key].token_ids, reference[key].token_ids) for key in reference)
    found = run(engine_of(policy), todo)
    assert all(np.array_equal(found[key].token_ids, reference[key].token_ids) for key in reference)


def test_without_a_compiler_the_modules_compute_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    monkeypatch.setenv("STROP_CACHE", str(tmp_path))
    assert fused_forward.load.__wrapped__() is None
    monkeypatch.setattr(fused_forward, "load", fused_forward.load.__wrapped__)
    policy = wide_heads()
    engine = engine_of(policy)
    for completion in run(engine, requests(prompts(5), Sampling(max_new_tokens=12))).values():
        np.testing.assert_allclose(completion.logprobs, policy_logprobs(policy, completion), atol=1e-4)


def test_a_source_that_does_not_compile_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    broken = tmp_path / "step.c"
    broken.write_text("this is not C")
    monkeypatch.setattr(fused_forward, "_SOURCES", (broken,))
    monkeypatch.setenv("STROP_CACHE", str(tmp_path))
    assert fused_forward.load.__wrapped__() is None
    assert "step.c:1" in caplog.text and "gcc" in caplog.text


def test_other_families_go_through_their_modules():
    config = GraniteConfig(
        vocab_size=258, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, logits_scaling=1.0, pad_token_id=257, bos_token_id=None, eos_token_id=256,
    )  # fmt: skip
    granite = Policy(model_of(config), tiny_settings())
    assert FusedForward.of(granite, native=True) is None
    assert FusedForward.of(wide_heads(), native=False) is None
