"""Log-prob, entropy and their gradients from hidden states and the head's weight; the logits are never stored.

Forward: a matrix product whose epilogue keeps, of each tile of logits, five numbers a row at most; they are combined
afterwards. Backward: the vocabulary is cut into slices; for each the logits are computed again, turned into their
gradient while they are in registers, and written in half precision; two products of cuBLAS then give

    ∂hidden += ∂z · weight[slice]  (summed in float32),     ∂weight[slice] = ∂zᵀ · hidden  (rounded once)

Slices of the vocabulary, not chunks of rows: so the weight's gradient needs no float32 buffer of its size, and that of
hidden is small. Operands are bfloat16 or float16 as they lie in memory, sums are float32, on tensor cores.
docs/gpu_training.md counts what this must cost.

Shapes: M rows, E hidden size, V vocabulary, T tiles of the vocabulary, W columns of a slice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from strop.model.kernels.common import TYPES, interpreted, rounded


class Tiling(NamedTuple):
    """How a kernel cuts its product: a program makes `rows` × `columns` logits, `inner` of E at a time.

    `group` row blocks go through the vocabulary side by side, so that they share what they read of the weight. With
    `descriptors` tiles are fetched by the copy engine of Hopper (TMA), which wants rows of whole 16 bytes.
    """

    rows: int = 128
    columns: int = 256
    inner: int = 64
    warps: int = 8
    stages: int = 3
    group: int = 16
    descriptors: bool = False


# Compiled for Hopper neither spills registers in its inner loop; `bench/kernels.py` times others beside them.
FORWARD = BACKWARD = Tiling(descriptors=True)
OLDER = Tiling(columns=128, inner=32)  # 48 KiB of shared memory, no copy engine


class Statistics(NamedTuple):
    """Of each row's distribution, float32 [M]; `collision` is Σ_j p_j² (log p_j + H), None where not asked for."""

    logprob: Tensor
    entropy: Tensor
    normaliser: Tensor
    collision: Tensor | None


