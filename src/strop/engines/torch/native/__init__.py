"""Kernels in C for a decode step on a CPU, compiled by the machine's own compiler.

    kernels = load()      # None where there is no compiler: the modules compute then, only slower

The sources are compiled once a machine (some seconds; see `strop.model.kernels.compiled`). A call costs
some microseconds where the operators that it stands for cost ten times as much.

Shapes: N rows, E hidden size, H query heads, K key/value heads, D head dimension, F inner size, V vocabulary.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_float, c_int, c_long
from pathlib import Path

import torch
from torch import Tensor

from strop.model.kernels.compiled import Address, compiled, declared

_SOURCES = (Path(__file__).with_name("step.c"),)
_P, _L = Address, c_long
_ARGUMENTS = {
    "add_norm": (_P, _P, _P, _P, _L, _L, c_float, c_int),
    "rotate": (_P, _P, _P, _P, _P, _P, _L, _L, _L, _L, _L, c_float, c_int),
    "gate": (_P, _P, _L, _L, c_int),
    "decode": (_P, _P, _P, _L, _L, _P, _P, _P, _P, _P, _P, _L, _L, _L, _L, _L, c_float, c_int),
    "draw": (_P, _P, _P, _P, _P, _P, _P, _L, _L),
}
_HALF = {torch.float32: 0, torch.bfloat16: 1}


class DecodeKernels:
    """The functions of the sources over tensors; what they demand of shapes `fits` tells beforehand."""

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

    def add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """x [N, E] += delta, in place; RMSNorm(x) · weight [N, E]."""
        out = torch.empty_like(x)
        rows, size = x.shape
        delta = None if delta is None else delta.contiguous()
        self._call["add_norm"](x, delta, weight, out, rows, size, eps, _HALF[x.dtype])
        return out

    def rotate(
        self, x: Tensor, norms: tuple[Tensor, Tensor] | None, tables: tuple[Tensor, Tensor], positions: Tensor,
        heads: int, kv_heads: int, head_dim: int, eps: float,
    ) -> None:  # fmt: skip
        """Norm (where a model does) and turn the query and key heads in x [N, (H + 2 K) D], in place."""
        weights = (None, None) if norms is None else norms
        self._call["rotate"](
            x, *weights, *tables, positions, *x.shape, heads, kv_heads, head_dim, eps, _HALF[x.dtype]
        )

    def gate(self, x: Tensor) -> Tensor:
        """silu(x[:, :F]) · x[:, F:] [N, F] of x [N, 2 F]."""
        rows, size = x.shape
        out = x.new_empty(rows, size // 2)
        self._call["gate"](x, out, rows, size // 2, _HALF[x.dtype])
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
