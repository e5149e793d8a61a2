"""The elementwise work of a layer as Triton kernels: norms, rotary embedding with the cache's new token, and the gate.

Each rounds to the states' type exactly where transformers' modules do. Shapes: see the package.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_kernel(
    states, residual, weight, output, eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """One row [SIZE]; with ADD the states are added to the residual first, which keeps the sum."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    x = tl.load(states + row * SIZE + column, mask=inside, other=0.0)
    if ADD:
        before = tl.load(residual + row * SIZE + column, mask=inside, other=0.0)
        x = (x.to(tl.float32) + before.to(tl.float32)).to(before.dtype)
        tl.store(residual + row * SIZE + column, x, mask=inside)
    wide = x.to(tl.float32)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row * SIZE + column, (w * scaled.to(x.dtype).to(tl.float32)).to(x.dtype), mask=inside)


@triton.jit
def _rounded(x, kind: tl.constexpr):
    """x rounded to the states' type, in float32."""
    return x.to(kind).to(tl.float32)


@triton.jit
def _turned(
    source, first_head, weight, cosine, sine, eps,
    COUNT: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """Both halves [PADDED, DIM / 2], float32, of COUNT heads from `first_head` on, normed and rotated."""
    HALF: tl.constexpr = DIM // 2
    kind: tl.constexpr = source.dtype.element_ty
    head = tl.arange(0, PADDED)
    column = tl.arange(0, HALF)
    at = source + (first_head + head)[:, None] * DIM + column[None, :]
    own = (head < COUNT)[:, None]
    a = tl.load(at, mask=own, other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=own, other=0.0).to(tl.float32)
    if NORMED:
        root = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / DIM + eps)[:, None]
        a = _rounded(tl.load(weight + column)[None, :].to(tl.float32) * _rounded(a * root, kind), kind)
        b = _rounded(tl.load(weight + HALF + column)[None, :].to(tl.float32) * _rounded(b * root, kind), kind)
    first = _rounded(a * cosine, kind) - _rounded(b * sine, kind)
    second = _rounded(b * cosine, kind) + _rounded(a * sine, kind)
    return first, second


@triton.jit
def rotate_and_write_kernel(
    qkv, query, query_weight, key_weight, angles, lengths, table,
    keys, values, eps, table_stride, positions,
    HEADS: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, PADDED: tl.constexpr,
    PADDED_KV: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """One row: its queries to `query`, its key and value to their place in the row's last page."""
    HALF: tl.constexpr = DIM // 2
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    position = tl.maximum(length - 1, 0)
    column = tl.arange(0, HALF)
    cosine = tl.load(angles + position * HALF + column).to(tl.float32)[None, :]
    sine = tl.load(angles + (positions + position) * HALF + column).to(tl.float32)[None, :]
    source = qkv + row.to(tl.int64) * (HEADS + 2 * KV) * DIM
    head = tl.arange(0, PADDED)
    first, second = _turned(source, 0, query_weight, cosine, sine, eps, HEADS, PADDED, DIM, NORMED)
    to = query + (row.to(tl.int64) * HEADS + head)[:, None] * DIM + column[None, :]
    tl.store(to, first.to(query.dtype.element_ty), mask=(head < HEADS)[:, None])
    tl.store(to + HALF, second.to(query.dtype.element_ty), mask=(head < HEADS)[:, None])

    kv = tl.arange(0, PADDED_KV)
    writes = ((kv < KV) & (length > 0))[:, None]
    first, second = _turned(source, HEADS, key_weight, cosine, sine, eps, KV, PADDED_KV, DIM, NORMED)
    page = tl.load(table + row * table_stride + position // PAGE).to(tl.int64)
    place = ((page * KV + kv) * PAGE + position % PAGE)[:, None] * DIM + column[None, :]
    tl.store(keys + place, first.to(keys.dtype.element_ty), mask=writes)
    tl.store(keys + place + HALF, second.to(keys.dtype.element_ty), mask=writes)
    given = source + (HEADS + KV + kv)[:, None] * DIM + column[None, :]
    tl.store(values + place, tl.load(given, mask=writes, other=0.0), mask=writes)
    tl.store(values + place + HALF, tl.load(given + HALF, mask=writes, other=0.0), mask=writes)


@triton.jit
def gate_kernel(states, output, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """A block of a row of silu(gate) · up; `states` has SIZE gates and SIZE ups a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    g = tl.load(states + row * 2 * SIZE + column, mask=inside, other=0.0)
    u = tl.load(states + row * 2 * SIZE + SIZE + column, mask=inside, other=0.0)
    wide = g.to(tl.float32)
    s = (wide / (1.0 + tl.exp(-wide))).to(g.dtype).to(tl.float32)
    tl.store(output + row * SIZE + column, (s * u.to(tl.float32)).to(g.dtype), mask=inside)
