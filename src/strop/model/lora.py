"""LoRA: a frozen model learns through low-rank adapters, and is at every moment an ordinary model.

    adapters = attach(model, Lora(rank=32, alpha=64), seed)     # model.layers.0.self_attn.q_proj and the others
    …                                                           # an optimizer changes lora_A and lora_B
    adapters.merge()                                            # the model's weights are W + alpha/rank · B A again

The model's own parameters hold the merged weights, always made anew from the frozen W and the adapters, so that no
rounding adds up. Trainer, engines, exports and checks all compute with these same numbers: what is published is what
was trained, in bfloat16 too, where a sum W x + B (A x) would differ from any merged model. Only the backward pass knows
of the adapters: of y = x Wᵀ, W = W₀ + s B A, it gives ∂A = s (∂y B)ᵀ x and ∂B = s ∂yᵀ (x Aᵀ), and no gradient of W's
size.

The reference policy of KL terms is the model with W₀ in W's place (`Adapters.off`), no second model. Where the model is
sharded over ranks, W and W₀ are, and every rank has all of A and B: it merges its own rows of W.
Shapes: N tokens, I inputs and O outputs of a layer, R rank.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from strop.base.types import InputError
from strop.model.files import replacing_folder
from strop.model.kernels.native import Products
from strop.model.settings import ALL_LINEAR, Lora


class Adapter(nn.Module):
    """The adapter of a weight: lora_A [R, I] and lora_B [O, R] in float32, W₀ [O, I] in the weight's own type.

    W₀ is sharded as the weight is.
    """

    base: Tensor

    def __init__(self, weight: nn.Parameter, settings: Lora, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = weight.shape
        if settings.rank > min(rows, columns):
            raise InputError(
                f"model.lora.rank={settings.rank} exceeds a layer of {rows} × {columns}; lower it to "
                f"{min(rows, columns)} or less"
            )
        self.scale = settings.alpha / settings.rank
        self.off = False
        # As the paper's code: uniform within ±1/√I, and zeros, so that training starts from the model itself.
        start = torch.empty(settings.rank, columns).uniform_(-1, 1, generator=generator) / math.sqrt(columns)
        self.lora_A = nn.Parameter(start.to(weight.device))
        self.lora_B = nn.Parameter(torch.zeros(rows, settings.rank, device=weight.device))
        self.register_buffer("base", weight.detach().clone(), persistent=False)

    def merged(self) -> Tensor:
        """W₀ + scale · B A, added in the adapter's float32 and rounded once, in W₀'s type; this rank's rows of it."""
        a: Tensor = self.lora_A
        b: Tensor = self.lora_B
        kept = self.base
        if isinstance(kept, DTensor):
            b, kept = b[own_rows(kept)], kept.to_local()
        return torch.addmm(kept.to(a.dtype), b, a, alpha=self.scale).to(kept.dtype)


class AdaptedLinear(nn.Linear):
    """A linear layer whose weight is merged, and whose gradient goes to the adapter."""

    _adapters: tuple[Adapter, ...] = ()  # in a tuple: the layer's parameters stay those of a plain model
    products: Products | None = None  # where torch's are slower; see `kernels.modules.fuse`

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
        self.__class__ = nn.Linear  # type: ignore[assignment]

    def forward(self, input: Tensor) -> Tensor:
        """x Wᵀ + bias, of input […, I]; with W₀ where the adapters are off."""
        (adapter,) = self._adapters
        if adapter.off or not torch.is_grad_enabled():
            return _linear(input, adapter.base if adapter.off else self.weight, self.bias, self.products)
        given = input, self.weight, self.bias, adapter.lora_A, adapter.lora_B, adapter.scale, self.products
        product: Tensor = _Product.apply(*given)
        return product

    def weight_with_gradient(self) -> Tensor:
        """W [O, I], through which a gradient reaches the adapter; for what needs the weight itself (the head)."""
        (adapter,) = self._adapters
        if adapter.off or not torch.is_grad_enabled():
            return adapter.base if adapter.off else self.weight
        found: Tensor = _Weight.apply(self.weight, adapter.lora_A, adapter.lora_B, adapter.scale)
        return found


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, products: Products | None) -> Tensor:
    """x · weightᵀ + bias, by the products where there are some that take them."""
    if products is None or not products.take(x, weight):
        return F.linear(x, weight, bias)
    return products.linear(x, weight, bias)


