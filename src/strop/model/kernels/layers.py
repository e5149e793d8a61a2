"""What a decoder layer computes between its matrix products, each in one pass: RMSNorm, rotary positions, SwiGLU.

Plain PyTorch goes through memory about ten times for each of them. Everything is computed in float32 and rounded to the
tensors' type exactly where the modules of transformers round, so that results differ from theirs by the order of sums
alone; gradients are rounded once at the end, where autograd rounds at each step.

Shapes: N rows (tokens, or tokens × heads), E features of a row, H heads, D features of a head, I inner features.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from strop.model.kernels.common import TYPES, interpreted, rounded

# Numbers a program holds at a time of each tensor: more would take registers from other programs on the same
# multiprocessor, which are what hides the latency of memory (a rotary gradient holds eight tensors).
_TILE, _HALF_TILE, _FLAT = 2048, 1024, 4096
_STEPS = 8  # tiles a program goes through where it sums the gradient of a weight
_WARPS = 4


@triton.jit(do_not_specialize=["rows"])
def _norm_forward_kernel(
    x_ref, w_ref, y_ref, scale_ref, rows, eps, E: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    TYPE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """y = round(x · s) · w with s = 1 / √(mean x² + eps), which is kept [N]."""
    r, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    mask = (r < rows)[:, None] & (c < E)[None, :]
    at = r.to(tl.int64)[:, None] * E + c[None, :]
    x = tl.load(x_ref + at, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ref + c, mask=c < E, other=0.0).to(tl.float32)
    s = 1.0 / tl.sqrt(tl.sum(x * x, 1) / E + eps)
    y = rounded(x * s[:, None], TYPE, INTERPRETED).to(tl.float32) * w[None, :]
    tl.store(y_ref + at, rounded(y, TYPE, INTERPRETED), mask=mask)
    tl.store(scale_ref + r, s, mask=r < rows)


@triton.jit(do_not_specialize=["rows"])
def _norm_backward_kernel(
    up_ref, x_ref, w_ref, scale_ref, dx_ref, dw_ref, rows, E: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    STEPS: tl.constexpr, TYPE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """∂x = s · (g − x̂ · mean(g x̂)) with x̂ = x · s, g = up · w; and this program's part of ∂w = Σ up · x̂."""
    c = tl.arange(0, BLOCK)
    w = tl.load(w_ref + c, mask=c < E, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        r = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        mask = (r < rows)[:, None] & (c < E)[None, :]
        at = r.to(tl.int64)[:, None] * E + c[None, :]
        s = tl.load(scale_ref + r, mask=r < rows, other=0.0)
        hat = tl.load(x_ref + at, mask=mask, other=0.0).to(tl.float32) * s[:, None]
        up = tl.load(up_ref + at, mask=mask, other=0.0).to(tl.float32)
        g = up * w[None, :]
        dx = s[:, None] * (g - hat * (tl.sum(g * hat, 1) / E)[:, None])
        tl.store(dx_ref + at, rounded(dx, TYPE, INTERPRETED), mask=mask)
        dw += tl.sum(up * hat, 0)
    tl.store(dw_ref + tl.program_id(0).to(tl.int64) * E + c, dw, mask=c < E)


@triton.jit(do_not_specialize=["rows"])
def _rotary_forward_kernel(
    x_ref, w_ref, cos_ref, sin_ref, y_ref, scale_ref, rows, eps, H: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    ROWS: tl.constexpr, NORM: tl.constexpr, TYPE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Each head normed where NORM says so, then turned: y = x · cos + rotate_half(x) · sin, of [N · H, D] rows."""
    r, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, HALF)
    mask = (r < rows)[:, None] & (c < D // 2)[None, :]
    at = r.to(tl.int64)[:, None] * D + c[None, :]
    a = tl.load(x_ref + at, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x_ref + at + D // 2, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        s = 1.0 / tl.sqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / D + eps)
        tl.store(scale_ref + r, s, mask=r < rows)
        w = tl.load(w_ref + c, mask=c < D // 2, other=0.0).to(tl.float32)
        v = tl.load(w_ref + c + D // 2, mask=c < D // 2, other=0.0).to(tl.float32)
        a = rounded(a * s[:, None], TYPE, INTERPRETED).to(tl.float32) * w[None, :]
        b = rounded(b * s[:, None], TYPE, INTERPRETED).to(tl.float32) * v[None, :]
        a = rounded(a, TYPE, INTERPRETED).to(tl.float32)
        b = rounded(b, TYPE, INTERPRETED).to(tl.float32)
    angle = (r // H).to(tl.int64)[:, None] * D + c[None, :]
    cos = tl.load(cos_ref + angle, mask=mask, other=0.0).to(tl.float32)
    sin = tl.load(sin_ref + angle, mask=mask, other=0.0).to(tl.float32)
    left = rounded(a * cos, TYPE, INTERPRETED).to(tl.float32) - rounded(b * sin, TYPE, INTERPRETED).to(tl.float32)
    right = rounded(b * cos, TYPE, INTERPRETED).to(tl.float32) + rounded(a * sin, TYPE, INTERPRETED).to(tl.float32)
    tl.store(y_ref + at, rounded(left, TYPE, INTERPRETED), mask=mask)
    tl.store(y_ref + at + D // 2, rounded(right, TYPE, INTERPRETED), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _rotary_backward_kernel(
    up_ref, x_ref, w_ref, cos_ref, sin_ref, scale_ref, dx_ref, dw_ref, rows, H: tl.constexpr, D: tl.constexpr,
    HALF: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr, NORM: tl.constexpr, TYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """The gradient turned back, then through the norm as `_norm_backward_kernel` does."""
    c = tl.arange(0, HALF)
    if NORM:
        w = tl.load(w_ref + c, mask=c < D // 2, other=0.0).to(tl.float32)
        v = tl.load(w_ref + c + D // 2, mask=c < D // 2, other=0.0).to(tl.float32)
        dw = tl.zeros((HALF,), tl.float32)
        dv = tl.zeros((HALF,), tl.float32)
    for step in range(STEPS):
        r = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        mask = (r < rows)[:, None] & (c < D // 2)[None, :]
        at = r.to(tl.int64)[:, None] * D + c[None, :]
        angle = (r // H).to(tl.int64)[:, None] * D + c[None, :]
        cos = tl.load(cos_ref + angle, mask=mask, other=0.0).to(tl.float32)
        sin = tl.load(sin_ref + angle, mask=mask, other=0.0).to(tl.float32)
        left = tl.load(up_ref + at, mask=mask, other=0.0).to(tl.float32)
        right = tl.load(up_ref + at + D // 2, mask=mask, other=0.0).to(tl.float32)
        a = left * cos + right * sin
        b = right * cos - left * sin
        if NORM:
            s = tl.load(scale_ref + r, mask=r < rows, other=0.0)
            p = tl.load(x_ref + at, mask=mask, other=0.0).to(tl.float32) * s[:, None]
            q = tl.load(x_ref + at + D // 2, mask=mask, other=0.0).to(tl.float32) * s[:, None]
            dw += tl.sum(a * p, 0)
            dv += tl.sum(b * q, 0)
            a = a * w[None, :]
            b = b * v[None, :]
            mean = (tl.sum(a * p, 1) + tl.sum(b * q, 1)) / D
            a = s[:, None] * (a - p * mean[:, None])
            b = s[:, None] * (b - q * mean[:, None])
        tl.store(dx_ref + at, rounded(a, TYPE, INTERPRETED), mask=mask)
        tl.store(dx_ref + at + D // 2, rounded(b, TYPE, INTERPRETED), mask=mask)
    if NORM:
        to = dw_ref + tl.program_id(0).to(tl.int64) * D + c
        tl.store(to, dw, mask=c < D // 2)
        tl.store(to + D // 2, dv, mask=c < D // 2)


@triton.jit
def _gate_forward_kernel(
    gate_ref, up_ref, y_ref, count, BLOCK: tl.constexpr, TYPE: tl.constexpr, INTERPRETED: tl.constexpr
):
    """y = round(silu(gate)) · up."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_ref + at, mask=at < count, other=0.0).to(tl.float32)
    up = tl.load(up_ref + at, mask=at < count, other=0.0).to(tl.float32)
    y = rounded(gate / (1.0 + tl.exp(-gate)), TYPE, INTERPRETED).to(tl.float32) * up
    tl.store(y_ref + at, rounded(y, TYPE, INTERPRETED), mask=at < count)


@triton.jit
def _gate_backward_kernel(
    dy_ref, gate_ref, up_ref, dgate_ref, dup_ref, count, BLOCK: tl.constexpr, TYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """∂gate = ∂y · up · σ (1 + gate (1 − σ)), ∂up = ∂y · gate · σ, with σ = 1 / (1 + exp(−gate))."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    dy = tl.load(dy_ref + at, mask=at < count, other=0.0).to(tl.float32)
    gate = tl.load(gate_ref + at, mask=at < count, other=0.0).to(tl.float32)
    up = tl.load(up_ref + at, mask=at < count, other=0.0).to(tl.float32)
    sigma = 1.0 / (1.0 + tl.exp(-gate))
    dgate = dy * up * sigma * (1.0 + gate * (1.0 - sigma))
    tl.store(dgate_ref + at, rounded(dgate, TYPE, INTERPRETED), mask=at < count)
    tl.store(dup_ref + at, rounded(dy * gate * sigma, TYPE, INTERPRETED), mask=at < count)


def _shape(features: int, tile: int) -> tuple[int, int]:
    """Features padded to a power of two, and rows of them that make a tile."""
    block = triton.next_power_of_2(features)
    return block, max(tile // block, 1)


def _types(x: Tensor) -> dict[str, Any]:
    return {"TYPE": TYPES[x.dtype], "INTERPRETED": interpreted(), "num_warps": _WARPS}


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        rows, features = x.numel() // x.shape[-1], x.shape[-1]
        block, tile = _shape(features, _TILE)
        y, scale = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
        _norm_forward_kernel[(triton.cdiv(rows, tile),)](
            x, weight, y, scale, rows, eps, E=features, BLOCK=block, ROWS=tile, **_types(x)
        )
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        rows, features = len(scale), x.shape[-1]
        block, tile = _shape(features, _TILE)
        programs = triton.cdiv(rows, tile * _STEPS)
        dx = torch.empty_like(x)
        dw = torch.empty(programs, features, dtype=torch.float32, device=x.device)
        _norm_backward_kernel[(programs,)](
            up.contiguous(), x, weight, scale, dx, dw, rows, E=features, BLOCK=block, ROWS=tile, STEPS=_STEPS,
            **_types(x),
        )  # fmt: skip
        return dx, dw.sum(0).to(weight.dtype), None


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
        x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
        tokens, heads, features = x.shape
        half, tile = _shape(features // 2, _HALF_TILE)
        rows = tokens * heads
        y = torch.empty_like(x)
        scale = torch.empty(rows if weight is not None else 0, dtype=torch.float32, device=x.device)
        _rotary_forward_kernel[(triton.cdiv(rows, tile),)](
            x, weight, cos, sin, y, scale, rows, eps, H=heads, D=features, HALF=half, ROWS=tile,
            NORM=weight is not None, **_types(x),
        )  # fmt: skip
        # Without a norm the gradient does not depend on x.
        ctx.save_for_backward(None if weight is None else x, weight, cos, sin, scale)
        ctx.heads = heads
        return y

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, cos, sin, scale = ctx.saved_tensors
        up = up.contiguous()
        tokens, heads, features = up.shape
        half, tile = _shape(features // 2, _HALF_TILE)
        programs = triton.cdiv(tokens * heads, tile * _STEPS)
        dx = torch.empty_like(up)
        kept = programs if weight is not None else 0
        dw = torch.empty(kept, features, dtype=torch.float32, device=up.device)
        _rotary_backward_kernel[(programs,)](
            up, x, weight, cos, sin, scale, dx, dw, tokens * heads, H=heads, D=features, HALF=half, ROWS=tile,
            STEPS=_STEPS, NORM=weight is not None, **_types(up),
        )  # fmt: skip
        return dx, None if weight is None else dw.sum(0).to(weight.dtype), None, None, None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        y = torch.empty_like(gate)
        _gate_forward_kernel[(triton.cdiv(y.numel(), _FLAT),)](gate, up, y, y.numel(), BLOCK=_FLAT, **_types(y))
        ctx.save_for_backward(gate, up)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        dgate, dup = torch.empty_like(gate), torch.empty_like(up)
        _gate_backward_kernel[(triton.cdiv(dy.numel(), _FLAT),)](
            dy.contiguous(), gate, up, dgate, dup, dy.numel(), BLOCK=_FLAT, **_types(dy)
        )
        return dgate, dup


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether these kernels compute with x and a weight: on CUDA, in one half precision."""
    half = x.dtype in (torch.bfloat16, torch.float16) and weight.dtype == x.dtype
    return half and x.numel() > 0 and (x.is_cuda or interpreted())


def turns(head_dim: int) -> bool:
    """Whether `rotary` takes heads of this size."""
    return head_dim % 2 == 0


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / √(mean x² + eps) · weight over the last dimension of x [.., E]; weight [E] of the same type."""
    found: Tensor = _Norm.apply(x, weight, eps)
    return found


def rotary(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float = 0.0) -> Tensor:
    """Heads x [N, H, D], normed by weight [D] where there is one, turned by cos and sin [N, D] of their positions.

    The halves of a row of cos and sin are equal, as transformers makes them; their first is read.
    """
    found: Tensor = _Rotary.apply(x, weight, cos, sin, eps)
    return found


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up, of equal shapes."""
    found: Tensor = _Gate.apply(gate, up)
    return found
