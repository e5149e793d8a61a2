"""RMSNorm, rotary positions and SwiGLU in Triton against the modules of transformers, and whole models likewise."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

pytest.importorskip("triton")

from strop.base.types import StropError
from strop.model.kernels import layers as triton_layers
from strop.model.kernels.layers import rms_norm, rotary, swiglu
from strop.model.kernels.modules import fuse
from strop.model.policy import Packed, Policy
from strop.model.settings import FreshModel, ModelSettings

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = {"hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 1, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 128}  # fmt: skip


def noise(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def gap(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).detach().norm() / wanted.double().detach().norm())


def gradients(output: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(output, leaves, noise(*output.shape, seed=9).to(output.dtype)))


def held_against(ours: Tensor, theirs: Tensor, exact: Tensor, leaves: list[list[Tensor]]) -> None:
    """Values as the plain modules' to the bit but for rare roundings; gradients no further from the exact ones."""
    assert float((ours != theirs).float().mean()) < 0.02 and gap(ours, theirs) < 1e-3
    found, plain, wanted = (gradients(out, own) for out, own in zip((ours, theirs, exact), leaves, strict=True))
    for one, other, true in zip(found, plain, wanted, strict=True):
        assert one.dtype == torch.bfloat16 and gap(one, true) < max(1.2 * gap(other, true), 3e-3)


def three(*tensors: Tensor) -> list[list[Tensor]]:
    """The tensors twice as they are and once in float64, as leaves."""
    return [[t.detach().clone().to(kind or t.dtype).requires_grad_() for t in tensors]
            for kind in (None, None, torch.float64)]  # fmt: skip


@pytest.mark.parametrize(("rows", "features"), [(1, 16), (7, 48), (70, 256)])
def test_rms_norm(rows: int, features: int):
    norm = Qwen3RMSNorm(features, eps=1e-6).to(DEVICE, torch.bfloat16)
    leaves = three(noise(rows, features, seed=1) * 3, 1 + 0.3 * noise(features, seed=2))

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(norm, {"weight": weight}, (x,))

    x, weight = leaves[2]
    exact = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    held_against(rms_norm(leaves[0][0], leaves[0][1], 1e-6), plain(*leaves[1]), exact, leaves)


@pytest.mark.parametrize(("tokens", "heads", "features"), [(1, 1, 16), (9, 3, 32), (40, 2, 128)])
@pytest.mark.parametrize("normed", [False, True])
def test_rotary(tokens: int, heads: int, features: int, normed: bool):
    norm = Qwen3RMSNorm(features, eps=1e-6).to(DEVICE, torch.bfloat16)
    angle = torch.arange(tokens)[:, None] * 0.37 ** torch.arange(features // 2)
    cos, sin = (part.repeat(1, 2).to(DEVICE, torch.bfloat16) for part in (angle.cos(), angle.sin()))
    leaves = three(noise(tokens, heads, features, seed=3), 1 + 0.3 * noise(features, seed=4))
    if not normed:
        leaves = [own[:1] for own in leaves]

    def turned(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
        return apply_rotary_pos_emb(x, x, c, s, unsqueeze_dim=1)[0]

    def plain(x: Tensor, weight: Tensor | None = None) -> Tensor:
        return turned(x if weight is None else torch.func.functional_call(norm, {"weight": weight}, (x,)), cos, sin)

    x = leaves[2][0]
    if normed:
        x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * leaves[2][1]
    exact = turned(x, cos.double(), sin.double())
    weight = leaves[0][1] if normed else None
    held_against(rotary(leaves[0][0], weight, cos, sin, 1e-6), plain(*leaves[1]), exact, leaves)


@pytest.mark.parametrize("shape", [(1, 16), (5, 1000)])
def test_swiglu(shape: tuple[int, int]):
    leaves = three(noise(*shape, seed=5) * 4, noise(*shape, seed=6))
    silu = torch.nn.functional.silu
    ours, theirs, exact = swiglu(*leaves[0]), *(silu(gate) * up for gate, up in leaves[1:])
    held_against(ours, theirs, exact, leaves)


@pytest.mark.parametrize(
    ("model", "checkpointing"),
    [
        (lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=32)), True),
        (lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)), False),
        (lambda: LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)), False),
    ],
    ids=["qwen3", "qwen2", "llama"],
)
def test_a_fused_model_is_the_plain_one(model, checkpointing: bool):
    torch.manual_seed(0)
    settings = ModelSettings(
        fresh=FreshModel(), dtype="bfloat16", gradient_checkpointing=checkpointing, gpu_kernels=False
    )
    plain = Policy(model().to(DEVICE, torch.bfloat16), settings)
    fused, exact = copy.deepcopy(plain), copy.deepcopy(plain).double()
    layers = SMALL["num_hidden_layers"]
    norms = 4 if plain.model.config.model_type == "qwen3" else 2
    assert fuse(fused.model, triton_layers) == layers * (norms + 2) + 1 and fuse(fused.model, triton_layers) == 0
    copied = copy.deepcopy(fused)
    packed = Packed.whole([[(31 * t + 5) % 97 for t in range(n)] for n in (9, 14)]).to(torch.device(DEVICE))
    found = {}
    for name, policy in (("plain", plain), ("fused", fused), ("copied", copied), ("exact", exact)):
        logprob, entropy = policy(packed, 1.0)
        (logprob.sum() + 0.1 * entropy.sum()).backward()
        found[name] = (logprob, {key: p.grad for key, p in policy.named_parameters()})
    assert torch.equal(found["fused"][0], found["copied"][0])
    assert gap(found["fused"][0], found["plain"][0]) < 3e-3
    for key, wanted in found["exact"][1].items():
        ours, theirs = (found[name][1][key] for name in ("fused", "plain"))
        assert wanted is not None and ours is not None and theirs is not None
        assert gap(ours, wanted) < max(1.5 * gap(theirs, wanted), 1e-2), key
    assert list(fused.state_dict()) == list(plain.state_dict())


def test_other_models_and_other_types_are_left_alone():
    fresh = ModelSettings(fresh=FreshModel(), gpu_kernels=False, cpu_kernels=False)
    policy = Policy(Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=32)).to(DEVICE), fresh)
    packed = Packed.whole([[1, 2, 3, 4]]).to(torch.device(DEVICE))
    before = policy(packed, 1.0)
    assert fuse(policy.model, triton_layers) > 0
    torch.testing.assert_close(policy(packed, 1.0), before, rtol=0, atol=0)  # float32: the plain modules'
    gelu = Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=32, hidden_act="gelu"))
    assert fuse(gelu, triton_layers) == 0


def small_policy() -> Policy:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=32)).to(DEVICE, torch.bfloat16)
    return Policy(model, ModelSettings(fresh=FreshModel(), dtype="bfloat16"))


def test_a_policy_takes_kernels_after_a_comparison(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("strop.model.policy._kernels_of", lambda device: triton_layers)
    policy = small_policy()
    policy._use_kernels()  # what its first forward does
    assert {type(layer.mlp).__name__ for layer in policy.model.model.layers} == {"FusedQwen3MLP"}
    monkeypatch.setattr("strop.model.kernels.layers.swiglu", lambda gate, up: gate * up)
    with pytest.raises(StropError, match="pu_kernels=false"):
        small_policy()._use_kernels()


@pytest.mark.gpu
def test_the_first_forward_on_a_gpu_takes_them():
    policy = small_policy()
    policy(Packed.whole([[1, 2, 3, 4]]).to(policy.device), 1.0)
    assert type(policy.model.model.norm).__name__ == "FusedQwen3RMSNorm"
