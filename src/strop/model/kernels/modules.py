"""Modules of transformers that compute with one kernel where they have a dozen PyTorch operators.

    fuse(model, strop.model.kernels.native.load())     # RMSNorm, rotary attention and SwiGLU in C

Of models outside `FAMILIES` only linear layers change, on a CPU that does not multiply bfloat16. A module changes its class, not its parameters: names, hooks,
adapters, copies and exports stay what they are. Where its input does not fit the kernels it computes as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.base.types import IntArray
from strop.model.attention import strop_attention
from strop.model.attention_kinds import PLAIN, AttentionKind
from strop.model.kernels.native import LayerKernels, Products

# What the names of a family's classes begin with. All compute a decoder layer alike; experts stay the module's.
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe")


class _Fused:
    kernels: ClassVar[LayerKernels]


class _FusedLinear(_Fused, nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        if not self.kernels.products.fits(self.weight) or input.dtype != self.weight.dtype:
            return super().forward(input)
        found: Tensor = _Linear.apply(input, self.weight, self.bias, self.kernels.products)
        return found


class _Linear(torch.autograd.Function):
    """x · weightᵀ + bias, with both gradients, summed in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, products: Products) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.products = products
        return products.forward(x.flatten(0, -2), weight, bias, x.dtype).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        up, rows, products = up.flatten(0, -2), x.flatten(0, -2), ctx.products
        return (
            products.grad_input(up, weight).view_as(x) if ctx.needs_input_grad[0] else None,
            products.grad_weight(up, rows, weight.dtype) if ctx.needs_input_grad[1] else None,
            up.float().sum(0).to(bias.dtype) if bias is not None and ctx.needs_input_grad[2] else None,
            None,
        )


class _FusedNorm(_Fused, nn.Module):
    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        if not self.kernels.fits(hidden_states, self.weight):
            plain: Tensor = super().forward(hidden_states)
            return plain
        return self.kernels.rms_norm(hidden_states, self.weight, self.variance_epsilon)


class _FusedGate(_Fused, nn.Module):
    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        if not self.kernels.fits(x, self.gate_proj.weight):
            plain: Tensor = super().forward(x)
            return plain
        y: Tensor = self.down_proj(self.kernels.swiglu(self.gate_proj(x), self.up_proj(x)))
        return y


class _FusedAttention(_Fused, nn.Module):
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear
    head_dim: int
    scaling: float

    # The signature and what is handed on are transformers': see its attention modules.
    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **other: Any,
    ) -> tuple[Tensor, Tensor | None]:
        whole = hidden_states.shape[0] == 1 and position_embeddings[0].shape[-1] == self.head_dim
        fits = self.kernels.fits(hidden_states, self.q_proj.weight) and self.kernels.turns(self.head_dim)
        if not whole or past_key_values is not None or not fits:
            plain: tuple[Tensor, Tensor | None] = super().forward(
                hidden_states=hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
                past_key_values=past_key_values, **other,
            )  # fmt: skip
            return plain
        cos, sin = (part[0] for part in position_embeddings)
        heads = [
            layer(hidden_states).squeeze(0).unflatten(-1, (-1, self.head_dim))
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        ]
        query, key = (
            self.kernels.rotary(states, weight, cos, sin, eps)
            for states, (weight, eps) in ((heads[0], self._norm("q_norm")), (heads[1], self._norm("k_norm")))
        )
        q, k, v = (states.transpose(0, 1)[None] for states in (query, key, heads[2]))
        output, _ = strop_attention(self, q, k, v, attention_mask, scaling=self.scaling, **other)
        return self.o_proj(output.flatten(2)), None

    def _norm(self, name: str) -> tuple[Tensor | None, float]:
        """Weight and epsilon of the norm of each head, which only Qwen3 has."""
        norm = self._modules.get(name)
        if norm is None:
            return None, 0.0
        assert isinstance(norm.weight, Tensor) and isinstance(norm.variance_epsilon, float)
        return norm.weight, norm.variance_epsilon


_PARTS: dict[str, type[nn.Module]] = {"RMSNorm": _FusedNorm, "MLP": _FusedGate, "Attention": _FusedAttention}


_made: dict[tuple[type[nn.Module], int], type[nn.Module]] = {}


def _fused(plain: type[nn.Module], how: type[nn.Module], kernels: LayerKernels) -> type[nn.Module]:
    made = _made.get((plain, id(kernels)))
    if made is None:
        made = _made[plain, id(kernels)] = type(f"Fused{plain.__name__}", (how, plain), {"kernels": kernels})
    return made


def family_of(model: PreTrainedModel) -> str | None:
    """The family whose layers the C kernels compute; None for another model, or one whose gate is not SiLU."""
    kind = type(model)
    known = next((name for name in FAMILIES if kind.__name__ == f"{name}ForCausalLM"), None)
    if known is None or not kind.__module__.startswith("transformers.") or model.config.hidden_act != "silu":
        return None
    return known


