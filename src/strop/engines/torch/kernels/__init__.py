"""What a paged decoding step computes beside matrix products, in plain PyTorch and as Triton kernels.

Every kernel rounds where transformers' own modules round, so that a step in half precision differs from the trainer's
forward pass by the order of sums alone.

Shapes: B rows (sequences that decode), E hidden size, H query heads, K key/value heads, D head dimension, I width of
the feed-forward layers, V vocabulary, P pages of a cache, S tokens of a page, W pages of a row, T positions.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Heads", "Kernels", "LayerCache", "Norms", "Plan", "kernels_for", "plan", "triton_suits"]

# Tokens of a row's context that one program reads at most.
_CHUNK = 2048
# Programs for each multiprocessor, below which contexts are divided further: some run at once, and the last ones of a
# launch leave others idle.
_PROGRAMS = 24
_LEAST_CHUNK = 256


class Heads(NamedTuple):
    """Numbers of query and key/value heads, and their dimension."""

    query: int
    kv: int
    dim: int


class Norms(NamedTuple):
    """Weights [D] of the norms of each query and key head, and their epsilon."""

    query: Tensor
    key: Tensor
    eps: float


class LayerCache(NamedTuple):
    """Keys and values of one layer, each [P, K, S, D]."""

    keys: Tensor
    values: Tensor

    @property
    def page(self) -> int:
        """S, tokens of a page."""
        return self.keys.shape[2]


@dataclass(frozen=True)
class Plan:
    """How far a step reads: the host knows a bound of its longest row, never the lengths themselves.

    Attributes:
        pages: W, pages that the longest row may have.
        splits: programs that share each row's context, evenly.
    """

    pages: int
    splits: int


def plan(rows: int, heads: Heads, longest: int, page: int, processors: int) -> Plan:
    """The plan of a step whose longest row has at most `longest` tokens.

    Numbers of pages are powers of two, so that few plans (and CUDA graphs) come up as contexts grow.
    """
    pages = _power(-(-longest // page))
    tokens = pages * page
    wanted = max(-(-_PROGRAMS * processors // (rows * heads.kv)), -(-tokens // _CHUNK))
    return Plan(pages, min(_power(wanted), max(1, tokens // max(_LEAST_CHUNK, page))))


def _power(number: int) -> int:
    """The least power of two that is not below `number`."""
    return 1 << max(0, number - 1).bit_length()


class Kernels(Protocol):
    """The kernels of a step.

    `lengths` int32 [B] is the context of each row, its new token included; 0 where the row is empty, which attends to
    nothing and writes nothing but into page 0, which is nobody's. `table` int32 [B, ≥ W] has the pages of each row in
    order.
    """

    def norm(self, states: Tensor, weight: Tensor, eps: float) -> Tensor:
        """The root-mean-square norm of states [B, E] times weight [E]."""
        ...

    def add_norm(self, states: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add states [B, E] to `residual` [B, E] in place; the norm of the sum."""
        ...

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
        """Queries [B, H, D] of qkv [B, (H + 2K) D], normed and rotated; keys (likewise) and values go to the cache.

        `angles` [2, T, D/2] are cosines and sines of each position; a row's new token is at `lengths - 1`.
        """
        ...

    def attend(
        self, query: Tensor, cache: LayerCache, table: Tensor, lengths: Tensor, scale: float, how: Plan
    ) -> Tensor:
        """Attention [B, H, D] of query [B, H, D] over the first `lengths` tokens of each row; 0 for an empty row."""
        ...

    def gate(self, states: Tensor) -> Tensor:
        """silu(gate) · up [B, I] of states [B, 2I], gate first."""
        ...

    def draw(self, logits: Tensor, uniform: Tensor, temperature: Tensor, greedy: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens int64 [B] and their log-probs float32 [B] from float32 logits [B, V], as `sampling.draw`.

        uniform float64, temperature float32 and greedy bool are [B].
        """
        ...


def triton_suits(device: torch.device, heads: Heads) -> bool:
    """Whether Triton's kernels can run there, with such heads."""
    whole = heads.dim >= 16 and not heads.dim & (heads.dim - 1)
    return device.type == "cuda" and whole and importlib.util.find_spec("triton") is not None


def kernels_for(device: torch.device, heads: Heads) -> Kernels:
    """Triton's kernels on a GPU, plain PyTorch where they do not suit."""
    if triton_suits(device, heads):
        # Imported here: it needs Triton, which comes with PyTorch for CUDA only.
        from strop.engines.torch.kernels.triton_kernels import TritonKernels

        return TritonKernels()
    from strop.engines.torch.kernels.plain import PlainKernels

    return PlainKernels()