@triton.jit
def _place(rows, columns, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """This program's row block and column block."""
    program = tl.program_id(0)
    row_blocks, column_blocks = tl.cdiv(rows, BM), tl.cdiv(columns, BN)
    width = GROUP * column_blocks
    first = (program // width) * GROUP
    size = tl.minimum(row_blocks - first, GROUP)
    return first + (program % width) % size, (program % width) // size


@triton.jit
def _logits(
    x_ref, w_ref, bias_ref, row0, column0, rows, vocabulary, scale,
    E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr, TYPE: tl.constexpr,
    ROUND: tl.constexpr, DESCRIPTORS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """A tile [BM, BN] of scale · (hidden · weightᵀ + bias), float32; columns beyond the vocabulary are −inf."""
    r, c, k = row0 + tl.arange(0, BM), column0 + tl.arange(0, BN), tl.arange(0, BK)
    z = tl.zeros((BM, BN), tl.float32)
    if not DESCRIPTORS:
        x_ref += tl.minimum(r, rows - 1).to(tl.int64)[:, None] * E + k[None, :]
        w_ref += tl.minimum(c, vocabulary - 1).to(tl.int64)[:, None] * E + k[None, :]
    for d in range(0, E, BK):
        if DESCRIPTORS:
            x = x_ref.load([row0, d])
            w = w_ref.load([column0, d])
        elif E % BK == 0:
            x = tl.load(x_ref + d)
            w = tl.load(w_ref + d)
        else:
            x = tl.load(x_ref + d, mask=(d + k < E)[None, :], other=0.0)
            w = tl.load(w_ref + d, mask=(d + k < E)[None, :], other=0.0)
        if INTERPRETED:  # the interpreter has no bfloat16 arithmetic
            x = x.to(tl.float32)
            w = w.to(tl.float32)
        z = tl.dot(x, w.T, z)
    if BIAS:
        z += tl.load(bias_ref + c, mask=c < vocabulary, other=0.0).to(tl.float32)[None, :]
    if ROUND:
        z = rounded(z, TYPE, INTERPRETED).to(tl.float32)
    return tl.where((c < vocabulary)[None, :], z * scale, float("-inf"))


# Numbers of rows differ from micro-batch to micro-batch: nothing is compiled anew for them.
@triton.jit(do_not_specialize=["rows"])
def _statistics_kernel(
    x_ref, w_ref, bias_ref, target_ref, parts_ref, picked_ref, rows,
    vocabulary, scale, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, BIAS: tl.constexpr, TYPE: tl.constexpr, ROUND: tl.constexpr, DESCRIPTORS: tl.constexpr,
    INTERPRETED: tl.constexpr, SQUARES: tl.constexpr,
):  # fmt: skip
    """Of each row and tile, with e = exp(z − best): best = max z, Σ e, Σ e·(z − best); SQUARES: Σ e², Σ e²·(z − best).

    `parts` float32 [3 or 5, T, M]; `picked` [M] gets the target's z from the one tile that has it.
    """
    block, tile = _place(rows, vocabulary, BM, BN, GROUP)
    z = _logits(x_ref, w_ref, bias_ref, block * BM, tile * BN, rows, vocabulary, scale, E, BM, BN, BK, BIAS, TYPE,
                ROUND, DESCRIPTORS, INTERPRETED)  # fmt: skip
    r, c = block * BM + tl.arange(0, BM), tile * BN + tl.arange(0, BN)
    inside = r < rows
    target = tl.load(target_ref + r, mask=inside, other=-1).to(tl.int32)
    picked = tl.sum(tl.where(c[None, :] == target[:, None], z, 0.0), 1)
    here = (target >= tile * BN) & (target < tl.minimum(tile * BN + BN, vocabulary))
    tl.store(picked_ref + r, picked, mask=inside & here)
    best = tl.max(z, 1)
    gap = tl.where((c < vocabulary)[None, :], z - best[:, None], 0.0)
    e = tl.where((c < vocabulary)[None, :], tl.exp(gap), 0.0)
    at = parts_ref + tile.to(tl.int64) * rows + r
    part = tl.cdiv(vocabulary, BN).to(tl.int64) * rows
    tl.store(at, best, mask=inside)
    tl.store(at + part, tl.sum(e, 1), mask=inside)
    tl.store(at + 2 * part, tl.sum(e * gap, 1), mask=inside)
    if SQUARES:
        tl.store(at + 3 * part, tl.sum(e * e, 1), mask=inside)
        tl.store(at + 4 * part, tl.sum(e * e * gap, 1), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _gradient_kernel(
    x_ref, w_ref, bias_ref, target_ref, norm_ref, entropy_ref, up_logprob_ref,
    up_entropy_ref, out_ref, rows, start, width, vocabulary, scale,
    E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, BIAS: tl.constexpr,
    TYPE: tl.constexpr, ROUND: tl.constexpr, DESCRIPTORS: tl.constexpr, INTERPRETED: tl.constexpr,
    LOGPROB: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    """∂/∂(hidden · weightᵀ) [M, W] of Σ up_logprob · logprob + up_entropy · entropy, columns from `start` on:

    scale · (up_logprob · (1[j = target] − p_j) − up_entropy · p_j (log p_j + H)); 0 beyond the vocabulary.
    """
    block, tile = _place(rows, width, BM, BN, GROUP)
    column0 = start + tile * BN
    z = _logits(x_ref, w_ref, bias_ref, block * BM, column0, rows, vocabulary, scale, E, BM, BN, BK, BIAS, TYPE, ROUND,
                DESCRIPTORS, INTERPRETED)  # fmt: skip
    r, c = block * BM + tl.arange(0, BM), column0 + tl.arange(0, BN)
    inside = r < rows
    valid = inside[:, None] & (c < vocabulary)[None, :]
    log_p = tl.where(valid, z - tl.load(norm_ref + r, mask=inside, other=0.0)[:, None], 0.0)
    p = tl.where(valid, tl.exp(log_p), 0.0)
    grad = tl.zeros((BM, BN), tl.float32)
    if ENTROPY:
        entropy = tl.load(entropy_ref + r, mask=inside, other=0.0)
        up = tl.load(up_entropy_ref + r, mask=inside, other=0.0)
        grad -= up[:, None] * p * (log_p + entropy[:, None])
    if LOGPROB:
        target = tl.load(target_ref + r, mask=inside, other=-1).to(tl.int32)
        up = tl.load(up_logprob_ref + r, mask=inside, other=0.0)
        grad += up[:, None] * (tl.where(c[None, :] == target[:, None], 1.0, 0.0) - p)
    at = out_ref + r.to(tl.int64)[:, None] * width + (tile * BN + tl.arange(0, BN))[None, :]
    tl.store(at, rounded(grad * scale, TYPE, INTERPRETED), mask=inside[:, None])


def _operands(hidden: Tensor, weight: Tensor, tiling: Tiling) -> tuple[Any, Any, bool]:
    """What the kernel reads hidden and weight through, and whether these are descriptors."""
    aligned = all(t.data_ptr() % 16 == 0 and t.shape[1] * t.element_size() % 16 == 0 for t in (hidden, weight))
    if not (tiling.descriptors and aligned):
        return hidden, weight, False
    x = TensorDescriptor.from_tensor(hidden, [tiling.rows, tiling.inner])
    return x, TensorDescriptor.from_tensor(weight, [tiling.columns, tiling.inner]), True


def _options(hidden: Tensor, bias: Tensor | None, fp32: bool, tiling: Tiling, descriptors: bool) -> dict[str, Any]:
    """Compile-time arguments that both kernels take."""
    return {
        "E": hidden.shape[1], "BM": tiling.rows, "BN": tiling.columns, "BK": tiling.inner, "GROUP": tiling.group,
        "BIAS": bias is not None, "TYPE": TYPES[hidden.dtype], "ROUND": not fp32, "DESCRIPTORS": descriptors,
        "INTERPRETED": interpreted(), "num_warps": tiling.warps, "num_stages": tiling.stages,
    }  # fmt: skip


def statistics(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float, fp32: bool,
    squares: bool = False, tiling: Tiling = FORWARD,
) -> Statistics:  # fmt: skip
    """Log-prob of target [M] and more, of hidden [M, E] · weightᵀ [E, V] / temperature; see `Statistics`.

    Hidden and weight are contiguous and of one half-precision type. Without `fp32` logits are rounded to it first.
    A target outside the vocabulary has a log-prob that is not a number.
    """
    rows, vocabulary = hidden.shape[0], weight.shape[0]
    tiles = triton.cdiv(vocabulary, tiling.columns)
    parts = torch.empty(5 if squares else 3, tiles, rows, device=hidden.device)
    picked = torch.full((rows,), float("nan"), device=hidden.device)
    x, w, descriptors = _operands(hidden, weight, tiling)
    _statistics_kernel[(triton.cdiv(rows, tiling.rows) * tiles,)](
        x, w, bias, target, parts, picked, rows, vocabulary, 1.0 / temperature, SQUARES=squares,
        **_options(hidden, bias, fp32, tiling, descriptors),
    )  # fmt: skip
    return _combined(parts, picked)


def _combined(parts: Tensor, picked: Tensor) -> Statistics:
    """Statistics of whole rows from those of tiles [3 or 5, T, M]; everything relative to the largest logit."""
    best = parts[0].amax(0)
    shift = parts[0] - best
    factor = shift.exp()
    mass = (factor * parts[1]).sum(0)
    moment = (factor * (parts[2] + shift * parts[1])).sum(0)
    normaliser = best + mass.log()
    # H = log Σe − Σ e·(z − best) / Σe, with e = exp(z − best)
    entropy = mass.log() - moment / mass
    collision = None
    if len(parts) == 5:
        squared = factor * factor
        square = (squared * parts[3]).sum(0)
        square_moment = (squared * (parts[4] + shift * parts[3])).sum(0)
        # log p_j + H = (z_j − best) − (log Σe − H)
        collision = (square_moment - (mass.log() - entropy) * square) / (mass * mass)
    return Statistics(picked - normaliser, entropy, normaliser, collision)


class Upstream(NamedTuple):
    """What the gradient of the logits is made of: gradients of log-prob and entropy [M], and the row's statistics."""

    logprob: Tensor | None
    entropy: Tensor | None
    normaliser: Tensor
    row_entropy: Tensor


def gradients(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float, fp32: bool,
    upstream: Upstream, chunk: int, needs: tuple[bool, bool, bool] = (True, True, True), tiling: Tiling = BACKWARD,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of hidden [M, E], weight [V, E] and bias [V], in their types; None for what `needs` leaves out.

    At most about `chunk` · V numbers of half precision exist at a time, or M · `tiling.columns` where that is more.
    """
    rows, vocabulary = hidden.shape[0], weight.shape[0]
    columns = max(chunk * vocabulary // rows // tiling.columns, 1) * tiling.columns
    columns = min(columns, triton.cdiv(vocabulary, tiling.columns) * tiling.columns)
    buffer = torch.empty(rows * columns, dtype=hidden.dtype, device=hidden.device)
    x, w, descriptors = _operands(hidden, weight, tiling)
    options = _options(hidden, bias, fp32, tiling, descriptors)
    grad_hidden: Tensor | None = None
    grad_weight = torch.empty_like(weight) if needs[1] else None
    grad_bias = torch.empty_like(bias) if needs[2] and bias is not None else None
    for start in range(0, vocabulary, columns):
        stop = min(start + columns, vocabulary)
        tiles = triton.cdiv(stop - start, tiling.columns)
        width = tiles * tiling.columns
        _gradient_kernel[(triton.cdiv(rows, tiling.rows) * tiles,)](
            x, w, bias, target, upstream.normaliser, upstream.row_entropy, upstream.logprob, upstream.entropy, buffer,
            rows, start, width, vocabulary, 1.0 / temperature, LOGPROB=upstream.logprob is not None,
            ENTROPY=upstream.entropy is not None, **options,
        )  # fmt: skip
        grad = buffer[: rows * width].view(rows, width)[:, : stop - start]
        if needs[0]:
            grad_hidden = _add_product(grad_hidden, grad, weight[start:stop])
        if grad_weight is not None:
            torch.mm(grad.t(), hidden, out=grad_weight[start:stop])
        if grad_bias is not None:
            grad_bias[start:stop] = grad.sum(0, dtype=torch.float32)
    return None if grad_hidden is None else grad_hidden.to(hidden.dtype), grad_weight, grad_bias


def _add_product(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """total + left · right, summed in float32; `total` itself is changed."""
    # Not addmm, which in some versions of torch wants a total of the factors' type.
    product = torch.mm(left, right, out_dtype=torch.float32) if left.is_cuda else left.float() @ right.float()
    return product if total is None else total.add_(product)


class LogprobEntropy(torch.autograd.Function):
    """(logprob [M], entropy [M]) with gradients to hidden, weight and bias from both."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float, chunk: int,
        fp32: bool, tilings: tuple[Tiling, Tiling],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        hidden, weight = hidden.contiguous(), weight.contiguous()
        found = statistics(hidden, weight, bias, target, temperature, fp32, tiling=tilings[0])
        ctx.save_for_backward(hidden, weight, bias, target, found.normaliser, found.entropy)
        ctx.options = (temperature, chunk, fp32, tilings[1])
        ctx.set_materialize_grads(False)
        return found.logprob, found.entropy

    @staticmethod
    def backward(ctx: Any, grad_logprob: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, normaliser, entropy = ctx.saved_tensors
        temperature, chunk, fp32, tiling = ctx.options
        ups = [None if grad is None else grad.float().contiguous() for grad in (grad_logprob, grad_entropy)]
        upstream = Upstream(ups[0], ups[1], normaliser, entropy)
        needs = tuple(ctx.needs_input_grad[:3])
        found = gradients(hidden, weight, bias, target, temperature, fp32, upstream, chunk, needs, tiling)
        return *found, None, None, None, None, None


def _tiling(device: torch.device, wanted: Tiling) -> Tiling:
    """What the device can do: copy engine and shared memory of Hopper or later, or less."""
    return wanted if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] >= 9 else OLDER


def logprob_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float, chunk: int, fp32: bool,
    tilings: tuple[Tiling, Tiling] = (FORWARD, BACKWARD),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `strop.model.head.logprob_entropy`, for M ≥ 1 rows of half precision; `tilings` of forward and of backward."""
    tilings = (_tiling(hidden.device, tilings[0]), _tiling(hidden.device, tilings[1]))
    found: tuple[Tensor, Tensor] = LogprobEntropy.apply(hidden, weight, bias, target, temperature, chunk, fp32, tilings)
    return found


@torch.no_grad()
def collision(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, fp32: bool) -> Tensor:
    """As `strop.model.head.collision`, for M ≥ 1 rows of half precision, in one pass over the vocabulary."""
    nobody = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
    tiling = _tiling(hidden.device, FORWARD)
    found = statistics(hidden.contiguous(), weight.contiguous(), bias, nobody, temperature, fp32, True, tiling)
    assert found.collision is not None
    return found.collision
