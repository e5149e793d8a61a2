"""Attention within packed sequences of any lengths by one kernel of a GPU, as torch's versions have it.

Shapes: N packed tokens, S sequences, H query heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any, Protocol

from torch import Tensor


class VariableLength(Protocol):
    """Causal attention [N, H, D] within sequences that begin at offsets int32 [S + 1], none longer than `longest`, in
    which a token sees the last `window` ones (None: all)."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, longest: int, scale: float,
        window: int | None = None,
    ) -> Tensor: ...  # fmt: skip


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
