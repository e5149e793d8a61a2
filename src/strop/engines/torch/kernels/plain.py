"""The kernels of a step in plain PyTorch: for a CPU, and what the Triton kernels are held against.

None of them waits for the device, so that they may stand in a CUDA graph. Shapes: see the package.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.engines.sampling import Draw, draw
from strop.engines.torch.kernels import Heads, LayerCache, Norms, Plan


class PlainKernels:
    """See `Kernels`."""

    def norm(self, states: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Kernels`."""
        return _normed(states, weight, eps)

    def add_norm(self, states: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Kernels`."""
        residual += states
        return _normed(residual, weight, eps)

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
        rows = len(qkv)
        query, key, value = (
            part.view(rows, -1, heads.dim)
            for part in qkv.split([heads.query * heads.dim, heads.kv * heads.dim, heads.kv * heads.dim], dim=1)
        )
        if norms is not None:
            query, key = _normed(query, norms.query, norms.eps), _normed(key, norms.key, norms.eps)
        position = (lengths.long() - 1).clamp(min=0)
        cosine, sine = angles[0, position, None], angles[1, position, None]
        query, key = _rotated(query, cosine, sine), _rotated(key, cosine, sine)
        page = table.gather(1, (position // cache.page)[:, None])[:, 0].long()
        # Without the lengths on the host no row can be left out: empty ones write into page 0, which is nobody's.
        page = torch.where(lengths > 0, page, 0)
        for stored, new in ((cache.keys, key), (cache.values, value)):
            stored[page, :, position % cache.page] = new
        return query

    def attend(
        self, query: Tensor, cache: LayerCache, table: Tensor, lengths: Tensor, scale: float, how: Plan
    ) -> Tensor:
        """See `Kernels`."""
        rows, heads, dim = query.shape
        kv = cache.keys.shape[1]
        pages = table[:, : how.pages].long()
        tokens = pages.shape[1] * cache.page
        keys, values = (
            stored[pages].transpose(1, 2).reshape(rows, kv, tokens, dim).float()
            for stored in (cache.keys, cache.values)
        )
        unseen = torch.arange(tokens, device=query.device) >= lengths[:, None]
        grouped = query.view(rows, kv, heads // kv, dim).float()
        scores = (grouped @ keys.transpose(2, 3) * scale).masked_fill(unseen[:, None, None], -torch.inf)
        weights = scores.softmax(-1).nan_to_num(0.0)  # a row without any token
        output = weights @ values.masked_fill(unseen[:, None, :, None], 0.0)
        return output.view(rows, heads, dim).to(query.dtype)

    def gate(self, states: Tensor) -> Tensor:
        """See `Kernels`."""
        gate, up = states.chunk(2, dim=-1)
        return F.silu(gate) * up

    def draw(self, logits: Tensor, uniform: Tensor, temperature: Tensor, greedy: Tensor) -> tuple[Tensor, Tensor]:
        """See `Kernels`."""
        tokens, logprobs, _ = draw(logits, Draw(uniform, temperature[:, None], greedy))
        return tokens, logprobs


def _normed(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm over the last dimension, rounded to the type of the states before the weight, as transformers does."""
    wide = states.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(states.dtype)


def _rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of states [B, ·, D] by cosine and sine [B, 1, D/2]."""
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
