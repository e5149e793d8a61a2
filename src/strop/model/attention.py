"""One attention function for every transformers model: packed training, and an engine's slots, through a context.

A model loaded with `attn_implementation="strop"` calls `strop_attention` in each layer. What the tokens of the call are
(which sequences, which slots of a key/value cache) is said by a context object that travels through the model's
forward as the keyword argument `strop_context`. No mask is ever built: "strop" has no entry among transformers' mask
functions, which is how transformers is told that an attention needs none.

Shapes: N packed tokens, S sequences, H query heads, K key/value heads, D head dimension, B sequences of a bucket,
L tokens of its longest one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from strop.algorithms.tokens import send

NAME = "strop"

# What models pass along that changes nothing about plain causal attention. Anything else (a soft cap, attention sinks,
# a position bias …) is refused, because ignoring it would silently compute another model.
_HARMLESS = frozenset({"position_ids", "use_cache", "output_attentions", "output_router_logits", "cache_position"})

# The bits of a sequence's result must not depend on its neighbours. Up to 191 tokens it is enough to pad to whole
# vectors of float32 (up to 512 bits); longer ones are cut into blocks by their padded length: only equals run together.
_LANES = 16
_MIXED = 192


class AttentionContext(Protocol):
    """Says what the N tokens of a forward pass are, and computes their attention."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention [N, H, D] of query [N, H, D] over key and value [N, K, D] of this call (and of a cache)."""
        ...


def strop_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    strop_context: AttentionContext | None = None,
    **other: Any,  # the signature is transformers': models pass what they like
) -> tuple[Tensor, None]:
    """Attention of query [1, H, N, D] over key, value [1, K, N, D] as the context says → ([1, N, H, D], None).

    Raises:
        ValueError: no context, or a mask, a sliding window, dropout or any argument unknown here.
    """
    if strop_context is None:
        raise ValueError("attention 'strop' needs strop_context: call the model through strop.model.policy.Policy")
    sliding = sliding_window is not None and not sees_all(vars(module.config), sliding_window)
    if attention_mask is not None or sliding or dropout:
        raise ValueError(
            f"attention 'strop' is plain causal: mask {attention_mask is not None}, sliding window {sliding_window}, "
            f"dropout {dropout} are not supported"
        )
    unknown = [name for name, given in other.items() if given is not None and name not in _HARMLESS]
    if unknown:
        raise ValueError(
            f"attention 'strop' does not know {', '.join(sorted(unknown))}, given by {type(module).__name__}"
        )
    if query.shape[0] != 1:
        raise ValueError(f"attention 'strop' takes packed tokens [1, N], not a batch of {query.shape[0]}")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    # Not [0], whose backward would fill a tensor of zeros with the gradient.
    q, k, v = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))
    return strop_context.attend(_layer(module), q, k, v, scale)[None], None


def sees_all(config: Mapping[str, object], window: object) -> bool:
    """Whether a sliding window, in tokens, is as long as the longest sequence of a model's configuration."""
    longest = longest_sequence(config)
    return isinstance(window, int) and longest is not None and window >= longest


def longest_sequence(config: Mapping[str, object]) -> int | None:
    """The positions that a model has, by its configuration; None where it does not say.

    A model with two rotary embeddings, one for short sequences and one for long ones (`longrope`: Phi-3 and 4 mini),
    has those of the short one: with longer sequences beside it, or once it has grown longer itself, a sequence would
    get other log-probs.
    """
    given = config.get("max_position_embeddings", config.get("n_positions"))
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if isinstance(rope, Mapping) and rope.get("rope_type", rope.get("type")) in ("longrope", "su"):
        # Where a configuration and its rotary embedding say different things, transformers goes by the former.
        given = config.get("original_max_position_embeddings", rope.get("original_max_position_embeddings", given))
    return given if isinstance(given, int) else None


def _layer(module: nn.Module) -> int:
    index = module.layer_idx
    if not isinstance(index, int):
        raise ValueError(f"{type(module).__name__}.layer_idx is {index!r}: not an attention layer strop knows")
    return index


AttentionInterface.register(NAME, strop_attention)


@dataclass(frozen=True, eq=False)
class Bucket:
    """Sequences of similar length run as one dense batch; `index` int64 [B·L] gathers their tokens, or None if the
    bucket is all tokens as they lie."""

    index: Tensor | None
    sequences: int
    longest: int