def fuse(model: PreTrainedModel, kernels: LayerKernels) -> int:
    """Let the modules of a model with strop's attention compute with kernels; how many of them now do.

    Norms, gates and attention of a supported family; and every linear layer where torch only emulates bfloat16.
    """
    family = family_of(model)
    changed = 0
    for module in model.modules():
        if type(module) is nn.Linear and kernels.products.widens:
            module.__class__ = _fused(nn.Linear, _FusedLinear, kernels)
            changed += 1
        if family is None:
            continue
        how = _PARTS.get(type(module).__name__.removeprefix(family))
        if how is not None and type(module).__name__.startswith(family):
            module.__class__ = _fused(type(module), how, kernels)
            changed += 1
    return changed


@dataclass(frozen=True, eq=False)
class SharedLayout:
    """The tokens that are computed.

    Attributes:
        token_ids: int64 [L].
        positions: int64 [L].
        rows: int64 [M], indices into L of the hidden states that predict the targets.
        ends: int64 [pieces + 1], see `LayerKernels.attention`.
        groups: int64 [groups + 1], likewise.
    """

    token_ids: Tensor
    positions: Tensor
    rows: Tensor
    ends: Tensor
    groups: Tensor

    @classmethod
    def of(cls, token_ids: Tensor, positions: Tensor, lengths: Sequence[int], rows: Tensor) -> SharedLayout:
        """The layout of packed sequences of `lengths`, of which `rows` [M] are wanted; see `policy.Packed`."""
        ids, wanted = token_ids.numpy(), rows.numpy()
        starts = np.cumsum((0, *lengths))
        if not len(wanted):  # of a rank that only takes part
            return cls(token_ids, positions, rows, torch.from_numpy(starts), torch.arange(len(starts)))
        shared, pieces = _pieces(ids, starts, wanted)
        index = np.concatenate([np.arange(start, end) for group in pieces for start, end in group])
        place = np.full(len(ids), -1)
        place[index] = np.arange(len(index))
        for copy, original, count in shared:
            place[copy : copy + count] = place[original : original + count]
        sizes = [end - start for group in pieces for start, end in group]
        taken = torch.from_numpy(index)
        return cls(
            token_ids=token_ids[taken],
            positions=positions[taken],
            rows=torch.from_numpy(place[wanted]),
            ends=torch.from_numpy(np.cumsum((0, *sizes))),
            groups=torch.from_numpy(np.cumsum((0, *(len(group) for group in pieces)))),
        )


Span = tuple[int, int]


def _pieces(ids: IntArray, starts: IntArray, rows: IntArray) -> tuple[list[tuple[int, int, int]], list[list[Span]]]:
    """Which beginnings are left out, as (start, start of the one that is there, tokens); and groups of spans of packed
    tokens that are computed, the first of each its beginning."""
    sequence = np.searchsorted(starts, rows, side="right") - 1
    first, last = np.full(len(starts) - 1, len(ids)), np.full(len(starts) - 1, -1)
    np.minimum.at(first, sequence, rows)
    np.maximum.at(last, sequence, rows)
    members: dict[bytes, list[int]] = {}
    for s in np.unique(sequence).tolist():
        # The beginning ends with the first scored row: of what follows every token may differ.
        members.setdefault(ids[starts[s] : first[s] + 1].tobytes(), []).append(s)
    shared: list[tuple[int, int, int]] = []
    pieces: list[list[Span]] = []
    for own in members.values():
        begin = int(starts[own[0]])
        if len(own) == 1:
            pieces.append([(begin, int(last[own[0]]) + 1)])
            continue
        count = int(first[own[0]]) + 1 - begin
        spans = [(int(starts[s]) + count, int(last[s]) + 1) for s in own]
        pieces.append([(begin, begin + count), *(span for span in spans if span[0] < span[1])])
        shared += [(int(starts[s]), begin, count) for s in own[1:]]
    return shared, pieces


class SharedContext:
    """Causal attention of a layout."""

    def __init__(self, layout: SharedLayout, kernels: LayerKernels) -> None:
        self.layout = layout
        self.kernels = kernels

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: AttentionKind = PLAIN
    ) -> Tensor:
        """Attention [L, H, D] of query [L, H, D] over key, value [L, K, D]; see `attention.AttentionContext`.

        Raises:
            ValueError: the layer does more than softmax; windows and chunks are the caller's to compare with lengths.
        """
        if not kind.softmax:
            raise ValueError(f"layer {layer}: the kernels know neither caps nor sinks")
        return self.kernels.attention(query, key, value, self.layout.ends, self.layout.groups, scale)
