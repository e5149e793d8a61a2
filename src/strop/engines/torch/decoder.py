"""The forward pass of one decoding step over paged keys and values, with few and large operations.

The weights of queries, keys and values are one matrix, and those of gate and up another. Where the engine has a policy
of its own the model's parameters become views of these, so that nothing is held twice and an update needs no second
copy; an engine on the trainer's parameters keeps copies, and brings them up to date with each version.

Shapes: B rows, E hidden size, H query heads, K key/value heads, D head dimension, I width of the feed-forward layers,
T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.engines.torch.kernels import Heads, Kernels, Norms, Plan
from strop.engines.torch.pages import PagedCache
from strop.model.policy import Policy

# Dense decoders of one form: norm, attention, norm, gated feed-forward, each added to what went in.
_MODELS = ("Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM")
# Rotary embeddings whose angles depend on nothing but the position.
_ROTATIONS = ("default", "linear", "llama3", "yarn")


def unsupported(policy: Policy) -> str | None:
    """Why the decoder cannot compute this policy; None if it can."""
    model, config = policy.model, policy.model.config
    name = type(model).__name__
    if name not in _MODELS:
        return f"{name} is none of {', '.join(_MODELS)}"
    rotation = model.base_model.rotary_emb.rope_type
    if rotation not in _ROTATIONS:
        return f"its rotary embedding is {rotation}"
    if config.hidden_act != "silu":
        return f"its feed-forward layers use {config.hidden_act}"
    heads = heads_of(policy)
    if model.base_model.layers[0].self_attn.q_proj.weight.shape[0] != heads.query * heads.dim:
        return "its projections have not the shape of its heads"
    if any(type(parameter.data) is not Tensor for parameter in model.parameters()):
        return "its parameters are divided among ranks"
    return None


def heads_of(policy: Policy) -> Heads:
    """The heads of a policy that is supported."""
    config = policy.model.config
    dim = policy.model.base_model.layers[0].self_attn.head_dim
    return Heads(config.num_attention_heads, config.num_key_value_heads, dim)


class _Fused:
    """Linear layers of one input as one: weight [ΣO, E] and bias [ΣO]."""

    def __init__(self, parts: Sequence[nn.Linear], own: bool) -> None:
        self._parts = None if own else parts
        self.weight = torch.cat([part.weight.detach() for part in parts])
        self.bias = None if parts[0].bias is None else torch.cat([part.bias.detach() for part in parts])
        if own:
            sizes = [len(part.weight) for part in parts]
            for part, weight in zip(parts, self.weight.split(sizes), strict=True):
                part.weight.data = weight
            if self.bias is not None:
                for part, bias in zip(parts, self.bias.split(sizes), strict=True):
                    part.bias.data = bias

    def refresh(self) -> None:
        """Copy the parameters again, where they are not views of this."""
        if self._parts is not None:
            torch.cat([part.weight for part in self._parts], out=self.weight)
            if self.bias is not None:
                torch.cat([part.bias for part in self._parts], out=self.bias)

    def __call__(self, states: Tensor) -> Tensor:
        return F.linear(states, self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class _Layer:
    first: Tensor
    qkv: _Fused
    norms: Norms | None
    out: nn.Linear
    second: Tensor
    gate_up: _Fused
    down: nn.Linear

    @classmethod
    def of(cls, layer: nn.Module, own: bool) -> _Layer:
        attention, feed = layer.self_attn, layer.mlp
        assert isinstance(attention, nn.Module) and isinstance(feed, nn.Module)
        children = dict(attention.named_children())
        norms = None
        if "q_norm" in children:
            query, key = children["q_norm"], children["k_norm"]
            norms = Norms(_parameter(query), _parameter(key), _epsilon(query))
        q, k, v, out, gate, up, down = (
            _linear(child)
            for child in (
                attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, feed.gate_proj, feed.up_proj,
                feed.down_proj,
            )
        )  # fmt: skip
        return cls(
            _parameter(layer.input_layernorm), _Fused((q, k, v), own), norms, out,
            _parameter(layer.post_attention_layernorm), _Fused((gate, up), own), down,
        )  # fmt: skip


class Decoder:
    """Last hidden states of one new token a row. `own`: the policy is nobody else's, so that its parameters may be
    rearranged in memory. `positions` is T, for which angles are kept."""

    def __init__(self, policy: Policy, kernels: Kernels, positions: int, own: bool) -> None:
        base = policy.model.base_model
        self.policy = policy
        self.kernels = kernels
        self.heads = heads_of(policy)
        self._own = own
        self._eps = _epsilon(base.layers[0].input_layernorm)
        self._scale = float(base.layers[0].self_attn.scaling)
        self._embedding = policy.model.get_input_embeddings()
        self._collect()
        like = self._embedding.weight[:1, :1].detach()
        with torch.no_grad():
            cosine, sine = base.rotary_emb(like, torch.arange(positions, device=policy.device)[None])
        self._angles = torch.stack((cosine[0], sine[0]))[..., : self.heads.dim // 2].contiguous()

    def _collect(self) -> None:
        base = self.policy.model.base_model
        self._layers = [_Layer.of(layer, self._own) for layer in base.layers]
        self._last = _parameter(base.norm)
        self._places = self._where()

    def _where(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self.policy.model.parameters()]

    @torch.no_grad()
    def refresh(self) -> bool:
        """The parameters have changed; whether they lie elsewhere now, so that graphs read what is gone."""
        if self._where() != self._places:
            self._collect()
            return True
        for layer in self._layers:
            layer.qkv.refresh()
            layer.gate_up.refresh()
        return False

    def hidden(self, token_ids: Tensor, lengths: Tensor, table: Tensor, cache: PagedCache, how: Plan) -> Tensor:
        """Last hidden states [B, E] of token_ids int64 [B], each the last of its row's `lengths` int32 [B] tokens (0:
        an empty row); their keys and values go to the cache. `table` int32 [B, ·] has each row's pages."""
        kernels, eps = self.kernels, self._eps
        residual = self._embedding(token_ids)
        states = kernels.norm(residual, self._layers[0].first, eps)
        following = [layer.first for layer in self._layers[1:]] + [self._last]
        for layer, stored, after in zip(self._layers, cache.layers, following, strict=True):
            query = kernels.rotate_and_write(
                layer.qkv(states), self.heads, layer.norms, self._angles, lengths, table, stored
            )
            attended = kernels.attend(query, stored, table, lengths, self._scale, how)
            states = kernels.add_norm(layer.out(attended.flatten(1)), residual, layer.second, eps)
            states = layer.down(kernels.gate(layer.gate_up(states)))
            states = kernels.add_norm(states, residual, after, eps)
        return states


def _linear(module: object) -> nn.Linear:
    assert isinstance(module, nn.Linear)
    return module


def _parameter(norm: object) -> Tensor:
    assert isinstance(norm, nn.Module)
    weight = norm.weight
    assert isinstance(weight, nn.Parameter)
    return weight.detach()


def _epsilon(norm: object) -> float:
    assert isinstance(norm, nn.Module)
    return float(norm.variance_epsilon)  # type: ignore[arg-type]