class PackedContext:
    """Causal attention within each of S sequences that lie one after another in N packed tokens.

    On a GPU in half precision this is one variable-length kernel; elsewhere sequences of similar length are gathered
    into padded dense batches, so that [N, N] never exists. Padding comes after a sequence, where causality hides it.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.lengths = tuple(lengths)
        self.device = device
        self._buckets: tuple[Bucket, ...] | None = None
        self._inverse: Tensor | None = None
        self._offsets: Tensor | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention [N, H, D]; see `AttentionContext`."""
        if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
            return self._varlen(query, key, value, scale)
        if self._buckets is None:
            self._buckets, self._inverse = _bucketed(self.lengths, self.device)
        outputs = [_dense(bucket, query, key, value, scale) for bucket in self._buckets]
        if self._inverse is None:
            return outputs[0]
        return torch.cat(outputs).index_select(0, self._inverse)

    def _varlen(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if self._offsets is None:
            ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
            self._offsets = send(ends, self.device)
        q, k, v = (states.contiguous() for states in (query, key, value))
        return _kernel()(q, k, v, self._offsets, max(self.lengths), scale)


class VariableLength(Protocol):
    """Causal attention [N, H, D] within sequences that begin at offsets int32 [S + 1], none longer than `longest`."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, longest: int, scale: float
    ) -> Tensor: ...


@cache
def _kernel() -> VariableLength:
    from torch.nn.attention.varlen import varlen_attn  # here: it is only of use on a GPU

    return adapted(varlen_attn)


def adapted(varlen_attn: Callable[..., Any]) -> VariableLength:
    """One way to call torch's `varlen_attn`, of whatever version.

    From torch 2.12 on fewer heads of keys than of queries must be asked for with `enable_gqa`. The function of 2.11 has
    no such argument and does not compare the numbers: it hands the heads on to a kernel that shares them by itself.
    """
    asks = "enable_gqa" in signature(varlen_attn).parameters

    def attend(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, longest: int, scale: float) -> Tensor:
        more = {"enable_gqa": query.shape[1] != key.shape[1]} if asks else {}
        found = varlen_attn(
            query, key, value, offsets, offsets, longest, longest, scale=scale, window_size=(-1, 0), **more
        )
        if not isinstance(found, Tensor):
            raise TypeError("varlen_attn returned more than the output")
        return found

    return attend


def _dense(bucket: Bucket, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal attention of one bucket, [B·L, H, D]."""

    def batch(states: Tensor) -> Tensor:
        rows = states if bucket.index is None else states.index_select(0, bucket.index)
        return rows.reshape(bucket.sequences, bucket.longest, *states.shape[1:]).transpose(1, 2)

    output = F.scaled_dot_product_attention(
        batch(query), batch(key), batch(value), is_causal=True, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return output.transpose(1, 2).reshape(-1, *output.shape[1::2])


def _bucketed(lengths: tuple[int, ...], device: torch.device) -> tuple[tuple[Bucket, ...], Tensor | None]:
    """Buckets of similar length, and where each packed token lies in their outputs one after another."""
    if len(set(lengths)) == 1 and lengths[0] % _LANES == 0:
        return (Bucket(None, len(lengths), lengths[0]),), None
    size = torch.tensor(lengths)
    start = size.cumsum(0) - size
    padded = [-(-length // _LANES) * _LANES for length in lengths]
    groups: list[list[int]] = []
    for s in sorted(range(len(lengths)), key=lambda s: -lengths[s]):
        longest = padded[groups[-1][0]] if groups else 0
        # At most a fifth of padding, and a few tokens more for short sequences, where a call costs more than padding.
        if padded[s] == longest or (longest < _MIXED and padded[s] * 1.25 + _LANES >= longest > 0):
            groups[-1].append(s)
        else:
            groups.append([s])
    buckets: list[Bucket] = []
    inverse = torch.empty(int(size.sum()), dtype=torch.int64)
    base = 0
    for group in groups:
        longest = padded[group[0]]
        member = torch.tensor(group)
        offset = torch.arange(longest)
        # Padding repeats a sequence's own last token: finite, and never looked at.
        index = start[member, None] + torch.minimum(offset, size[member, None] - 1)
        real = offset < size[member, None]
        inverse[index[real]] = base + torch.arange(index.numel()).view_as(index)[real]
        base += index.numel()
        buckets.append(Bucket(index.reshape(-1).to(device), len(group), longest))
    return tuple(buckets), inverse.to(device)
