"""Matrix products in C on a CPU: of few rows with packed weights, and of bfloat16 with weights as they are.

    products = native.load().products
    y = products.multiply(x, products.pack([weight], bias), float_out=True)
    y = products.forward(x, weight, bias, torch.float32)      # the same bits

Sums are float32, made in one order wherever the operands lie.

Shapes: N rows, I inputs and O outputs of a layer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int, c_long
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.model.kernels.compiled import Address, declared

_P, _L = Address, c_long
_ARGUMENTS = {
    "pack": (_P, _P, _L, _L),
    "multiply": (_P, _P, _P, _P, _L, _L, _L, c_int, c_int),
    "linear": (_P, _P, _P, _P, _L, _L, _L, c_int),
    "grad_input": (_P, _P, _P, _L, _L, _L, c_int),
    "grad_weight": (_P, _P, _P, _P, _L, _L, _L, c_int, c_int),
}
_HALF = {torch.float32: 0, torch.bfloat16: 1}
_PANEL, _LONGEST = 32, 4096  # of product.c
_LINE = 32  # numbers of bfloat16 in a cache line


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """Weights and bias as `Products.multiply` reads them: [O padded to whole panels, I]."""

    weight: Tensor
    bias: Tensor | None
    outputs: int


class Products:
    """The functions of product.c over tensors."""

    device: ClassVar[str] = "cpu"  # type of device of the tensors that fit

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions = declared(library, _ARGUMENTS)
        self._multiplies = library["strop_multiplies"]

    def call(self, name: str, *given: Tensor | float | None) -> None:
        """A function of the source."""
        self._functions[name](*given)

    def multiplies(self, dtype: torch.dtype) -> bool:
        """Whether `multiply` is for this processor and type."""
        return dtype in _HALF and bool(self._multiplies(_HALF[dtype]))

    def fits(self, weight: Tensor) -> bool:
        """Whether `forward` and its gradients take a weight [O, I]: of bfloat16 on a CPU that multiplies it, of rows of
        whole cache lines and an even number of them."""
        outputs, inputs = weight.shape
        known = weight.device.type == self.device and weight.dtype == torch.bfloat16 and weight.is_contiguous()
        return known and self.multiplies(weight.dtype) and inputs % _LINE == 0 and outputs % 2 == 0

    def pack(self, parts: Sequence[Tensor], bias: Tensor | None, into: PackedWeights | None = None) -> PackedWeights:
        """A copy of weights [O, I], one below the other (in bfloat16 I is even), and of their bias [O], as `multiply`
        reads it; the weights in the memory of `into`, an earlier one of theirs."""
        if any(len(part) % _PANEL for part in parts[:-1]):
            parts = [torch.cat(list(parts))]
        outputs = sum(map(len, parts))
        weight = parts[0].new_empty(-(-outputs // _PANEL) * _PANEL, parts[0].shape[1]) if into is None else into.weight
        start = 0
        for part in parts:
            part = part.contiguous()
            self.call("pack", part, weight[start:], len(part), part.shape[1] * part.element_size() // 4)
            start += len(part)
        return PackedWeights(weight, _padded(bias), outputs)

    def multiply(self, x: Tensor, by: PackedWeights, float_out: bool) -> Tensor:
        """x [N, I] · weightᵀ + bias [N, O], summed in float32, and with `float_out` not rounded to the type of x."""
        x = x.contiguous()
        rows, inputs = x.shape
        out = torch.empty(rows, by.outputs, dtype=torch.float32 if float_out else x.dtype)
        half = _HALF[x.dtype]
        self.call("multiply", x, by.weight, by.bias, out, rows, inputs, by.outputs, half, half and not float_out)
        return out

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """x [N, I] · weightᵀ + bias [N, O] in `dtype`, float32 or bfloat16, without a gradient."""
        (rows, inputs), outputs = x.shape, len(weight)
        out = torch.empty(rows, outputs, dtype=dtype, device=x.device)
        self.call("linear", x.contiguous(), weight, _padded(bias), out, rows, inputs, outputs, _HALF[dtype])
        return out

    def grad_input(self, grad: Tensor, weight: Tensor) -> Tensor:
        """The gradient [N, I] of x from that of the outputs [N, O], both in bfloat16."""
        outputs, inputs = weight.shape
        out = torch.empty(len(grad), inputs, dtype=grad.dtype, device=grad.device)
        self.call("grad_input", grad.contiguous(), weight, out, len(grad), inputs, outputs, 1)
        return out

    def grad_weight(self, grad: Tensor, x: Tensor, dtype: torch.dtype, onto: Tensor | None = None) -> Tensor:
        """The gradient [O, I] of the weight in `dtype` from that of the outputs [N, O] and from x [N, I], both in
        bfloat16; added to `onto` where that is given, in float32."""
        (rows, outputs), inputs = grad.shape, x.shape[1]
        if rows > _LONGEST and onto is None:
            onto = torch.zeros(outputs, inputs, device=grad.device)
        out = torch.empty(outputs, inputs, dtype=dtype, device=grad.device) if onto is None else onto
        for start in range(0, rows, _LONGEST):
            g, part = grad[start : start + _LONGEST].contiguous(), x[start : start + _LONGEST].contiguous()
            panels = x.new_empty(-(-inputs // _PANEL) * _PANEL, len(g) + len(g) % 2)
            how = (len(g), inputs, outputs, _HALF[out.dtype], onto is not None)
            self.call("grad_weight", g, part, panels, out, *how)
        return out.to(dtype)


def _padded(bias: Tensor | None) -> Tensor | None:
    """A bias [O] in float32 for whole panels."""
    return None if bias is None else F.pad(bias.float(), (0, -len(bias) % _PANEL))
