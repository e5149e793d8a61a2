"""Modules of transformers that compute with one kernel where they have a dozen PyTorch operators.

    fuse(model, strop.model.kernels.native.load())     # RMSNorm, rotary attention and gated units in C

Modules are recognized by what they compute, not by the name of their family. A module changes its class, not its
parameters: names, hooks, adapters, copies and exports stay what they are. Where its input does not fit the kernels it
computes as before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.base.types import IntArray
from strop.model.attention import PackedContext, strop_attention
from strop.model.attention_kinds import PLAIN, AttentionKind
from strop.model.kernels.native import LANES, Activation, LayerKernels, Products
from strop.model.lora import AdaptedLinear


class _Fused:
    kernels: ClassVar[LayerKernels]


class _FusedLinear(_Fused, nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        if not self.kernels.products.take(input, self.weight):
            return super().forward(input)
        found: Tensor = _Linear.apply(input, self.weight, self.bias, self.kernels.products)
        return found


class _Linear(torch.autograd.Function):
    """x · weightᵀ + bias, with both gradients, summed in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, products: Products) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.products = products
        return products.linear(x, weight, bias)

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


class FusedNorm(_Fused, nn.Module):
    """RMSNorm; `plus` as `LayerKernels.rms_norm` has it."""

    plus: ClassVar[bool]
    weight: Tensor

    def forward(self, hidden_states: Tensor) -> Tensor:
        """As the module's own."""
        if not self.kernels.fits(hidden_states, self.weight):
            plain: Tensor = super().forward(hidden_states)
            return plain
        return self.kernels.rms_norm(hidden_states, self.weight, epsilon(self), self.plus)


class FusedGate(_Fused, nn.Module):
    """A feed-forward part with a gated unit."""

    activation: ClassVar[Activation]
    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        """As the module's own."""
        if not self.kernels.fits(x, self.gate_proj.weight) or self.gate_proj.out_features % LANES:
            plain: Tensor = super().forward(x)
            return plain
        y: Tensor = self.down_proj(self.kernels.gated(self.gate_proj(x), self.up_proj(x), self.activation))
        return y


class FusedAttention(_Fused, nn.Module):
    """Attention with rotary positions and, in some families, a norm of every query and key."""

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
        """As the module's own."""
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
            self.kernels.rotary(states, *_of_head(self._modules.get(name), cos, sin))
            for states, name in zip(heads, ("q_norm", "k_norm"), strict=False)
        )
        q, k, v = (states.transpose(0, 1)[None] for states in (query, key, heads[2]))
        output, _ = strop_attention(self, q, k, v, attention_mask, scaling=self.scaling, **other)
        return self.o_proj(output.flatten(2)), None


def _of_head(norm: Any, cos: Tensor, sin: Tensor) -> tuple[Tensor | None, Tensor, Tensor, float, bool]:
    """What `LayerKernels.rotary` is given for a head's norm, or for none."""
    return (None, cos, sin, 0.0, False) if norm is None else (norm.weight, cos, sin, epsilon(norm), norm.plus)


def epsilon(norm: nn.Module) -> float:
    """What an RMSNorm of transformers adds to the mean of squares."""
    found = vars(norm).get("variance_epsilon", vars(norm).get("eps"))
    assert isinstance(found, float)
    return found


_made: dict[tuple[Any, ...], type[nn.Module]] = {}


def _fused(plain: type[nn.Module], how: type[nn.Module], kernels: LayerKernels, **chosen: object) -> type[nn.Module]:
    key = (plain, how, id(kernels), *chosen.items())
    if key not in _made:
        _made[key] = type(f"Fused{plain.__name__}", (how, plain), {"kernels": kernels, **chosen})
    return _made[key]


@torch.no_grad()
def fuse(model: PreTrainedModel, kernels: LayerKernels) -> int:
    """Let the modules of a model with strop's attention compute with kernels; how many of them now do.

    A module of any family does so if it has the parts of a norm, a gated unit or an attention, and the kernels give
    what it gives itself on a few tokens. Linear layers do where torch's products are slower.
    """
    changed = 0
    for module in reversed(list(model.modules())):  # parts come before what they are part of
        if isinstance(module, _Fused):
            continue
        slow = isinstance(module, nn.Linear) and kernels.products.outdo(module.weight.dtype)
        if slow and isinstance(module, AdaptedLinear):
            module.products = kernels.products
        slow = slow and type(module) is nn.Linear
        fused = _fused(nn.Linear, _FusedLinear, kernels) if slow else _nearest(module, kernels)
        if fused is not None:
            module.__class__ = fused
            changed += 1
    return changed