class _Product(torch.autograd.Function):
    """x Wᵀ + bias with W = W₀ + s B A given, whose gradient with respect to A and B never has W's size."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float,
        products: Products | None,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight, a, b)
        ctx.scale, ctx.products = scale, products
        return _linear(x, weight, bias, products)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b = ctx.saved_tensors
        rows, grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        grad_x: Tensor | None = None
        if ctx.needs_input_grad[0]:
            ours = ctx.products is not None and ctx.products.take(x, weight)
            grad_x = (ctx.products.grad_input(grad, weight) if ours else grad @ weight).view_as(x)
        # The wide products run in the activations' type, as a plain model's do.
        grad_a = (grad @ b.to(grad.dtype)).t() @ rows
        grad_b = grad.t() @ (rows @ a.to(rows.dtype).t())
        return grad_x, None, None, grad_a.to(a.dtype) * ctx.scale, grad_b.to(b.dtype) * ctx.scale, None, None


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


CHECKSUM = "base_checksum"
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Adapters(nn.Module):
    """All adapters of a model, as modules under the names of the layers that they adapt.

    Attributes:
        settings: what they were made by.
        checksum: int64 [1], of the frozen model.
    """

    def __init__(self, model: PreTrainedModel, settings: Lora) -> None:
        super().__init__()
        self.settings = settings
        self.checksum = _checksum(model)
        self._layers: dict[str, tuple[nn.Linear, Adapter]] = {}

    def add(self, name: str, layer: nn.Linear, adapter: Adapter) -> None:
        """Take in the adapter of the layer `name`."""
        place: nn.Module = self
        *outer, last = name.split(".")
        for part in outer:
            if part not in dict(place.named_children()):
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        place.add_module(last, adapter)
        self._layers[name] = (layer, adapter)

    @property
    def names(self) -> list[str]:
        """The layers that are adapted, in the model's order."""
        return list(self._layers)

    @torch.no_grad()
    def merge(self) -> None:
        """Write W₀ + scale · B A into the model; call it whenever an adapter has changed."""
        for layer, adapter in self._layers.values():
            weight = layer.weight
            (weight.to_local() if isinstance(weight, DTensor) else weight).copy_(adapter.merged())

    @contextmanager
    def off(self) -> Iterator[None]:
        """The model as it was before any training, for what is computed inside."""
        self._switch(True)
        try:
            yield
        finally:
            self._switch(False)

    def _switch(self, off: bool) -> None:
        for _, adapter in self._layers.values():
            adapter.off = off

    def weights(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint: every lora_A and lora_B by name, detached, and the frozen model's checksum."""
        return {name: value.detach() for name, value in self.named_parameters()} | {CHECKSUM: self.checksum}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take back what `weights` gave, and merge.

        Raises:
            InputError: they are of other layers, of another rank, or were trained on another model.
        """
        own = dict(self.named_parameters())
        whole = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in weights.items()}
        given = {name: value for name, value in whole.items() if name != CHECKSUM}
        if own.keys() != given.keys() or any(own[name].shape != value.shape for name, value in given.items()):
            raise InputError(
                "these weights are no adapters of this model.lora (other layers or another rank); resume with the "
                "configuration they were saved with"
            )
        if not torch.equal(whole[CHECKSUM].cpu(), self.checksum):
            raise InputError(
                "these adapters were trained on another model than model.path is now; restore the model they began with"
            )
        for name, value in given.items():
            own[name].copy_(value)
        self.merge()


def _checksum(model: nn.Module) -> Tensor:
    """int64 [1]: the sum of all parameters' bits as integers: neither their order nor their sharding matters.

    0 for a model without data, on the meta device.
    """
    total = torch.zeros(1, dtype=torch.int64)
    group = None
    for parameter in (parameter for parameter in model.parameters() if not parameter.is_meta):
        own = parameter.detach()
        if isinstance(own, DTensor):
            group, own = own.device_mesh.get_group(), own.to_local()
        total += own.contiguous().view(_INTEGERS[own.element_size()]).sum(dtype=torch.int64).cpu()
    if group is not None:
        everywhere = total.to(next(model.parameters()).device)
        dist.all_reduce(everywhere, group=group)
        total = everywhere.cpu()
    return total


def attach(model: PreTrainedModel, settings: Lora, seed: int) -> Adapters:
    """Freeze `model`, put adapters on the layers that `settings` names, and return them.

    A sharded model must be sharded before.

    Raises:
        InputError: a name that no layer has, or a head tied to the embedding.
    """
    model.requires_grad_(False)
    adapters = Adapters(model, settings)
    generator = torch.Generator().manual_seed(seed)
    for name, layer in _chosen(model, settings).items():
        adapter = Adapter(layer.get_parameter("weight"), settings, generator)
        adapters.add(name, AdaptedLinear.of(layer, adapter), adapter)
    return adapters


Layers = dict[str, nn.Linear]


def _chosen(model: PreTrainedModel, settings: Lora) -> Layers:
    """The layers to adapt by name, in the model's order; `all-linear` is all of them but the head."""
    kind = type(model).__name__
    # Some routers are linear layers that return more.
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward
    }
    head = model.get_output_embeddings()
    if settings.target_modules == (ALL_LINEAR,):
        return {name: layer for name, layer in layers.items() if layer is not head}
    chosen: Layers = {}
    for target in settings.target_modules:
        found = {name: layer for name, layer in layers.items() if f".{name}".endswith(f".{target}")}
        if not found:
            known = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in layers))
            raise InputError(
                f"model.lora.target_modules: {kind} has no linear layer {target}; choose from {known}, or {ALL_LINEAR}"
            )
        chosen |= found
    tied = head.weight is model.get_input_embeddings().weight
    if tied and any(layer is head for layer in chosen.values()):
        raise InputError(
            f"model.lora.target_modules: the head of {kind} is its embedding (tied), so that an adapter on the head "
            "could not be merged; leave the head out"
        )
    return {name: layer for name, layer in layers.items() if name in chosen}


def without_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """The same model with ordinary layers in place of adapted ones, its weights as they are now."""
    for module in model.modules():
        if isinstance(module, AdaptedLinear):
            module.plain()
    return model


def export_adapter(adapters: Adapters, base: str, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a folder that `peft.PeftModel.from_pretrained(model, folder)` loads onto the model `base`.

    Raises:
        StropError: it cannot be written.
    """
    settings = adapters.settings
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        # Whole names: a name's end might fit layers that have no adapter.
        "target_modules": adapters.names,
    }
    tensors = {
        f"base_model.model.{name}.weight": value.detach().cpu().contiguous()
        for name, value in adapters.named_parameters()
    }
    with replacing_folder(folder) as partial:
        (partial / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(tensors, partial / "adapter_model.safetensors", metadata={"format": "pt"})
        tokenizer.save_pretrained(partial)
