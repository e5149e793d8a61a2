"""Drawing a token a row in one reading of the logits: the inverse of the cumulative distribution in two levels.

The first kernel gives the maximum m_j and l_j = Σ exp(z − m_j) of every block j of z = logits / temperature. The second
finds the block in which the cumulative Σ_j l_j exp(m_j − M) passes u · total, reads that block again, and finds the
token in it; the sums that decide are float64. Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def blocks_kernel(
    logits, temperature, highest, sums, where,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Maximum, sum of exponentials and first place of the maximum of one block of one row."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(logits + row * SIZE + column, mask=column < SIZE, other=float("-inf")) / tl.load(temperature + row)
    top = tl.max(z, 0)
    base = tl.maximum(top, -1e30)  # a block of nothing but -inf sums to 0
    tl.store(highest + row * COUNT + block, top)
    tl.store(sums + row * COUNT + block, tl.sum(tl.exp(z - base), 0))
    tl.store(where + row * COUNT + block, tl.min(tl.where(z == top, column, SIZE - 1), 0))


@triton.jit
def choose_kernel(
    logits, temperature, highest, sums, where, uniform, greedy,
    tokens, logprobs,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The token of one row, and its log-prob."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, PADDED)
    inside = block < COUNT
    tops = tl.load(highest + row * COUNT + block, mask=inside, other=float("-inf"))
    parts = tl.load(sums + row * COUNT + block, mask=inside, other=0.0).to(tl.float64)
    top = tl.max(tops, 0)
    mass = parts * tl.exp(tl.maximum(tops, -1e30) - top).to(tl.float64)
    total = tl.sum(mass, 0)
    reached = tl.cumsum(mass, 0)
    target = tl.load(uniform + row) * total
    # Blocks and tokens of no mass are never chosen, whatever rounding does to the sums.
    last = tl.max(tl.where(mass > 0, block, 0), 0)
    chosen = tl.minimum(tl.sum((reached <= target).to(tl.int32), 0), last)
    before = tl.sum(tl.where(block < chosen, mass, 0.0), 0)

    scale = tl.load(temperature + row)
    place = tl.arange(0, BLOCK)
    column = chosen * BLOCK + place
    z = tl.load(logits + row * SIZE + column, mask=column < SIZE, other=float("-inf")) / scale
    e = tl.exp(z - top).to(tl.float64)
    last_place = tl.max(tl.where(e > 0, place, 0), 0)
    within = tl.minimum(tl.sum((before + tl.cumsum(e, 0) <= target).to(tl.int32), 0), last_place)
    first = tl.load(where + row * COUNT + block, mask=inside, other=SIZE - 1)
    best = tl.min(tl.where(tops == top, first, SIZE - 1), 0)
    token = tl.where(tl.load(greedy + row) != 0, best, chosen * BLOCK + within)
    token = tl.minimum(token, SIZE - 1)  # only logits that are not numbers get here
    drawn = tl.load(logits + row * SIZE + token) / scale
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, drawn - top - tl.log(total.to(tl.float32)))


def draw(logits: Tensor, uniform: Tensor, temperature: Tensor, greedy: Tensor) -> tuple[Tensor, Tensor]:
    """See `Kernels.draw`."""
    rows, size = logits.shape
    block = min(_BLOCK, triton.next_power_of_2(size))
    count = triton.cdiv(size, block)
    highest, sums = (logits.new_empty(rows, count) for _ in range(2))
    where = torch.empty(rows, count, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprobs = logits.new_empty(rows)
    blocks_kernel[(rows, count)](
        logits, temperature, highest, sums, where, SIZE=size, BLOCK=block, COUNT=count, num_warps=8
    )
    choose_kernel[(rows,)](
        logits, temperature, highest, sums, where, uniform, greedy, tokens, logprobs,
        SIZE=size, BLOCK=block, COUNT=count, PADDED=triton.next_power_of_2(count), num_warps=8,
    )  # fmt: skip
    return tokens, logprobs
