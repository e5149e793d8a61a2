"""Random choices among tokens that no split into micro-batches or ranks, and no device, changes. M tokens.

A token's number is a hash of a seed, its sample and its position; who wants k tokens at random takes the k smallest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strop.base.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


_WRAP = 1 << 64


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value %= _WRAP
    return value - _WRAP if value >> 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def mix(values: Tensor) -> Tensor:
    """One step of splitmix64 from each state, int64 in and out, [M]; products wrap as unsigned ones do."""
    z = values + _GAMMA
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def _shift(values: Tensor, bits: int) -> Tensor:
    """A right shift that fills with zeros: torch's own copies the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def token_hash(seed: int, sample: Tensor, position: Tensor) -> Tensor:
    """int64 [M], not negative: the number of each token for this seed; `sample` and `position` are int64 [M]."""
    start = torch.full_like(sample, _signed(seed))
    return _shift(mix(mix(mix(start) ^ sample) ^ position), 1)
