"""LoRA: a frozen model learns through low-rank adapters, and is at every moment an ordinary model.

    adapters = attach(model, Lora(rank=32, alpha=64), seed)     # model.layers.0.self_attn.q_proj and the others
    …                                                           # an optimizer changes lora_A and lora_B
    adapters.merge()                                            # the model's weights are W + alpha/rank · B A again

The model's own parameters hold the merged weights, always made anew from the frozen W and the adapters, so that no
rounding adds up. Trainer, engines, exports and checks all compute with these same numbers: what is published is what
was trained, in bfloat16 too, where a sum W x + B (A x) would differ from any merged model. Only the backward pass knows
of the adapters: of y = x Wᵀ, W = W₀ + s B A, it gives ∂A = s (∂y B)ᵀ x and ∂B = s ∂yᵀ (x Aᵀ), and no gradient of W's
size.

The stacked weights of experts [E, O, I] have adapters too, one of every expert: W₀[e] + s B[e] A[e]. There W has a
gradient of its size, of one layer at a time, from which those of A and B follow.

The reference policy of KL terms is the model with W₀ in W's place (`Adapters.off`), no second model. Where the model is
sharded over ranks, W and W₀ are, and every rank has all of A and B: it merges its own rows of W.
Shapes: N tokens, I inputs and O outputs of a layer, R rank, E experts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from strop.base.types import InputError
from strop.model.files import replacing_folder
from strop.model.lora_layers import AdaptedExperts, AdaptedLinear, Adapter
from strop.model.settings import ALL_LINEAR, Lora

CHECKSUM = "base_checksum"
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Adapters(nn.Module):
    """All adapters of a model, as modules under the names of the layers, or of the stacked weights, that they adapt.

    Attributes:
        settings: what they were made by.
        checksum: int64 [1], of the frozen model.
    """

    def __init__(self, model: PreTrainedModel, settings: Lora) -> None:
        super().__init__()
        self.settings = settings
        self.checksum = _checksum(model)
        self._layers: dict[str, tuple[nn.Module, str, Adapter]] = {}

    def add(self, name: str, module: nn.Module, parameter: str, adapter: Adapter) -> None:
        """Take in the adapter of the layer `name`, which is a parameter of a module."""
        place: nn.Module = self
        *outer, last = name.split(".")
        for part in outer:
            if part not in dict(place.named_children()):
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        place.add_module(last, adapter)
        self._layers[name] = (module, parameter, adapter)

    @property
    def names(self) -> list[str]:
        """The layers that are adapted, in the model's order."""
        return list(self._layers)

    @torch.no_grad()
    def merge(self) -> None:
        """Write W₀ + scale · B A into the model; call it whenever an adapter has changed."""
        for module, parameter, adapter in self._layers.values():
            weight = module.get_parameter(parameter)
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
        for _, _, adapter in self._layers.values():
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
    for name, (module, parameter) in _chosen(model, settings).items():
        weight = module.get_parameter(parameter)
        adapter = Adapter(weight, settings, generator)
        if isinstance(module, nn.Linear):
            AdaptedLinear.of(module, adapter)
        else:
            AdaptedExperts.of(module, parameter, adapter)
        adapters.add(name, module, parameter, adapter)
    return adapters


Layers = dict[str, tuple[nn.Module, str]]  # by name, a module and the name of its parameter


def _adaptable(model: PreTrainedModel) -> Layers:
    """The linear layers, and the stacked weights of experts, of a model, in its order."""
    found: Layers = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            if type(module).forward is nn.Linear.forward:  # some routers are linear layers that return more
                found[name] = (module, "weight")
            continue
        stacked = [own for own, parameter in module.named_parameters(recurse=False) if parameter.dim() == 3]
        found |= {f"{name}.{own}": (module, own) for own in stacked}
    return found


def _chosen(model: PreTrainedModel, settings: Lora) -> Layers:
    """The layers to adapt by name; `all-linear` is all of them but the head."""
    kind = type(model).__name__
    layers = _adaptable(model)
    head = model.get_output_embeddings()
    if settings.target_modules == (ALL_LINEAR,):
        return {name: place for name, place in layers.items() if place[0] is not head}
    chosen: Layers = {}
    for target in settings.target_modules:
        found = {name: place for name, place in layers.items() if f".{name}".endswith(f".{target}")}
        if not found:
            raise InputError(
                f"model.lora.target_modules: {kind} has no linear layer {target}; choose from "
                f"{', '.join(_last_names(layers))}, or {ALL_LINEAR}"
            )
        chosen |= found
    tied = head.weight is model.get_input_embeddings().weight
    if tied and any(module is head for module, _ in chosen.values()):
        raise InputError(
            f"model.lora.target_modules: the head of {kind} is its embedding (tied), so that an adapter of the head "
            "alone could not be merged; leave the head out"
        )
    return {name: place for name, place in layers.items() if name in chosen}


def _last_names(layers: Layers) -> list[str]:
    return list(dict.fromkeys(name.rpartition(".")[2] for name in layers))


def without_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """The same model with ordinary layers in place of adapted ones, its weights as they are now."""
    for module in model.modules():
        if isinstance(module, AdaptedLinear | AdaptedExperts):
            module.plain()
    return model


def export_adapter(adapters: Adapters, base: str, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a folder that `peft.PeftModel.from_pretrained(model, folder)` loads onto the model `base`.

    Raises:
        InputError: there are adapters of experts.
        StropError: it cannot be written.
    """
    stacked = next((name for name, value in adapters.named_parameters() if value.dim() == 3), None)
    if stacked is not None:
        raise InputError(
            f"peft has no adapters such as {stacked}, one of every expert; export the model merged instead"
        )
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
