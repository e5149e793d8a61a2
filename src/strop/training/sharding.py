"""Modules sharded over ranks by FSDP2: parameters, gradients and optimizer state lie in 1/n on each of n ranks.

Every decoder layer is a group of parameters that is gathered whole just before it computes and freed after; what is
left (embedding, last norm, head) is the root's group, whose forward is `Policy.forward`, so that the chunked head sees
its whole weight. A rank holds rows of every parameter (`Shard(0)`), and names stay those of the plain module.

Built on the meta device, so that no rank ever holds a whole model: shards are read from the safetensors files, and
buffers that no file holds (rotary frequencies) are computed anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from strop.base.types import InputError
from strop.model.attention import NAME
from strop.model.critic import HEAD_FILE, Critic, initial_head
from strop.model.files import export, stored_model
from strop.model.policy import Policy, base_of, load_policy
from strop.model.settings import ModelSettings
from strop.model.tensor_file import ordered

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class Place:
    """Where this rank keeps its shards.

    Attributes:
        mesh: all ranks, in one dimension.
        device: of this rank.
        offload: what is loaded lies in the host's memory until it is taken, as a GPU has no room for it.
    """

    mesh: DeviceMesh
    device: torch.device
    offload: bool = False

    def rows(self, length: int) -> slice:
        """This rank's rows of a tensor of `length` rows, as `torch.chunk` divides them."""
        each = -(-length // self.mesh.size())
        start = min(self.mesh.get_local_rank() * each, length)
        return slice(start, min(start + each, length))

    def lay(self, own: Tensor, shape: torch.Size) -> Tensor:
        """This rank's rows of a tensor of that shape, as a `DTensor`."""
        stride = torch.empty(shape, device="meta").stride()
        local = own.to(self.device, copy=True)
        found = DTensor.from_local(local, self.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
        return found.cpu() if self.offload else found


def shard(module: Policy | Critic, place: Place) -> None:
    """Shard a policy or critic in place: a group of parameters for each decoder layer, and one for the rest.

    Gradients are averaged in float32, whatever type they are computed in.

    Raises:
        InputError: the model does not say what its decoder layers are.
    """
    # The root too is freed after each forward: a pass without gradient must leave no whole weights behind that the
    # optimizer's next step would not reach.
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in decoder_layers(module.model):
        fully_shard(layer, mesh=place.mesh, mp_policy=policy, reshard_after_forward=True)
    if isinstance(module, Critic):  # a separate group: a group has one type, and the head is always float32
        fully_shard(module.value_head, mesh=place.mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(module, mesh=place.mesh, mp_policy=policy, reshard_after_forward=True)


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The model's decoder layers, first to last.

    Raises:
        InputError: it has none that transformers names.
    """
    names = set(model._no_split_modules or ())
    found = [module for module in model.modules() if type(module).__name__ in names]
    if not found:
        raise InputError(f"{type(model).__name__} does not name its decoder layers; set orchestration.trainers=1")
    return found


# ---------------------------------------------------------------------- loading


def sharded_policy(settings: ModelSettings, seed: int, place: Place) -> Policy:
    """The policy of `load_policy(settings, seed=seed)`, sharded, each rank reading only its own rows where it can.

    A fresh model is loaded whole first, and so are files that keep tensors otherwise than as rows of the model's.

    Raises:
        InputError: no such model, or one that the policy cannot compute.
    """
    policy = _sharded_whole(settings.model_copy(update={"lora": None}), seed, place)
    policy.settings = settings
    if settings.lora is not None:
        policy.adapt(settings.lora, seed)
    return policy


def _sharded_whole(settings: ModelSettings, seed: int, place: Place) -> Policy:
    found = _on_meta(settings)
    if found is not None:
        model, stored = found
        names = {f"model.{name}": name for name, _ in model.named_parameters()}
        if stored.names >= set(names.values()):
            policy = Policy(model, settings)
            _materialise(policy, place, lambda name: stored.rows(names[name], place))
            return policy
    policy, _ = load_policy(settings, seed=seed)
    shard(policy, place)
    return policy


def sharded_critic(settings: ModelSettings, seed: int, model_seed: int, place: Place) -> Critic:
    """The exported critic in the folder of `settings`, or else `Critic.from_policy` of their policy, sharded.

    Raises:
        InputError: no such model.
    """
    if settings.path is not None and (Path(settings.path) / HEAD_FILE).is_file():
        critic = Critic.load(Path(settings.path), settings)
        shard(critic, place)
        return critic
    found = _on_meta(settings)
    if found is not None:
        causal, stored = found
        base = base_of(causal)
        prefix = next(name for name, module in causal.named_modules() if module is base)
        names = {f"model.{name}": f"{prefix}.{name}" for name, _ in base.named_parameters()}
        if stored.names >= set(names.values()):
            critic = Critic(base, settings, seed)
            head = initial_head(critic.value_head.in_features, seed)

            def own(name: str) -> Tensor:
                return head[place.rows(len(head))] if name == "value_head.weight" else stored.rows(names[name], place)

            _materialise(critic, place, own)
            return critic
    critic = Critic.from_policy(load_policy(settings, seed=model_seed)[0], seed)
    shard(critic, place)
    return critic


def _on_meta(settings: ModelSettings) -> tuple[PreTrainedModel, StoredTensors] | None:
    """The causal LM of a folder without any memory, and its files; None where `settings` name no such folder."""
    stored = None if settings.path is None else StoredTensors.of(Path(settings.path).expanduser())
    if stored is None:
        return None
    model = stored_model(settings)
    if not stored.names >= {name for name, _ in model.named_parameters()}:
        stored.join(model)
    if (stored.folder / "generation_config.json").is_file():  # goes with an export
        model.generation_config = GenerationConfig.from_pretrained(stored.folder)
    return model, stored


class _Parts(NamedTuple):
    """The stored tensors that are rows of one parameter, by transformers' converter of them and its patterns."""

    converter: WeightConverter
    names: dict[str, list[str]]

    @property
    def are_rows(self) -> bool:
        """Whether each of them is a row, of one tensor or of several that are put side by side."""
        first, *more = self.converter.operations
        rows = isinstance(first, MergeModulelist) and first.dim == 0
        return rows and all(isinstance(each, Concatenate) and each.dim > 0 for each in more)


class StoredTensors:
    """The safetensors files of a model's folder, read by rows.

    Published mixtures of experts have a tensor for each expert. The model has one of all, whose rows they are; after
    `join` it can be read too.
    """

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.folder = folder
        self._files = dict(files)
        self._joined: dict[str, _Parts] = {}

    @classmethod
    def of(cls, folder: Path) -> StoredTensors | None:
        """Those of a folder; None where it is none, or holds no safetensors."""
        if (folder / INDEX).is_file():
            return cls(folder, json.loads((folder / INDEX).read_text())["weight_map"])
        if not (folder / SINGLE).is_file():
            return None
        with safe_open(folder / SINGLE, framework="pt") as file:
            return cls(folder, dict.fromkeys(file.keys(), SINGLE))

    @property
    def names(self) -> set[str]:
        """The names of all tensors that can be read."""
        return {*self._files, *self._joined}

    def join(self, model: PreTrainedModel) -> None:
        """Name the tensors as `model` does, as transformers would where it loads them."""
        transforms = get_model_conversion_mapping(model)
        converters = [each for each in transforms if isinstance(each, WeightConverter)]
        renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        of_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
        for name in sorted(self._files, key=_in_order):
            target, pattern = rename_source_key(name, renamings, converters)
            if pattern is None:
                self._files[target] = self._files[name]
            else:
                parts = self._joined.setdefault(target, _Parts(of_pattern[pattern], {}))
                parts.names.setdefault(pattern, []).append(name)
        self._joined = {target: parts for target, parts in self._joined.items() if parts.are_rows}

    def rows(self, name: str, place: Place) -> Tensor:
        """This rank's rows of a tensor."""
        if name in self._joined:
            return self._joined_rows(self._joined[name], place)
        with safe_open(self.folder / self._files[name], framework="pt") as file:
            part = file.get_slice(name)
            found = part[place.rows(part.get_shape()[0])]
            assert isinstance(found, Tensor)
            return found

    def _joined_rows(self, parts: _Parts, place: Place) -> Tensor:
        converter = parts.converter
        found: dict[str, Any] = {}
        for pattern, names in parts.names.items():
            own = place.rows(len(names))
            found[pattern] = [self._whole(name) for name in names[own] or names[:1]]  # of no row, the shape
        for operation in converter.operations:
            found = operation.convert(found, converter.source_patterns, converter.target_patterns)
        joined: Tensor
        (joined,) = found.values()
        return joined[: own.stop - own.start]

    def _whole(self, name: str) -> Tensor:
        with safe_open(self.folder / self._files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor


def _in_order(name: str) -> list[tuple[int, str]]:
    """A key by which `experts.10` comes after `experts.9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


@torch.no_grad()
def _materialise(module: Policy | Critic, place: Place, own: Callable[[str], Tensor]) -> None:
    """Shard a module that is on the meta device, then fill it with this rank's rows, `own(name)`, and its buffers."""
    shard(module, place)
    module.to_empty(device=place.device)
    module.model.tie_weights()  # to_empty has made two parameters of a tied one
    for name, parameter in module.named_parameters():
        assert isinstance(parameter, DTensor)
        local, found = parameter.to_local(), own(name)
        if local.shape != found.shape:
            raise InputError(
                f"{name} is {tuple(found.shape)} in the model's files and {tuple(local.shape)} in the model (rows of "
                "one rank); its config.json is of another model"
            )
        local.copy_(found)
    restore_buffers(module.model)


@torch.no_grad()
def restore_buffers(model: PreTrainedModel) -> None:
    """Compute the buffers that no file holds, rotary frequencies above all; `to_empty` leaves anything in them.

    Raises:
        InputError: a module with such buffers cannot be made again from its configuration.
    """
    for name, module in model.named_modules():
        lost = module._non_persistent_buffers_set
        if not lost:
            continue
        if persistent := set(dict(module.named_buffers(recurse=False))) - lost:
            raise InputError(f"{name} keeps buffers ({min(persistent)}) in files; set orchestration.trainers=1")
        numbers = {buffer: vars(module).get(f"scalar_{buffer}") for buffer in lost}
        if all(isinstance(number, float) for number in numbers.values()):  # Gemma's scaled embedding does so
            for buffer, number in numbers.items():
                module.get_buffer(buffer).fill_(number)
            continue
        fresh = _remade(name, module)
        for buffer in lost:
            module.get_buffer(buffer).copy_(fresh.get_buffer(buffer))


def _remade(name: str, module: nn.Module) -> nn.Module:
    config = module.__dict__.get("config")
    try:
        if config is None:
            raise TypeError("it keeps no configuration")
        return type(module)(config)
    except TypeError as error:
        raise InputError(
            f"{name} ({type(module).__name__}) has buffers that no file holds, and cannot be made again: {error}; set "
            "orchestration.trainers=1"
        ) from error


# ---------------------------------------------------------------------- whole again


def gathered(named: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """Every tensor whole on this rank's device, one at a time, in the order of a file. All ranks must take them all."""
    for name in ordered(named):
        tensor = named[name]
        yield tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered_on(first: bool, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor whole on the CPU, where `first` holds; nothing on the other ranks. All ranks must call it."""
    found: dict[str, Tensor] = {}
    for name, tensor in named.items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if first:
            found[name] = whole.cpu()
    return found


def export_policy(policy: Policy, tokenizer: PreTrainedTokenizerBase, folder: Path, first: bool) -> None:
    """`model_files.export` of a sharded policy: the rank for which `first` holds gathers and writes it.

    Raises:
        StropError: it cannot be written.
    """
    model = _twin(AutoModelForCausalLM, policy.model, policy.weights(), first)
    if model is not None:
        model.generation_config = policy.model.generation_config
        export(model, tokenizer, folder)


def export_critic(critic: Critic, tokenizer: PreTrainedTokenizerBase, folder: Path, first: bool) -> None:
    """`Critic.export` of a sharded critic; see `export_policy`."""
    weights = critic.weights()
    head = gathered_on(first, {"head": weights.pop("value_head.weight")})
    base = {name.removeprefix("model."): weight for name, weight in weights.items()}
    model = _twin(AutoModel, critic.model, base, first)
    if model is not None:
        plain = Critic(model, critic.settings, seed=0)
        with torch.no_grad():
            plain.value_head.weight.copy_(head["head"])
        plain.export(tokenizer, folder)


def _twin(kind: Any, model: PreTrainedModel, weights: Mapping[str, Tensor], first: bool) -> PreTrainedModel | None:
    """A plain model on the CPU with the sharded one's weights; None on every rank but the first."""
    gathered = gathered_on(first, weights)
    if not first:
        return None
    with torch.device("meta"):
        twin = kind.from_config(model.config, dtype=model.dtype, attn_implementation=NAME)
    assert isinstance(twin, PreTrainedModel)
    for name, parameter in list(twin.named_parameters()):
        parent, _, leaf = name.rpartition(".")
        setattr(twin.get_submodule(parent), leaf, nn.Parameter(gathered[name], parameter.requires_grad))
    twin.tie_weights()
    return twin
