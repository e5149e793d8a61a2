"""One attention function for every transformers model: packed training, and an engine's slots, through a context.

A model loaded with `attn_implementation="strop"` calls `strop_attention` in each layer. What the tokens of the call are
(which sequences, which slots of a key/value cache) is said by a context object that travels through the model's
forward as the keyword argument `strop_context`. No mask is ever built: "strop" has no entry among transformers' mask
functions, which tells transformers that this attention needs none.

Shapes: N packed tokens, S sequences, H query heads, K key/value heads, D head dimension, B sequences of a bucket,
L tokens of its longest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel

from strop.algorithms.tokens import send
from strop.base.types import InputError, first_line
from strop.model.attention_kinds import EVERYTHING, KNOWN, PLAIN, AttentionKind, Reach, explicit, reach_of, sees_all


class VariableLength(Protocol):
    """Causal attention [N, H, D] within sequences that begin at offsets int32 [S + 1], none longer than `longest`, in
    which a token sees the last `window` ones (None: all)."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, longest: int, scale: float,
        window: int | None = None,
    ) -> Tensor: ...  # fmt: skip


def use_flash_attention(version: int) -> None:
    """Have torch call this version of FlashAttention in this process.

    Raises:
        InputError: torch or the version's package is not made for it.
    """
    from torch.nn import attention

    name = f"FA{version}"
    if version == 2 or attention.current_flash_attention_impl() == name:
        return
    try:
        attention.activate_flash_attention_impl(name)
    except (ImportError, RuntimeError, ValueError) as error:
        said = f"torch cannot call it ({first_line(error)}); install its package, or set 2"
        raise InputError(f"model.flash_attention={version}: {said}") from error


@cache
def kernel() -> VariableLength:
    """The kernel of the installed torch."""
    from torch.nn.attention.varlen import varlen_attn  # here: it is only of use on a GPU

    return adapted(varlen_attn)


def adapted(varlen_attn: Callable[..., Any]) -> VariableLength:
    """One way to call torch's `varlen_attn`, of whatever version.

    From torch 2.12 on fewer heads of keys than of queries must be asked for with `enable_gqa`. The function of 2.11 has
    no such argument and does not compare the numbers: it hands the heads on to a kernel that shares them by itself.
    """
    asks = "enable_gqa" in signature(varlen_attn).parameters

    def attend(
        query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, longest: int, scale: float,
        window: int | None = None,
    ) -> Tensor:  # fmt: skip
        before = -1 if window is None else window - 1
        more = {"enable_gqa": query.shape[1] != key.shape[1]} if asks else {}
        found = varlen_attn(
            query, key, value, offsets, offsets, longest, longest, scale=scale, window_size=(before, 0), **more
        )
        if not isinstance(found, Tensor):
            raise TypeError("varlen_attn returned more than the output")
        return found

    return attend


NAME = "strop"

# What models pass along that changes nothing about attention. Anything unknown (a position bias …) is refused, because
# ignoring it would silently compute another model.
_HARMLESS = frozenset({"position_ids", "use_cache", "output_attentions", "output_router_logits", "cache_position"})

# The bits of a sequence's result must not depend on its neighbours. Up to 191 tokens it is enough to pad to whole
# vectors of float32 (up to 512 bits); longer ones are cut into blocks by their padded length: only equals run together.
_LANES = 16
_MIXED = 192
_ROWS = 512  # queries whose scores exist at once where a layer has a window, a cap or sinks


class AttentionContext(Protocol):
    """Says what the N tokens of a forward pass are, and computes their attention."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: AttentionKind = PLAIN
    ) -> Tensor:
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
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    strop_context: AttentionContext | None = None,
    strop_positions: Tensor | None = None,
    **other: Any,  # the signature is transformers': models pass what they like
) -> tuple[Tensor, None]:
    """Attention of query [1, H, N, D] over key, value [1, K, N, D] as the context says → ([1, N, H, D], None).

    Args:
        softcap: of the scores (`Kind.cap`).
        s_aux: sinks [H] (`Kind.sinks`).
        strop_positions: int64 [N] of the tokens, for models that scale queries by them.

    Raises:
        ValueError: no context, or a mask, dropout, or anything else that is unknown here of such a model.
    """
    if strop_context is None:
        raise ValueError("attention 'strop' needs strop_context: call the model through strop.model.policy.Policy")
    if attention_mask is not None or dropout or vars(module).get("is_causal") is False:
        raise ValueError(
            f"attention 'strop' is causal, without a mask: mask {attention_mask is not None}, dropout {dropout}, "
            f"is_causal {vars(module).get('is_causal')} are not supported"
        )
    unknown = [name for name, given in other.items() if given is not None and name not in _HARMLESS]
    if unknown:
        raise ValueError(
            f"attention 'strop' does not know {', '.join(sorted(unknown))}, given by {type(module).__name__}"
        )
    if query.shape[0] != 1:
        raise ValueError(f"attention 'strop' takes packed tokens [1, N], not a batch of {query.shape[0]}")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    layer = _layer(module)
    kind = _kind(module, layer, sliding_window, softcap, s_aux)
    # Not [0], whose backward would fill a tensor of zeros with the gradient.
    q, k, v = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))
    if _tempered(module):
        q = _scaled_by_position(module, q, strop_positions)
    return strop_context.attend(layer, q, k, v, scale, kind)[None], None


def _kind(module: Any, layer: int, window: int | None, cap: float | None, sinks: Tensor | None) -> AttentionKind:
    """The kind of a layer: its reach by the configuration, which a window that the module gives must agree with."""
    reach = reach_of(module.config, layer)
    if window is not None and not sees_all(vars(module.config), window) and window != reach.window:
        raise ValueError(
            f"layer {layer} of {type(module).__name__} has a window of {window}, where strop reads {reach} in the "
            "configuration"
        )
    if (cap is not None or sinks is not None) and module.config.model_type not in KNOWN:
        raise ValueError(f"attention 'strop' knows caps and sinks only of {', '.join(sorted(KNOWN))}")
    return PLAIN if reach == EVERYTHING and cap is None and sinks is None else AttentionKind(reach, cap, sinks)


def _tempered(module: Any) -> bool:
    """Whether the queries of a layer are scaled by their positions: Llama 4's, where it has no rotary embedding."""
    return "floor_scale" in vars(module) and bool(module.config.attn_temperature_tuning) and not module.use_rope


