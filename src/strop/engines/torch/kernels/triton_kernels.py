"""The kernels of a step on a GPU, written in Triton; on a CPU they run in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from strop.engines.torch.kernels import Heads, LayerCache, Norms, Plan, triton_sampling
from strop.engines.torch.kernels.triton_attention import Tuning, attend
from strop.engines.torch.kernels.triton_layers import gate_kernel, norm_kernel, rotate_and_write_kernel

_GATE_BLOCK = 1024


class TritonKernels:
    """See `Kernels`. `tuning` is of the attention kernel. Tensors are contiguous, but for the table's rows."""

    def __init__(self, tuning: Tuning | None = None) -> None:
        self.tuning = Tuning() if tuning is None else tuning

    def norm(self, states: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Kernels`."""
        return _norm(states, None, weight, eps)

    def add_norm(self, states: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Kernels`."""
        return _norm(states, residual, weight, eps)

    def rotate_and_write(
        self,
        qkv: Tensor,
        heads: Heads,
        norms: Norms | None,
        angles: Tensor,
        lengths: Tensor,
        table: Tensor,
        cache: LayerCache,
    ) -> Tensor:
        """See `Kernels`."""
        query = qkv.new_empty(len(qkv), heads.query, heads.dim)
        query_weight, key_weight, eps = (qkv, qkv, 0.0) if norms is None else norms
        rotate_and_write_kernel[(len(qkv),)](
            qkv, query, query_weight, key_weight, angles, lengths, table, cache.keys, cache.values,
            eps, table.stride(0), angles.shape[1],
            HEADS=heads.query, KV=heads.kv, DIM=heads.dim, PAGE=cache.page,
            PADDED=triton.next_power_of_2(heads.query), PADDED_KV=triton.next_power_of_2(heads.kv),
            NORMED=norms is not None, num_warps=4,
        )  # fmt: skip
        return query

    def attend(
        self, query: Tensor, cache: LayerCache, table: Tensor, lengths: Tensor, scale: float, how: Plan
    ) -> Tensor:
        """See `Kernels`."""
        return attend(query, cache, table, lengths, scale, how, self.tuning)

    def gate(self, states: Tensor) -> Tensor:
        """See `Kernels`."""
        rows, width = states.shape
        output = states.new_empty(rows, width // 2)
        grid = (rows, triton.cdiv(width // 2, _GATE_BLOCK))
        gate_kernel[grid](states, output, SIZE=width // 2, BLOCK=_GATE_BLOCK, num_warps=4)
        return output

    def draw(self, logits: Tensor, uniform: Tensor, temperature: Tensor, greedy: Tensor) -> tuple[Tensor, Tensor]:
        """See `Kernels`."""
        return triton_sampling.draw(logits, uniform, temperature, greedy)


def _norm(states: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    rows, size = states.shape
    output = torch.empty_like(states)
    block = triton.next_power_of_2(size)
    norm_kernel[(rows,)](
        states, states if residual is None else residual, weight, output, eps,
        SIZE=size, BLOCK=block, ADD=residual is not None, num_warps=8 if block > 2048 else 4,
    )  # fmt: skip
    return output
