"""Drawing tokens: a stateless stream of uniforms for each sample, and the inverse of the cumulative distribution.

The uniform of token t of sample i of a request is a hash of (seed, i, t), so that a completion depends on nothing else:
not on its slot, not on its neighbours, not on when it was admitted.

Shapes: W rows (slots), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # the odd increment of splitmix64, 2^64 / golden ratio
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def stream_key(seed: int, index: int) -> int:
    """The 64-bit key of the stream of sample `index` of a request with `seed`."""
    return _mix_one(_mix_one((seed + _STEP) & _MASK) ^ _mix_one((index * _STEP + 1) & _MASK))


def position_stream(key: int) -> int:
    """The key of a separate stream, which decides where the sample with `key` is interrupted."""
    return _mix_one(key ^ _STEP)


def _mix_one(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MIX[0]) & _MASK
    z = ((z ^ (z >> 27)) * _MIX[1]) & _MASK
    return z ^ (z >> 31)


def uniforms(keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniforms in [0, 1) [W], multiples of 2⁻⁵³: splitmix64 output number `counts` of the streams `keys`, both [W]."""
    z = keys + (counts.astype(np.uint64) + np.uint64(1)) * np.uint64(_STEP)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX[0])
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX[1])
    z ^= z >> np.uint64(31)
    fraction: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return fraction


@dataclass(frozen=True, eq=False)
class Draw:
    """How W rows are drawn; None where no row needs it, so that the common case costs nothing.

    Attributes:
        uniform: float64 [W].
        temperature: float32 [W, 1] (1 where greedy), or None where all are 1.
        greedy: bool [W], or None.
        truncated: int64 [Q], the rows with a top-k or top-p, or None; then `top_k` int64 [Q] (V or more: off)
            and `top_p` float64 [Q] (1: off).
    """

    uniform: Tensor
    temperature: Tensor | None = None
    greedy: Tensor | None = None
    truncated: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None


def draw(logits: Tensor, how: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens int64 [W] from float32 logits [W, V], their log-probs float32 [W], and entropies float32 [W] in nats.

    Log-prob and entropy are of logits / temperature over the whole vocabulary, also under top-k and top-p and when
    greedy.
    """
    z = logits if how.temperature is None else logits / how.temperature
    logprobs = z.log_softmax(-1)
    probs = logprobs.exp()
    entropies = torch.special.entr(probs).sum(-1)
    if how.truncated is not None:
        assert how.top_k is not None and how.top_p is not None
        probs[how.truncated] = truncate(probs[how.truncated], how.top_k, how.top_p)
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Strictly below the total, or rounding could choose past the last token that has any probability.
    target = torch.minimum(how.uniform[:, None] * total, total.nextafter(torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulative, target, right=True)
    # Only NaN logits reach past the end; the engine reports them when the sequence finishes.
    tokens.clamp_(max=logits.shape[-1] - 1)
    if how.greedy is not None:
        tokens = torch.where(how.greedy[:, None], z.argmax(-1, keepdim=True), tokens)
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0], entropies


def truncate(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Probabilities [Q, V] with 0 outside the k most probable tokens and outside the smallest set of mass >= p.

    p is of the distribution after top-k, as in transformers; equal probabilities keep the lower token ids.
    """
    ranked, order = probs.double().sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    ranked = ranked.masked_fill(rank >= top_k[:, None], 0.0)
    mass = ranked.cumsum(-1)
    before = (mass - ranked) / mass[:, -1:]
    kept = (before < top_p[:, None]) & (ranked > 0)
    return torch.zeros_like(probs).scatter(1, order, ranked.masked_fill(~kept, 0.0).to(probs.dtype))
