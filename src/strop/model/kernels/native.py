"""Kernels in C for a decoder layer between its matrix products, and for logits, on a CPU, forward and backward.

    kernels = load()      # None where there is no compiler: the modules compute as before then

They compute in float32, round results where the modules of transformers round, and gradients once at the end.
PyTorch's operators go through memory about ten times for a norm, and attend padded batches. Sums over rows are made in
one order, whatever the number of threads.

Matrix products: with packed weights, and with weights as they are. Their sums are float32 too.

    products = kernels.products
    y = products.multiply(x, products.pack([weight], bias), float_out=True)
    y = products.forward(x, weight, bias, torch.float32)      # the same bits

Shapes: N rows (tokens), I inputs and O outputs of a product, E features of a row, H query heads, K key/value heads,
D features of a head.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import c_float, c_int, c_long
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.base.types import StropError
from strop.model.kernels.compiled import Address, compiled, declared

_P, _L = Address, c_long
_PRODUCT_ARGUMENTS = {
    "pack": (_P, _P, _L, _L),
    "multiply": (_P, _P, _P, _P, _L, _L, _L, c_int, c_int),
    "linear": (_P, _P, _P, _P, _L, _L, _L, c_int, c_int),
    "grad_input": (_P, _P, _P, _L, _L, _L, c_int, c_int),
    "grad_weight": (_P, _P, _P, _P, _L, _L, _L, c_int, c_int, c_int),
}
_TYPES = {torch.float32: 0, torch.bfloat16: 1}
_LONGEST = 4096  # of product.c


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """Weights and bias as `Products.multiply` reads them: [O padded to whole panels, I]."""

    weight: Tensor
    bias: Tensor | None
    outputs: int


class Products:
    """The functions of product.c over tensors of float32 or bfloat16; sums are float32.

    On a CPU without a dot product of bfloat16 weights stay in it, and what they are multiplied by is widened first.
    """

    device: ClassVar[str] = "cpu"  # type of device of the tensors that fit

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions = declared(library, _PRODUCT_ARGUMENTS)
        self._panel = int(library.strop_panel())
        self._dots = bool(library.strop_dots())
        self._tuned = bool(library.strop_tuned())

    def __deepcopy__(self, memo: object) -> Products:
        """Itself: copies of a model share the library."""
        return self

    def call(self, name: str, *given: Tensor | float | None) -> None:
        """A function of the source."""
        self._functions[name](*given)

    def multiplies(self, dtype: torch.dtype) -> bool:
        """Whether the products are for this processor and type."""
        return dtype in _TYPES and self._panel > 0

    @property
    def widens(self) -> bool:
        """Whether bfloat16 is widened to float32 because this CPU does not multiply it, and torch only emulates it."""
        return self._panel > 0 and not self._dots

    def outdo(self, dtype: torch.dtype) -> bool:
        """Whether torch's own products of this type are slower: of bfloat16 that it emulates, and of float32 on a CPU
        that its library is not tuned for."""
        return self.widens if dtype == torch.bfloat16 else self.multiplies(dtype) and not self._tuned

    def fits(self, weight: Tensor) -> bool:
        """Whether `forward` and its gradients take a weight [O, I] (bfloat16 of even sizes), and are worth it."""
        half = weight.dtype == torch.bfloat16
        worth = self.multiplies(weight.dtype) if half else self.outdo(weight.dtype)
        known = weight.device.type == self.device and weight.is_contiguous()
        return worth and known and not (half and any(size % 2 for size in weight.shape))

    def take(self, x: Tensor, weight: Tensor) -> bool:
        """Whether `linear` takes x [.., I] and a weight [O, I], of one type."""
        return x.dtype == weight.dtype and self.fits(weight)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [.., I] · weightᵀ + bias [.., O] in the type of x, without a gradient."""
        return self.forward(x.flatten(0, -2), weight, bias, x.dtype).view(*x.shape[:-1], -1)

    def pack(self, parts: Sequence[Tensor], bias: Tensor | None, into: PackedWeights | None = None) -> PackedWeights:
        """A copy of weights [O, I], one below the other (in bfloat16 I is even), and of their bias [O], as `multiply`
        reads it; the weights in the memory of `into`, an earlier one of theirs."""
        if any(len(part) % self._panel for part in parts[:-1]):
            parts = [torch.cat(list(parts))]
        outputs = sum(map(len, parts))
        padded = -(-outputs // self._panel) * self._panel
        weight = parts[0].new_empty(padded, parts[0].shape[1]) if into is None else into.weight
        start = 0
        for part in parts:
            part = part.contiguous()
            self.call("pack", part, weight[start:], len(part), part.shape[1] * part.element_size() // 4)
            start += len(part)
        return PackedWeights(weight, self._padded(bias), outputs)

    def multiply(self, x: Tensor, by: PackedWeights, float_out: bool) -> Tensor:
        """x [N, I] · weightᵀ + bias [N, O], summed in float32, and with `float_out` not rounded to the type of x."""
        out = torch.empty(len(x), by.outputs, dtype=torch.float32 if float_out else x.dtype, device=x.device)
        types = _TYPES[by.weight.dtype], _TYPES[out.dtype]
        self.call("multiply", self._read(x, by.weight), by.weight, by.bias, out, *x.shape, by.outputs, *types)
        return out

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """x [N, I] · weightᵀ + bias [N, O] in `dtype`, without a gradient."""
        out = torch.empty(len(x), len(weight), dtype=dtype, device=x.device)
        types = _TYPES[weight.dtype], _TYPES[dtype]
        self.call("linear", self._read(x, weight), weight, self._padded(bias), out, *x.shape, len(weight), *types)
        return out

    def grad_input(self, grad: Tensor, weight: Tensor) -> Tensor:
        """The gradient [N, I] of x, in the type of the weight, from that of the outputs [N, O]."""
        outputs, inputs = weight.shape
        out = torch.empty(len(grad), inputs, dtype=weight.dtype, device=grad.device)
        half = _TYPES[weight.dtype]
        self.call("grad_input", self._read(grad, weight), weight, out, len(grad), inputs, outputs, half, half)
        return out

    def grad_weight(self, grad: Tensor, x: Tensor, dtype: torch.dtype, onto: Tensor | None = None) -> Tensor:
        """The gradient [O, I] of the weight in `dtype` from that of the outputs [N, O] and from x [N, I]; added to
        `onto` where that is given, in float32."""
        (rows, outputs), inputs = grad.shape, x.shape[1]
        if rows > _LONGEST and onto is None:
            onto = torch.zeros(outputs, inputs, device=x.device)
        out = torch.empty(outputs, inputs, dtype=dtype, device=x.device) if onto is None else onto
        half, padded = _TYPES[x.dtype], -(-inputs // self._panel) * self._panel
        for start in range(0, rows, _LONGEST):
            part = x[start : start + _LONGEST].contiguous()
            given = self._read(grad[start : start + _LONGEST], part)
            panels = x.new_empty(padded, len(part) + half * (len(part) % 2))
            sizes = len(part), inputs, outputs
            self.call("grad_weight", given, part, panels, out, *sizes, half, _TYPES[out.dtype], onto is not None)
        return out.to(dtype)

    def _read(self, x: Tensor, weight: Tensor) -> Tensor:
        """x as the source reads it with this weight: in its type, or in float32 where nothing multiplies bfloat16."""
        return x.to(torch.float32 if self.widens else weight.dtype).contiguous()

    def _padded(self, bias: Tensor | None) -> Tensor | None:
        """A bias [O] in float32 for whole panels."""
        return None if bias is None else F.pad(bias.float(), (0, -len(bias) % self._panel))


_SOURCES = tuple(Path(__file__).with_name(name) for name in ("layers.c", "attention.c", "softmax.c", "product.c"))
_ARGUMENTS = {
    "norm_forward": (_P, _P, _P, _P, _L, _L, c_float, c_int, c_int),
    "norm_backward": (_P, _P, _P, _P, _P, _P, _L, _L, c_int, c_int),
    "rotary_forward": (_P, _P, _P, _P, _P, _P, _L, _L, _L, c_float, c_int, c_int),
    "rotary_backward": (_P, _P, _P, _P, _P, _P, _P, _P, _L, _L, _L, c_int, c_int),
    "gate_forward": (_P, _P, _P, _L, c_int, c_int),
    "gate_backward": (_P, _P, _P, _P, _P, _L, c_int, c_int),
    "softmax_forward": (_P, _P, _P, _P, _P, _L, _L, c_int),
    "softmax_backward": (_P, _P, _P, _P, _P, _P, _P, _L, _L, c_float, c_float, c_int),
}
_MAY_FAIL = {  # these return whether there was no memory for them
    "attention_forward": (_P, _P, _P, _P, _P, _P, _P, _L, _L, _L, _L, c_float, c_int),
    "attention_backward": (*(_P,) * 11, _L, _L, _L, _L, c_float, c_int),
}
_BLOCK = 64  # rows that are summed together in layers.c
LANES = 16


class Activation(IntEnum):
    """Of a gated unit, by its number in `vectors.h`."""

    SILU = 0
    GELU = 1  # by tanh


class LayerKernels:
    """The functions of the sources over tensors."""

    device: ClassVar[str] = "cpu"  # type of device of the tensors that fit

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions = declared(library, _ARGUMENTS) | declared(library, _MAY_FAIL, c_int)
        self.products = Products(library)

    def call(self, name: str, *given: Tensor | float | None) -> None:
        """A function of the sources; the type of its tensors, which are contiguous, goes with them.

        Raises:
            StropError: there was no memory for it.
        """
        first = given[0]
        assert isinstance(first, Tensor)
        if self._functions[name](*given, _TYPES[first.dtype]):
            raise StropError(f"no memory left to compute {name.replace('_', ' ')}; lower batch.tokens_per_microbatch")

    def fits(self, x: Tensor, weight: Tensor) -> bool:
        """Whether rows of x [.., E] by a weight of its type can be computed here."""
        known = x.device.type == self.device and x.dtype in _TYPES and weight.dtype == x.dtype
        return known and x.shape[-1] % LANES == 0 and x.numel() > 0

    def turns(self, head_dim: int) -> bool:
        """Whether `rotary` takes heads of this size."""
        return head_dim % (2 * LANES) == 0

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, plus: bool = False) -> Tensor:
        """x / √(mean x² + eps) · weight over the last dimension of x [.., E]; weight [E] of the same type.

        With `plus` by 1 + weight, and rounded only once, as Gemma's.
        """
        found: Tensor = _Norm.apply(x, weight, eps, plus, self)
        return found

    def rotary(
        self, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float = 0.0, plus: bool = False
    ) -> Tensor:
        """Heads x [N, H, D], normed by weight [D] where there is one, turned by cos and sin [N, D]; D is of whole 32s.

        The halves of a row of cos and sin are equal, as transformers makes them; their first is read.
        """
        found: Tensor = _Rotary.apply(x, weight, cos, sin, eps, plus, self)
        return found

    def gated(self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        """activation(gate) · up, of equal shapes [.., whole 16s]."""
        found: Tensor = _Gate.apply(gate, up, activation, self)
        return found

    def attends(self, dtype: torch.dtype, head_dim: int) -> bool:
        """Whether `attention` takes heads of this type and size."""
        return dtype in _TYPES and head_dim % LANES == 0

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, ends: Tensor, groups: Tensor, scale: float
    ) -> Tensor:
        """Causal attention [N, H, D] of query [N, H, D] over key, value [N, K, D].

        Args:
            ends: int64 [pieces + 1]; piece p are the tokens ends[p] to ends[p + 1].
            groups: int64 [groups + 1]; the pieces groups[g] to groups[g + 1] are a group, in which each sees itself and
                the first; a sequence that shares nothing is a group of one piece.
        """
        found: Tensor = _Attention.apply(query, key, value, ends, groups, scale, self)
        return found

    def reads_logits(self, z: Tensor) -> bool:
        """Whether `softmax` takes these logits."""
        return z.device.type == self.device and z.dtype == torch.float32

    def softmax(self, z: Tensor, target: Tensor, out: tuple[Tensor, Tensor, Tensor]) -> None:
        """Log-prob of target [M], entropy and log Σ e^z of logits z [M, V], written to `out`, float32 [M] each."""
        self.call("softmax_forward", z, target, *out, *z.shape)

    def softmax_backward(
        self, z: Tensor, target: Tensor, normaliser: Tensor, entropy: Tensor,
        ups: tuple[Tensor | None, Tensor | None], dtype: torch.dtype, scale: float, over: float,
    ) -> Tensor:  # fmt: skip
        """∂/∂product [M, V] in `dtype` of Σ up · logprob + up' · entropy, where z is what `softmax` was given; `ups`
        are (up, up'), [M] each or None.

        ∂z / ∂product is scale · (1 − (z · over)²). In float32 it takes the place of z.
        """
        out = z if dtype == z.dtype else torch.empty_like(z, dtype=dtype)
        given = [None if up is None else up.contiguous() for up in ups]
        self.call("softmax_backward", out, z, target, normaliser, entropy, *given, *z.shape, scale, over)
        return out


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, plus: bool, kernels: LayerKernels) -> Tensor:
        x = x.contiguous()
        features = x.shape[-1]
        y, scale = torch.empty_like(x), torch.empty(x.numel() // features, device=x.device)
        kernels.call("norm_forward", x, weight, y, scale, len(scale), features, eps, plus)
        ctx.save_for_backward(x, weight, scale)
        ctx.plus, ctx.kernels = plus, kernels
        return y

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        up = up.contiguous()
        rows, features = len(scale), x.shape[-1]
        dx, dw = torch.empty_like(x), torch.empty(-(-rows // _BLOCK), features, device=x.device)
        ctx.kernels.call("norm_backward", up, x, weight, scale, dx, dw, rows, features, ctx.plus)
        return dx, dw.sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None, None, None, None


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, plus: bool,
        kernels: LayerKernels,
    ) -> Tensor:  # fmt: skip
        x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
        tokens, heads, features = x.shape
        y, scale = torch.empty_like(x), torch.empty(tokens * heads if weight is not None else 0, device=x.device)
        kernels.call("rotary_forward", x, weight, cos, sin, y, scale, tokens, heads, features, eps, plus)
        # Without a norm the gradient does not depend on x.
        ctx.save_for_backward(None if weight is None else x, weight, cos, sin, scale)
        ctx.plus, ctx.kernels = plus, kernels
        return y

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, cos, sin, scale = ctx.saved_tensors
        up = up.contiguous()
        tokens, heads, features = up.shape
        dx = torch.empty_like(up)
        dw = torch.empty(-(-tokens // _BLOCK), 0 if weight is None else features, device=up.device)
        sizes = tokens, heads, features
        ctx.kernels.call("rotary_backward", up, x, weight, cos, sin, scale, dx, dw, *sizes, ctx.plus)
        wanted = weight is not None and ctx.needs_input_grad[1]
        return dx, dw.sum(0).to(weight.dtype) if wanted else None, None, None, None, None, None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, activation: Activation, kernels: LayerKernels) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        y = torch.empty_like(gate)
        kernels.call("gate_forward", gate, up, y, y.numel(), activation)
        ctx.save_for_backward(gate, up)
        ctx.activation, ctx.kernels = activation, kernels
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        dy = dy.contiguous()
        dgate, dup = torch.empty_like(gate), torch.empty_like(up)
        ctx.kernels.call("gate_backward", dy, gate, up, dgate, dup, dy.numel(), ctx.activation)
        return dgate, dup, None, None


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, ends: Tensor, groups: Tensor, scale: float,
        kernels: LayerKernels,
    ) -> Tensor:  # fmt: skip
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        tokens, heads, features = query.shape
        out, normaliser = torch.empty_like(query), torch.empty(tokens, heads, device=query.device)
        shape = (len(groups) - 1, heads, key.shape[1], features)
        kernels.call("attention_forward", query, key, value, out, normaliser, ends, groups, *shape, scale)
        ctx.save_for_backward(query, key, value, out, normaliser, ends, groups)
        ctx.scale, ctx.kernels = scale, kernels
        return out

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, normaliser, ends, groups = ctx.saved_tensors
        up = up.contiguous()
        grads = [torch.empty_like(part) for part in (query, key, value)]
        shape = (len(groups) - 1, query.shape[1], key.shape[1], query.shape[2])
        ctx.kernels.call(
            "attention_backward", up, query, key, value, out, normaliser, *grads, ends, groups, *shape, ctx.scale
        )
        return *grads, None, None, None, None


@functools.cache
def load() -> LayerKernels | None:
    """The kernels, compiled once a machine (a second or two); None where they cannot be made (see `compiled`)."""
    library = compiled("layers", _SOURCES)
    return None if library is None else LayerKernels(library)