def _nearest(module: nn.Module, kernels: LayerKernels) -> type[nn.Module] | None:
    """The fused class that gives what the module gives, if one does."""
    gaps = {fused: _gap(module, fused, given) for fused, given in _candidates(module, kernels)}
    nearest = min(gaps, key=gaps.__getitem__, default=None)
    return nearest if nearest is not None and gaps[nearest] <= 1 else None


def unfuse(model: PreTrainedModel) -> None:
    """Undo `fuse`."""
    for module in model.modules():
        if isinstance(module, _Fused):
            module.__class__ = type(module).__bases__[1]  # see `_fused`
        elif isinstance(module, AdaptedLinear):
            module.products = None


@contextmanager
def in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Let a model compute in float32 with the weights that it has, one module's widened at a time."""
    kept: dict[nn.Module, list[tuple[nn.Parameter, Tensor]]] = {}

    def widen(module: nn.Module, given: object) -> None:
        kept[module] = [(weight, weight.data) for weight in module._parameters.values() if weight is not None]
        for weight, data in kept[module]:
            weight.data = data.float()

    def narrow(module: nn.Module, *given: object) -> None:
        for weight, data in kept.pop(module):
            weight.data = data

    hooks = []
    for module in model.modules():
        if any(weight is not None for weight in module._parameters.values()):
            hooks += [module.register_forward_pre_hook(widen), module.register_forward_hook(narrow, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


_TOKENS = 5  # of the comparison
_Given = dict[str, Any]


def _candidates(module: nn.Module, kernels: LayerKernels) -> Iterator[tuple[type[nn.Module], _Given]]:
    """Fused classes that may compute what a module does, and inputs to find that out."""
    plain = type(module)
    parts: Mapping[str, Any] = module._modules
    weight = module._parameters.get("weight")
    if weight is not None and weight.dim() == 1 and {"variance_epsilon", "eps"} & vars(module).keys():
        for plus in (False, True):
            yield _fused(plain, FusedNorm, kernels, plus=plus), {"hidden_states": _noise(len(weight), weight)}
    if _are_linear(parts, "gate_proj", "up_proj", "down_proj"):
        x = _noise(parts["gate_proj"].in_features, parts["gate_proj"].weight)
        for activation in Activation:
            yield _fused(plain, FusedGate, kernels, activation=activation), {"x": x}
    head_dim = vars(module).get("head_dim")
    if _are_linear(parts, "q_proj", "k_proj", "v_proj", "o_proj") and isinstance(head_dim, int) and head_dim % 2 == 0:
        norms = [parts[name] for name in ("q_norm", "k_norm") if parts.get(name) is not None]
        if all(isinstance(norm, FusedNorm) and len(norm.weight) == head_dim for norm in norms):
            weight = parts["q_proj"].weight
            angles = torch.arange(_TOKENS)[:, None] / torch.arange(1, head_dim // 2 + 1).repeat(2)
            yield _fused(plain, FusedAttention, kernels), {
                "hidden_states": _noise(parts["q_proj"].in_features, weight)[None],
                "position_embeddings": (angles.cos()[None].to(weight.dtype), angles.sin()[None].to(weight.dtype)),
                "attention_mask": None,
                "strop_context": PackedContext([_TOKENS], weight.device),
                "strop_positions": torch.arange(_TOKENS),
            }


def _are_linear(parts: Mapping[str, Any], *names: str) -> bool:
    return all(isinstance(parts.get(name), nn.Linear) for name in names)


def _noise(features: int, like: Tensor) -> Tensor:
    """Numbers [tokens, features] that depend on nothing else."""
    return torch.randn(_TOKENS, features, generator=torch.Generator().manual_seed(features)).to(like)


def _gap(module: nn.Module, fused: type[nn.Module], given: _Given) -> float:
    """How far what a fused class gives is from what the module gives, over what rounding accounts for."""
    if any(weight.is_meta for weight in module.parameters()):
        return 0.0  # an outline, of which only memory is asked
    plain = type(module)
    found: list[Tensor] = []
    try:
        for one in (plain, fused):
            module.__class__ = one
            out = module(**given) if len(given) > 1 else module(*given.values())
            found.append(out[0] if isinstance(out, tuple) else out)
    except (TypeError, ValueError, RuntimeError, AttributeError):  # it takes something else
        return math.inf
    finally:
        module.__class__ = plain
    own, theirs = (states.float() for states in found)
    if own.shape != theirs.shape:
        return math.inf
    rounding = 1e-5 if found[0].dtype == torch.float32 else 2.0**-7
    return float((own - theirs).norm() / own.norm()) / rounding


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
