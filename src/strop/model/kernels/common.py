"""What the kernels share: types, and rounding that Triton's interpreter gets right too."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors (TRITON_INTERPRET=1 when they were imported)."""
    return bool(triton.knobs.runtime.interpret)


@triton.jit
def rounded(x, TYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """float32 x in TYPE, rounded to nearest, ties to even; the interpreter's own cast to bfloat16 cuts bits off."""
    if INTERPRETED and tl.bfloat16 == TYPE:
        bits = x.to(tl.uint32, bitcast=True)
        x = (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).to(tl.float32, bitcast=True)
    return x.to(TYPE)
