"""Swapping weights, all or nothing: everything is checked before anything is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from strop.base.types import InputError
from strop.engines.protocol import WeightSource
from strop.model.policy import Policy


def stage(policy: Policy, source: WeightSource, dtypes: frozenset[torch.dtype]) -> dict[str, Tensor]:
    """The new tensor of every parameter of `policy.model`, by name, checked but not yet written.

    A tied head may be given or left out; where it is given it must equal the embedding it is tied to. Tensors that an
    iterable yields must stay as they are until the swap.

    Raises:
        InputError: names missing, unknown or given twice, a shape or dtype that does not fit, a value that is not
            finite, or a tied head that differs.
    """
    own = policy.weights()
    shapes = {name: tensor.shape for name, tensor in own.items()}
    return checked(source, shapes, _tied_names(policy, own), dtypes)


def checked(
    source: WeightSource, shapes: Mapping[str, torch.Size], tied: Mapping[str, str], dtypes: frozenset[torch.dtype]
) -> dict[str, Tensor]:
    """The tensor of every name in `shapes`; `tied` maps further names to the one whose values they must have.

    Raises:
        InputError: see `stage`.
    """
    given = collected(source)
    _check_names(given, shapes, tied)
    for name, tensor in given.items():
        target = shapes[tied.get(name, name)]
        if tensor.shape != target:
            raise InputError(f"weights: {name} has shape {tuple(tensor.shape)}, the model's is {tuple(target)}")
        if tensor.dtype not in dtypes:
            raise InputError(f"weights: {name} is {tensor.dtype}, expected {' or '.join(sorted(map(str, dtypes)))}")
    for name in _not_finite(given):
        raise InputError(f"weights: {name} has values that are not finite; the version is refused")
    for name, original in tied.items():
        if name in given and not torch.equal(given[name], given[original].to(given[name].device)):
            raise InputError(f"weights: {name} is tied to {original} but differs from it")
    return {name: given[name] for name in shapes}


def _not_finite(given: Mapping[str, Tensor]) -> list[str]:
    """Names of tensors with a value that is not finite; the host waits for each device once."""
    # A finite sum has finite terms only, and reads the tensor at the memory's speed; a sum may also overflow.
    sums: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensor in given.items():
        sums.setdefault(tensor.device, {})[name] = tensor.sum().double()
    suspects: list[str] = []
    for found in sums.values():
        finite = torch.isfinite(torch.stack(list(found.values()))).tolist()
        suspects += [name for name, fine in zip(found, finite, strict=True) if not fine]
    return [name for name in suspects if not torch.isfinite(given[name]).all()]


def same_storage(policy: Policy, staged: Mapping[str, Tensor]) -> bool:
    """Whether the staged tensors are the policy's own parameters, so that there is nothing to write."""
    return all(staged[name].data_ptr() == tensor.data_ptr() for name, tensor in policy.weights().items())


@torch.no_grad()
def swap(policy: Policy, staged: Mapping[str, Tensor]) -> None:
    """Write staged tensors into the parameters, converting to their type and device."""
    for name, parameter in policy.model.named_parameters():
        parameter.copy_(staged[name])


def collected(source: WeightSource) -> dict[str, Tensor]:
    """Every tensor by its name.

    Raises:
        InputError: a name is given twice.
    """
    if isinstance(source, Mapping):
        return dict(source)
    given: dict[str, Tensor] = {}
    for name, tensor in source:
        if name in given:
            raise InputError(f"weights: {name} is given twice")
        given[name] = tensor
    return given


def _tied_names(policy: Policy, own: Mapping[str, Tensor]) -> dict[str, str]:
    """Names under which a parameter appears again, each with the name that `Policy.weights` knows it by."""
    first = {tensor.data_ptr(): name for name, tensor in own.items()}
    again = policy.model.named_parameters(remove_duplicate=False)
    return {name: first[tensor.data_ptr()] for name, tensor in again if name not in own}


def _check_names(given: Mapping[str, Tensor], own: Collection[str], tied: Mapping[str, str]) -> None:
    missing = sorted(set(own) - given.keys())
    unknown = sorted(given.keys() - set(own) - tied.keys())
    if missing or unknown:
        raise InputError(
            f"weights: {len(missing)} parameters missing {missing[:3]}, {len(unknown)} unknown {unknown[:3]}; "
            "send every parameter under its name in the model"
        )