def leave_rows_to_strop(model: nn.Module) -> None:
    """Keep models from what they do by the places in a packed row, or would find out of it.

    Llama 4's layers scale queries by their places, where `strop_attention` knows positions. GPT-2 looks for padding, of
    which there is none: a GPU would wait for the answer in every forward pass, and the meta device cannot give any.
    """
    for module in model.modules():
        if "attn_temperature_tuning" in vars(module):
            vars(module)["attn_temperature_tuning"] = False
        if isinstance(module, PreTrainedModel):
            vars(module)["warn_if_padding_and_no_attention_mask"] = _nothing_is_padded


def _nothing_is_padded(input_ids: Tensor, attention_mask: Tensor | None) -> None:
    """In the place of what transformers asks there."""


def _scaled_by_position(module: Any, query: Tensor, positions: Tensor | None) -> Tensor:
    """q (1 + attn_scale · log(1 + ⌊(position + 1) / floor_scale⌋)) of q [N, H, D]."""
    if positions is None or module.attn_temperature_tuning:
        raise ValueError(f"{type(module).__name__} scales queries by position: call the model through Policy")
    steps = torch.floor((positions.float() + 1.0) / module.floor_scale)
    scales = torch.log1p(steps) * module.attn_scale + 1.0
    return (query * scales[:, None, None]).to(query.dtype)


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
    Caps and sinks are computed by their definition everywhere, some queries at a time: no kernel of torch has both.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.lengths = tuple(lengths)
        self.device = device
        self._buckets: tuple[Bucket, ...] | None = None
        self._inverse: Tensor | None = None
        self._offsets: Tensor | None = None
        self._chunks: dict[int, PackedContext] = {}
        self._seen: dict[tuple[int, int, Reach], Tensor] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: AttentionKind = PLAIN
    ) -> Tensor:
        """Attention [N, H, D]; see `AttentionContext`."""
        chunk = kind.reach.chunk
        if chunk is not None:
            whole = replace(kind, reach=replace(kind.reach, chunk=None))
            return self._in_chunks(chunk).attend(layer, query, key, value, scale, whole)
        if kind.softmax and query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
            return self._varlen(query, key, value, scale, kind.reach.window)
        if self._buckets is None:
            self._buckets, self._inverse = _bucketed(self.lengths, self.device)
        outputs = [self._dense(bucket, query, key, value, scale, kind) for bucket in self._buckets]
        if self._inverse is None:
            return outputs[0]
        return torch.cat(outputs).index_select(0, self._inverse)

    def _in_chunks(self, chunk: int) -> PackedContext:
        """The same tokens as sequences of at most `chunk`: tokens of a chunk see only that chunk."""
        if chunk not in self._chunks:
            parts = [min(chunk, length - start) for length in self.lengths for start in range(0, length, chunk)]
            self._chunks[chunk] = PackedContext(parts, self.device)
        return self._chunks[chunk]

    def _varlen(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        if self._offsets is None:
            ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
            self._offsets = send(ends, self.device)
        q, k, v = (states.contiguous() for states in (query, key, value))
        return kernel()(q, k, v, self._offsets, max(self.lengths), scale, window)

    def _dense(
        self, bucket: Bucket, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: AttentionKind
    ) -> Tensor:
        """Causal attention of one bucket, [B·L, H, D]."""

        def batch(states: Tensor) -> Tensor:
            rows = states if bucket.index is None else states.index_select(0, bucket.index)
            return rows.reshape(bucket.sequences, bucket.longest, *states.shape[1:]).transpose(1, 2)

        q, k, v = batch(query), batch(key), batch(value)
        # Which way a sequence is computed depends on no neighbour: shorter windows have a mask in every bucket.
        if kind.softmax and kind.reach.covers(max(bucket.longest, _MIXED)):
            output = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
            )
        else:
            parts = [self._rows(q, k, v, start, scale, kind) for start in range(0, bucket.longest, _ROWS)]
            output = torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]
        return output.transpose(1, 2).reshape(-1, *output.shape[1::2])

    def _rows(self, query: Tensor, key: Tensor, value: Tensor, start: int, scale: float, kind: AttentionKind) -> Tensor:
        """Attention [B, H, rows, D] of the queries from `start` on, at most `_ROWS`, over the keys that they see.

        What is computed by its definition is computed again in backward where there are several such parts.
        """
        stop = min(start + _ROWS, query.shape[2])
        first = 0 if kind.reach.window is None else max(0, start - kind.reach.window + 1)
        where = start, stop, kind.reach
        if where not in self._seen:
            self._seen[where] = kind.reach.seen(torch.arange(start, stop, device=self.device), stop)[:, first:]
        q, k, v, seen = query[:, :, start:stop], key[:, :, first:stop], value[:, :, first:stop], self._seen[where]
        if kind.softmax:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        if torch.is_grad_enabled() and query.shape[2] > _ROWS:
            again: Tensor = checkpoint(
                explicit, q, k, v, seen, scale, kind, use_reentrant=False, preserve_rng_state=False
            )
            return again
        return explicit(q, k, v, seen, scale, kind)


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
