"""The forward pass of decoder models without their modules, for the steps of an engine on a CPU.

A step of few rows through transformers' layers is mostly calls: some 35 operators a layer. Here a layer is four matrix
products over weights joined and packed once a weight version (query, key and value; gate and up), and four kernels in C
(`DecodeKernels`), which the machine's compiler makes once (some seconds; see `strop.model.kernels.compiled`). It rounds
wherever the modules round, so that a generator in bfloat16 is as far from its trainer as the modules were. Models of
another structure, and machines without a compiler, go through the modules.

Shapes: N rows, E hidden size, H query heads, K key/value heads, D head dimension, F inner size, V vocabulary, P
positions.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int, c_long
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.base import machine
from strop.model.attention import AttentionContext
from strop.model.attention_kinds import AttentionKind, layer_reaches
from strop.model.kernels import native
from strop.model.kernels.compiled import Address, compiled, declared
from strop.model.kernels.modules import FusedAttention, FusedGate, FusedNorm, epsilon
from strop.model.kernels.native import Activation, PackedWeights, Products
from strop.model.policy import Policy

_SOURCES = (Path(__file__).with_name("step.c"),)
_P, _L = Address, c_long
_ARGUMENTS = {
    "add_norm": (_P, _P, _P, _P, _P, _L, _L, c_float, c_int, c_int),
    "rotate": (_P, _P, _P, _P, _P, _P, _L, _L, _L, _L, _L, c_float, c_int, c_int),
    "gate": (_P, _P, _L, _L, c_int, c_int),
    "decode": (_P, _P, _P, _L, _L, _P, _P, _P, _P, _P, _P, _L, _L, _L, _L, _L, c_float, c_int),
    "draw": (_P, _P, _P, _P, _P, _P, _P, _L, _L),
}
_HALF = {torch.float32: 0, torch.bfloat16: 1}


class DecodeKernels:
    """The functions of step.c over tensors; `fits` says which shapes they take."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._call = declared(library, _ARGUMENTS)

    @staticmethod
    def attends(dtype: torch.dtype, head_dim: int) -> bool:
        """Whether `decode` takes heads of this size and type."""
        return dtype in _HALF and head_dim % 32 == 0

    @staticmethod
    def fits(dtype: torch.dtype, head_dim: int, *sizes: int) -> bool:
        """Whether every kernel takes rows of these sizes and this type."""
        return DecodeKernels.attends(dtype, head_dim) and all(size % 16 == 0 for size in sizes)

    def add_norm(
        self, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, plus: bool = False,
        inner: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """x [N, E] += delta, in place, which is normed by `inner` first where that is given; RMSNorm(x) [N, E] by
        weight (`plus` as `LayerKernels.rms_norm` has it)."""
        out = torch.empty_like(x)
        delta = None if delta is None else delta.contiguous()
        self._call["add_norm"](x, delta, inner, weight, out, *x.shape, eps, plus, _HALF[x.dtype])
        return out

    def rotate(
        self, x: Tensor, norms: tuple[Tensor, Tensor] | None, tables: tuple[Tensor, Tensor], positions: Tensor,
        heads: int, kv_heads: int, head_dim: int, eps: float, plus: bool = False,
    ) -> None:  # fmt: skip
        """Norm (where a model does) and turn the query and key heads in x [N, (H + 2 K) D], in place."""
        weights = (None, None) if norms is None else norms
        sizes = *x.shape, heads, kv_heads, head_dim
        self._call["rotate"](x, *weights, *tables, positions, *sizes, eps, plus, _HALF[x.dtype])

    def gate(self, x: Tensor, activation: Activation = Activation.SILU) -> Tensor:
        """activation(x[:, :F]) · x[:, F:] [N, F] of x [N, 2 F]."""
        rows, size = x.shape
        out = x.new_empty(rows, size // 2)
        self._call["gate"](x, out, rows, size // 2, activation, _HALF[x.dtype])
        return out

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, lengths: Tensor,
        firsts: Tensor | None, scale: float, out: Tensor,
    ) -> None:  # fmt: skip
        """Write key and value [N, K, D] into place `lengths - 1` of slots 0..N-1 in keys, values [slots, K, C, D], and
        attend from query [N, H, D] to those from `firsts` int64 [N] (None: 0) up to `lengths` int64 [N] → out
        [N, H, D]; zeros for length 0."""
        rows, heads, head_dim = query.shape
        if key.stride(0) != value.stride(0):
            key, value = key.contiguous(), value.contiguous()
        self._call["decode"](
            query, key, value, query.stride(0), key.stride(0), keys, values, None, lengths, firsts, out, rows, heads,
            key.shape[1], head_dim, keys.shape[2], scale, _HALF[query.dtype],
        )  # fmt: skip

    def read(
        self, query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, lengths: Tensor, firsts: Tensor | None,
        scale: float, out: Tensor,
    ) -> None:  # fmt: skip
        """Attend from query [N, H, D] to the keys and values from `firsts` int64 [N] (None: 0) up to `lengths` int64
        [N] of `slots` int64 [N] in keys, values [slots, K, C, D] → out [N, H, D]; several rows may read one slot."""
        rows, heads, head_dim = query.shape
        self._call["decode"](
            query, None, None, query.stride(0), 0, keys, values, slots, lengths, firsts, out, rows, heads,
            keys.shape[1], head_dim, keys.shape[2], scale, _HALF[query.dtype],
        )  # fmt: skip

    def draw(
        self, logits: Tensor, temperature: Tensor, uniform: Tensor, greedy: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens int64 [N], log-probs and entropies float32 [N] of logits float32 [N, V], which are overwritten, by
        temperature float32 [N], uniform float64 [N] and greedy bool [N]; as `sampling.draw`."""
        rows, vocabulary = logits.shape
        tokens, logprobs, entropies = torch.empty(rows, dtype=torch.int64), torch.empty(rows), torch.empty(rows)
        self._call["draw"](logits, temperature, uniform, greedy, tokens, logprobs, entropies, rows, vocabulary)
        return tokens, logprobs, entropies


@functools.cache
def load() -> DecodeKernels | None:
    """The kernels; None where they cannot be made (see `compiled`)."""
    library = compiled("step", _SOURCES)
    return None if library is None else DecodeKernels(library)


# Positions whose rotation depends on nothing but the position.
_ROTATIONS = frozenset({"default", "linear", "llama3", "yarn"})
_COPIED_PART = 1 / 6


class Product:
    """x [N, I] times the weights of one or more linear layers that share it, outputs side by side [N, O].

    Their weights are joined in a copy, packed where the products of `kernels.products` are for this processor.
    """

    def __init__(self, layers: Sequence[nn.Linear], float_out: bool = False) -> None:
        """`float_out` sums and returns float32 whatever the type of the weights."""
        self._layers = tuple(layers)
        self._float_out = float_out
        self._products = _products_for(layers[0].weight.dtype)
        self._packed: PackedWeights | None = None
        self.refresh()

    def refresh(self) -> None:
        """Copy the layers' weights as they are now; where the kernels read them, into the same memory."""
        parts = [layer.weight.detach() for layer in self._layers]
        bias: Tensor | None = None
        if any(layer.bias is not None for layer in self._layers):
            bias = torch.cat([part.new_zeros(len(part)) if layer.bias is None else layer.bias.detach()
                              for part, layer in zip(parts, self._layers, strict=True)])  # fmt: skip
        if self._products is not None:
            self._packed = self._products.pack(parts, bias, self._packed)
            return
        weight = torch.cat(parts)
        self._weight = weight.float() if self._float_out else weight
        self._bias = bias.float() if self._float_out and bias is not None else bias

    def __call__(self, x: Tensor) -> Tensor:
        """The product, without a gradient."""
        if self._products is not None and self._packed is not None:
            return self._products.multiply(x, self._packed, self._float_out)
        return F.linear(x.to(self._weight.dtype), self._weight, self._bias)


class Uncopied:
    """The same with the layers' own weights, one after another: for models too large to have a copy of."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._layers = tuple(layers)

    def __call__(self, x: Tensor) -> Tensor:
        """The product."""
        found = [F.linear(x, layer.weight, layer.bias) for layer in self._layers]
        return found[0] if len(found) == 1 else torch.cat(found, dim=-1)


_READ, _GIVEN = "input_layernorm", "post_attention_layernorm"
_INNER_READ, _INNER_GIVEN = "pre_feedforward_layernorm", "post_feedforward_layernorm"
# By the names of a decoder layer's norms: which is of what attention reads and gives, and the feed-forward part.
_NORMS = {
    (_READ, _GIVEN): (0, None, 1, None),
    (_READ, _GIVEN, _INNER_GIVEN, _INNER_READ): (0, 1, 3, 2),
}


@dataclass(frozen=True, eq=False)
class _Layer:
    """A decoder layer: the modules it stands for, and their products; `given` are norms of what its parts give."""

    module: nn.Module
    norm: Tensor
    attention_given: Tensor | None
    inner_norm: Tensor
    inner_given: Tensor | None
    scale: float
    qkv: Product | Uncopied
    out: Product | Uncopied
    gate_up: Product | Uncopied | None
    down: Product | Uncopied | None
    activation: Activation
    query_key_norms: tuple[Tensor, Tensor] | None

    @classmethod
    def of(cls, module: Any, joined: Callable[[Sequence[nn.Linear]], Product | Uncopied]) -> _Layer:
        attention, inner = module.self_attn, module.mlp
        names = _norms_of(module)
        weights: list[Any] = [None if at is None else module.get_submodule(names[at]).weight for at in _NORMS[names]]
        gated = isinstance(inner, FusedGate)
        return cls(
            module, weights[0], weights[1], weights[2], weights[3], attention.scaling,
            qkv=joined((attention.q_proj, attention.k_proj, attention.v_proj)),
            out=joined((attention.o_proj,)),
            gate_up=joined((inner.gate_proj, inner.up_proj)) if gated else None,
            down=joined((inner.down_proj,)) if gated else None,
            activation=inner.activation if gated else Activation.SILU,
            query_key_norms=None
            if attention._modules.get("q_norm") is None
            else (attention.q_norm.weight, attention.k_norm.weight),
        )  # fmt: skip


def _norms_of(layer: nn.Module) -> tuple[str, ...]:
    return tuple(sorted(name for name, part in layer.named_children() if isinstance(part, FusedNorm)))


class FusedForward:
    """A policy's forward pass for engine steps, on the policy's parameters as they were at the last `refresh`."""

    def __init__(self, policy: Policy, kernels: DecodeKernels) -> None:
        """For a policy that `serves`, with kernels that fit it."""
        config = policy.model.config
        self.policy = policy
        self.heads, self.kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.head_dim = _head_dim(policy)
        norm: Any = policy.model.base_model.norm
        self.eps, self.plus = epsilon(norm), norm.plus
        self.dtype = policy.head_weight.dtype
        self.kernels = kernels
        self._kinds = tuple(AttentionKind(reach) for reach in layer_reaches(config))
        self._tables: dict[str | None, tuple[Tensor, Tensor]] = {}
        rotary: Any = policy.model.base_model.rotary_emb
        by_type = "layer_type" in inspect.signature(rotary.forward).parameters  # which models rotate differently by
        self._types = config.layer_types if by_type else [None] * config.num_hidden_layers
        self._products: dict[tuple[Any, ...], Product] = {}  # by type of weights and layers
        self.refresh()

    @property
    def rows_apart(self) -> bool:
        """Whether a row's bits never depend on how many rows there are, as they do in torch's products of few."""
        packed = all(isinstance(layer.down, Product) for layer in self._layers)
        return packed and _products_for(self.dtype) is not None

    @classmethod
    def of(cls, policy: Policy, native: bool) -> FusedForward | None:
        """For a policy on a CPU whose layers compute with kernels; None for any other, where it does not give what the
        policy's modules give, without a compiler, or where `native` is off."""
        if not native or not serves(policy):
            return None
        config = policy.model.config
        sizes = config.hidden_size, config.to_dict().get("intermediate_size") or 16
        fits = DecodeKernels.fits(policy.head_weight.dtype, _head_dim(policy), *sizes)
        kernels = load() if fits else None
        if kernels is None:
            return None
        found = cls(policy, kernels)
        return found if policy.agrees(found.hidden) else None

    def refresh(self) -> None:
        """Take the parameters as they are now."""
        base: Any = self.policy.model.base_model
        own = sum(parameter.nbytes for parameter in self.policy.model.parameters())
        head: Any = self.policy.model.get_output_embeddings()
        with torch.no_grad():
            # Before all the head: without a copy it is packed, or converted to float32, at every step.
            fits = copies(head.weight.nbytes)
            self._head = self._joined((head,), self.policy.settings.generator_fp32_head) if fits else None
            self._layers = [_Layer.of(one, self._joined if copies(own) else Uncopied) for one in base.layers]
        self._parameters = tuple(self.policy.model.parameters())
        self._seen = self._versions()

    def _joined(self, layers: Sequence[nn.Linear], float_out: bool = False) -> Product:
        key = (layers[0].weight.dtype, *layers)
        if key in self._products:
            self._products[key].refresh()
        else:
            self._products[key] = Product(layers, float_out)
        return self._products[key]

    def _versions(self) -> int:
        # Torch counts what is written to a tensor: an owner that changes shared parameters is noticed at the next step.
        return sum([parameter._version for parameter in self._parameters])

    def hidden(self, token_ids: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        """Last hidden states [N, E] of token_ids, positions int64 [N], attending as `context` says."""
        if self._versions() != self._seen:
            self.refresh()
        base: Any = self.policy.model.base_model
        kernels, d, norm = self.kernels, self.head_dim, (self.eps, self.plus)
        longest = int(positions.max()) + 1
        rows, h, kv = len(token_ids), self.heads, self.kv_heads
        x = base.embed_tokens(token_ids)
        delta: Tensor | None = None
        given: Tensor | None = None
        for index, layer in enumerate(self._layers):
            states = layer.qkv(kernels.add_norm(x, delta, layer.norm, *norm, given))
            tables = self._rotation(longest, self._types[index])
            kernels.rotate(states, layer.query_key_norms, tables, positions, h, kv, d, *norm)
            split = states.view(rows, -1, d)
            q, k, v = split[:, :h], split[:, h : h + kv], split[:, h + kv :]
            attended = context.attend(index, q, k, v, layer.scale, self._kinds[index])
            delta = layer.out(attended.reshape(rows, h * d))
            inner = kernels.add_norm(x, delta, layer.inner_norm, *norm, layer.attention_given)
            if layer.gate_up is None or layer.down is None:
                experts: Any = layer.module.mlp
                delta = experts(inner[None])[0]
            else:
                delta = layer.down(kernels.gate(layer.gate_up(inner), layer.activation))
            given = layer.inner_given
        return kernels.add_norm(x, delta, base.norm.weight, *norm, given)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [N, V] of hidden [N, E], as the policy's settings want a generator's head."""
        if self._head is None:
            return self.policy.logits(hidden, self.policy.settings.generator_fp32_head)
        return self.policy.logit_form(self._head(hidden).float())

    def _rotation(self, positions: int, kind: str | None) -> tuple[Tensor, Tensor]:
        """Cosines and sines [P, D] of at least so many positions in layers of a type, by the model's own module."""
        found = self._tables.get(kind)
        if found is None or len(found[0]) < positions:
            base: Any = self.policy.model.base_model
            count = 64 << max(0, (positions - 1).bit_length() - 6)
            more = {} if kind is None else {"layer_type": kind}
            cosine, sine = base.rotary_emb(base.embed_tokens.weight[:1], torch.arange(count)[None], **more)
            self._tables[kind] = found = (cosine[0].contiguous(), sine[0].contiguous())
        return found


def copies(size: int) -> bool:
    """Whether weights of so many bytes are copied for their products: of at most this part of the memory."""
    return size <= machine.memory()[0] * _COPIED_PART


def _products_for(dtype: torch.dtype) -> Products | None:
    """The products of packed weights, where there are any for this type on this processor."""
    kernels = native.load()
    return kernels.products if kernels is not None and kernels.products.multiplies(dtype) else None


def serves(policy: Policy) -> bool:
    """Whether `FusedForward` may compute this policy: on a CPU, with decoder layers of fused modules around which it
    knows the norms, and rotations that depend on nothing but the position."""
    if policy.device.type != "cpu":
        return False
    policy.use_kernels()
    model, base = policy.model, policy.model.base_model
    one_type = len({parameter.dtype for parameter in model.parameters()}) == 1
    known = policy.head_weight.dtype in (torch.float32, torch.bfloat16)
    layers, norm, rotary = (base._modules.get(name) for name in ("layers", "norm", "rotary_emb"))
    if not (one_type and known and isinstance(norm, FusedNorm) and isinstance(layers, nn.ModuleList) and rotary):
        return False
    types = vars(rotary).get("rope_type")
    rotations = set(types.values()) if isinstance(types, dict) else {types}
    return rotations <= _ROTATIONS and all(
        _norms_of(layer) in _NORMS and isinstance(layer._modules.get("self_attn"), FusedAttention) for layer in layers
    )


def _head_dim(policy: Policy) -> int:
    config = policy.model.config
    return int(config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads)
