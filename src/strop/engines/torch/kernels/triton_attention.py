"""Attention of one token a row over pages of keys and values, the context divided among programs (flash-decoding).

Each program reads one chunk of one row's context for the query heads that share a key/value head:

    s_n = scale · q · k_n,   m = max s_n,   l = Σ exp(s_n − m),   a = Σ exp(s_n − m) v_n

and a second kernel joins the chunks: o = Σ_c exp(m_c − M) a_c / Σ_c exp(m_c − M) l_c with M = max m_c. Exponentials are
of base 2, with log2(e) in the scale; sums are float32. Shapes: see the package; G = H / K query heads a program.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from strop.engines.torch.kernels import LayerCache, Plan

_LOG2_E = 1.4426950408889634
# The matrix units take at least so many rows.
_LEAST_ROWS = 16
# Of keys, and of values, that are read at once: several stages of both must fit into a multiprocessor's shared memory.
_TILE_BYTES = 1 << 15


class Tuning(NamedTuple):
    """Tokens read at once, warps of a program, and stages of its software pipeline."""

    block: int = 64
    warps: int = 4
    stages: int = 3


@triton.jit
def _chunk(length, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Tokens that each of SPLITS programs reads of a row of `length`, whole blocks."""
    return (length + SPLITS * BLOCK - 1) // (SPLITS * BLOCK) * BLOCK


@triton.jit
def attend_kernel(
    query, keys, values, table, lengths, output, sums, extremes,
    scale, table_stride,
    KV: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One chunk of one row for one key/value head: [GROUP, DIM] of `output`, or of `sums` with its `extremes`."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths + row)
    chunk = _chunk(length, SPLITS, BLOCK)
    start = split * chunk
    stop = tl.minimum(start + chunk, length)
    member = tl.arange(0, ROWS)
    column = tl.arange(0, DIM)
    token = tl.arange(0, BLOCK)
    own = member < GROUP
    heads = row.to(tl.int64) * KV * GROUP + head * GROUP + member
    q = tl.load(query + heads[:, None] * DIM + column[None, :], mask=own[:, None], other=0.0)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, DIM], tl.float32)
    # A page's number is read a round before its tokens: in the same one it would keep their loads from running ahead.
    page_row = table + row * table_stride
    following = tl.load(page_row + start // PAGE, mask=start < stop, other=0)
    for n in range(start, stop, BLOCK):
        page = following.to(tl.int64)
        place = (page * KV + head) * PAGE + n % PAGE
        seen = n + token < stop
        offsets = (place + token)[:, None] * DIM + column[None, :]
        k = tl.load(keys + offsets, mask=seen[:, None], other=0.0)
        if EXACT:
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        else:
            scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fading = tl.exp2(best - higher)
        total = total * fading + tl.sum(weights, 1)
        v = tl.load(values + offsets, mask=seen[:, None], other=0.0)
        if EXACT:
            summed = summed * fading[:, None] + tl.dot(weights, v, input_precision="ieee")
        else:
            summed = summed * fading[:, None] + tl.dot(weights.to(v.dtype), v)
        best = higher
        following = tl.load(page_row + (n + BLOCK) // PAGE, mask=n + BLOCK < stop, other=0)
    if SPLITS == 1:
        found = summed / tl.where(total > 0, total, 1.0)[:, None]
        found = found.to(output.dtype.element_ty)
        tl.store(output + heads[:, None] * DIM + column[None, :], found, mask=own[:, None])
    else:
        part = heads * SPLITS + split
        tl.store(sums + part[:, None] * DIM + column[None, :], summed, mask=own[:, None])
        tl.store(extremes + part * 2, best, mask=own)
        tl.store(extremes + part * 2 + 1, total, mask=own)


@triton.jit
def join_kernel(
    sums, extremes, lengths, output,
    HEADS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The chunks of one query head of one row: [DIM] of `output`."""
    head = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + head // HEADS)
    split = tl.arange(0, SPLITS)
    column = tl.arange(0, DIM)
    used = split * _chunk(length, SPLITS, BLOCK) < length  # chunks beyond the context are not even read
    part = head * SPLITS + split
    best = tl.load(extremes + part * 2, mask=used, other=float("-inf"))
    total = tl.load(extremes + part * 2 + 1, mask=used, other=0.0)
    summed = tl.load(sums + part[:, None] * DIM + column[None, :], mask=used[:, None], other=0.0)
    highest = tl.maximum(tl.max(best, 0), -1e30)  # finite for a row without any token
    weights = tl.exp2(best - highest)
    whole = tl.sum(weights * total, 0)
    found = tl.sum(weights[:, None] * summed, 0) / tl.where(whole > 0, whole, 1.0)
    tl.store(output + head * DIM + column, found.to(output.dtype.element_ty))


def attend(
    query: Tensor, cache: LayerCache, table: Tensor, lengths: Tensor, scale: float, how: Plan, tuning: Tuning
) -> Tensor:
    """See `Kernels.attend`; D is a power of two of at least 16, and so is the page."""
    rows, heads, dim = query.shape
    kv = cache.keys.shape[1]
    group = heads // kv
    block = min(tuning.block, cache.page, _TILE_BYTES // (dim * query.element_size()))
    output = torch.empty_like(query)
    if how.splits > 1:
        sums = query.new_empty(rows, heads, how.splits, dim, dtype=torch.float32)
        extremes = query.new_empty(rows, heads, how.splits, 2, dtype=torch.float32)
    else:
        sums = extremes = output  # not touched
    attend_kernel[(kv, rows, how.splits)](
        query, cache.keys, cache.values, table, lengths, output, sums, extremes,
        scale * _LOG2_E, table.stride(0),
        KV=kv, GROUP=group, ROWS=max(_LEAST_ROWS, triton.next_power_of_2(group)), DIM=dim, PAGE=cache.page,
        BLOCK=block, SPLITS=how.splits, EXACT=query.dtype == torch.float32,
        num_warps=tuning.warps, num_stages=tuning.stages,
    )  # fmt: skip
    if how.splits > 1:
        join_kernel[(rows * heads,)](
            sums, extremes, lengths, output, HEADS=heads, DIM=dim, SPLITS=how.splits, BLOCK=block, num_warps=2
        )
    return output
