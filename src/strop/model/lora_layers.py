"""Layers whose weight is W₀ + scale · B A: what is computed with the merged weight, and what only its gradient knows.

Shapes: I inputs and O outputs of a layer, R rank, E experts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from strop.base.types import InputError
from strop.model.settings import Lora


class Adapter(nn.Module):
    """The adapter of a weight: lora_A [R, I] and lora_B [O, R] in float32, W₀ [O, I] in the weight's own type.

    Of experts all three have E in front. W₀ is sharded as the weight is.
    """

    base: Tensor

    def __init__(self, weight: nn.Parameter, settings: Lora, generator: torch.Generator) -> None:
        super().__init__()
        *experts, rows, columns = weight.shape
        if settings.rank > min(rows, columns):
            raise InputError(
                f"model.lora.rank={settings.rank} exceeds a layer of {rows} × {columns}; lower it to "
                f"{min(rows, columns)} or less"
            )
        self.scale = settings.alpha / settings.rank
        self.off = False
        # As the paper's code: uniform within ±1/√I, and zeros, so that training starts from the model itself.
        start = torch.empty(*experts, settings.rank, columns).uniform_(-1, 1, generator=generator) / math.sqrt(columns)
        self.lora_A = nn.Parameter(start.to(weight.device))
        self.lora_B = nn.Parameter(torch.zeros(*experts, rows, settings.rank, device=weight.device))
        self.register_buffer("base", weight.detach().clone(), persistent=False)

    def merged(self) -> Tensor:
        """W₀ + scale · B A, added in the adapter's float32 and rounded once, in W₀'s type; this rank's rows of it."""
        a: Tensor = self.lora_A
        b: Tensor = self.lora_B
        kept = self.base
        if isinstance(kept, DTensor):
            rows = own_rows(kept)
            a, b, kept = a[rows] if a.dim() == 3 else a, b[rows], kept.to_local()
        add = torch.addmm if a.dim() == 2 else torch.baddbmm
        return add(kept.to(a.dtype), b, a, alpha=self.scale).to(kept.dtype)

    def seen(self, weight: Tensor) -> Tensor:
        """The weight as a layer computes with it: with a gradient to the adapter where one is wanted, W₀ where off."""
        if self.off:
            return self.base
        if not torch.is_grad_enabled():
            return weight
        found: Tensor = _Weight.apply(weight, self.lora_A, self.lora_B, self.scale)
        return found


class AdaptedLinear(nn.Linear):
    """A linear layer whose weight is merged, and whose gradient goes to the adapter."""

    _adapters: tuple[Adapter, ...] = ()  # in a tuple: the layer's parameters stay those of a plain model

    @classmethod
    def of(cls, linear: nn.Linear, adapter: Adapter) -> AdaptedLinear:
        """The layer itself, from now on computing so: whoever knows it by name or holds its parameters still does."""
        linear.__class__ = cls
        assert isinstance(linear, cls)
        linear._adapters = (adapter,)
        return linear

    def plain(self) -> None:
        """Become an ordinary layer again, with the same parameters."""
        del self._adapters
        _turn(self, nn.Linear)

    def forward(self, input: Tensor) -> Tensor:
        """x Wᵀ + bias, of input […, I]; with W₀ where the adapters are off."""
        (adapter,) = self._adapters
        if adapter.off:
            return F.linear(input, adapter.base, self.bias)
        if not torch.is_grad_enabled():
            return F.linear(input, self.weight, self.bias)
        product: Tensor = _Product.apply(input, self.weight, self.bias, adapter.lora_A, adapter.lora_B, adapter.scale)
        return product

    def weight_with_gradient(self) -> Tensor:
        """W [O, I], through which a gradient reaches the adapter; for what needs the weight itself (the head)."""
        (adapter,) = self._adapters
        return adapter.seen(self.weight)


class AdaptedExperts(nn.Module):
    """Experts with stacked weights that are merged, and whose gradients go to their adapters.

    A class made from this and the experts' own takes the place of the latter.
    """

    _stacked: dict[str, Adapter]

    @classmethod
    def of(cls, experts: nn.Module, name: str, adapter: Adapter) -> None:
        """Adapt the weight `name` of experts, in place."""
        if not isinstance(experts, cls):
            own = type(experts)
            _turn(experts, type(f"Adapted{own.__name__}", (cls, own), {}))
            vars(experts)["_stacked"] = {}
        assert isinstance(experts, cls)
        experts._stacked[name] = adapter

    def plain(self) -> None:
        """Become ordinary experts again, with the same parameters."""
        del self._stacked
        _turn(self, type(self).__bases__[1])

    def forward(self, *given: Any, **named: Any) -> Any:  # the signature is that of transformers' experts
        """What the experts' own forward gives, with the stacked weights as `Adapter.seen` gives them."""
        own = vars(self)  # is looked up before the parameters of a module are
        own.update({name: adapter.seen(self.get_parameter(name)) for name, adapter in self._stacked.items()})
        try:
            return super().forward(*given, **named)
        finally:
            for name in self._stacked:
                del own[name]


def _turn(module: Any, into: type[nn.Module]) -> None:
    module.__class__ = into


class _Product(torch.autograd.Function):
    """x Wᵀ + bias with W = W₀ + s B A given, whose gradient with respect to A and B never has W's size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x, weight, a, b)
        ctx.scale = scale
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b = ctx.saved_tensors
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        rows, grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        # The wide products run in the activations' type, as a plain model's do.
        grad_a = (grad @ b.to(grad.dtype)).t() @ rows
        grad_b = grad.t() @ (rows @ a.to(rows.dtype).t())
        return grad_x, None, None, grad_a.to(a.dtype) * ctx.scale, grad_b.to(b.dtype) * ctx.scale, None


class _Weight(torch.autograd.Function):
    """W = W₀ + s B A as it is given, with gradients to A and B."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.scale = scale
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        whole = grad.to(a.dtype)
        return None, ctx.scale * (b.mT @ whole), ctx.scale * (whole @ a.mT), None


def own_rows(tensor: DTensor) -> slice:
    """The rows of a tensor sharded by rows that lie on this rank, as `torch.chunk` divides them."""
    mesh, length = tensor.device_mesh, tensor.shape[0]
    each = -(-length // mesh.size())
    start = min(mesh.get_local_rank() * each, length)
    return slice(start, min(start + each, length))
