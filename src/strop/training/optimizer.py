"""AdamW with fp32 masters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from strop.base.types import StropError
from strop.training.settings import AdamW


class MasterAdamW:
    """The running optimizer of a module: moments, and an fp32 master of every parameter of lower precision.

    A bf16 parameter of 1.0 cannot take a step of 1e-6 (its spacing is 8e-3); its master can, and the parameter is the
    master rounded. Gradients are moved to the masters during each backward (`accumulating`), so that the sum over
    micro-batches is fp32 as well. The memory of that sum is kept from one update to the next: to get it anew costs as
    much as the step itself. An fp32 or fp64 parameter is its own master.

    With `settings.offload` masters, moments and summed gradients lie in the host's memory, where AdamW then computes;
    an fp32 parameter has a master there too. Gradients and new weights cross in the parameters' type.

    Parameters may be sharded (`DTensor`): masters and moments are then sharded alike, and all ranks make each call.
    """

    def __init__(self, settings: AdamW, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        self.settings = settings
        self.parameters = {name: parameter for name, parameter in parameters if parameter.requires_grad}
        if not self.parameters:
            raise StropError("the module has no parameter that requires a gradient; there is nothing to train")
        offload = settings.offload is True
        self.masters = {name: _master_of(parameter, offload) for name, parameter in self.parameters.items()}
        self._seen = {name: parameter._version for name, parameter in self._lowered()}
        self._sums: dict[str, Tensor] = {}  # memory of the gradients of masters
        decayed = [m for m in self.masters.values() if settings.decay == "all" or m.dim() > 1]
        spared = [m for m in self.masters.values() if not (settings.decay == "all" or m.dim() > 1)]
        groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": spared, "weight_decay": 0.0}]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=settings.lr, betas=settings.betas, eps=settings.eps,
            fused=True,
        )  # fmt: skip

    def _lowered(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that are not their own masters."""
        return [(name, p) for name, p in self.parameters.items() if self.masters[name] is not p]

    def _finer(self) -> list[str]:
        """The names of the masters that hold more than their parameters do."""
        return sorted(name for name, p in self._lowered() if self.masters[name].dtype != p.dtype)

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Inside, where one backward runs, each gradient of a lowered parameter is moved as soon as it is complete, so
        that they are never there all at once; those of sharded parameters when it ends."""
        hooks = [parameter.register_post_accumulate_grad_hook(partial(self._accumulate, name))
                 for name, parameter in self._lowered()]  # fmt: skip
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        self.accumulate()

    def accumulate(self) -> None:
        """Move the gradients of lowered parameters to their masters, adding in fp32."""
        for name, parameter in self._lowered():
            self._accumulate(name, parameter)

    @torch.no_grad()
    def _accumulate(self, name: str, parameter: Tensor) -> None:
        master = self.masters[name]
        if parameter.grad is None:
            return
        given = own_part(parameter.grad)
        if given.device != own_part(master).device:
            given = _pinned(given, given.dtype)
        if master.grad is not None:  # added in the master's type, without a copy of the gradient in it
            own_part(master.grad).add_(given)
        else:
            if name not in self._sums:
                self._sums[name] = torch.empty_like(master, requires_grad=False)
            own_part(self._sums[name]).copy_(given)
            master.grad = self._sums[name]
        parameter.grad = None

    def zero_grad(self) -> None:
        """Forget every gradient."""
        for parameter in (*self.parameters.values(), *self.masters.values()):
            parameter.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """The accumulated gradients by parameter name; a parameter that took no part has none."""
        return {name: master.grad for name, master in self.masters.items() if master.grad is not None}

    def unsharded_gradients(self) -> list[Tensor]:
        """The accumulated gradients of parameters that every rank has whole (adapters), zeros where it had none."""
        whole = [master for master in self.masters.values() if not isinstance(master, DTensor)]
        for master in whole:
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        return [master.grad for master in whole if master.grad is not None]

    def grad_norm(self) -> Tensor:
        """The Euclidean norm of all accumulated gradients, over all ranks, a scalar."""
        gradients = list(self.gradients().values())
        norm = nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def checksums(self) -> dict[str, int]:
        """Of each master (of this rank's shard of it) a sum over its bits, modulo 2^64."""
        sums = {name: _checksum(own_part(master.detach())) for name, master in self.masters.items()}
        return dict(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True))

    def step(self, lr: float, norm: Tensor) -> None:
        """Clip gradients of global norm `norm`, take one step at `lr`, write lowered parameters, drop the gradients.

        Raises:
            StropError: a lowered parameter was written by someone else, so that its master is stale.
        """
        for name, parameter in self._lowered():
            if parameter._version != self._seen[name]:
                raise StropError(f"parameter {name} was changed outside the optimizer; call read_parameters() then")
        if self.settings.max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self.masters.values(), self.settings.max_grad_norm, norm)
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()
        self.zero_grad()
        self._write_parameters()

    @torch.no_grad()
    def _write_parameters(self) -> None:
        for name, parameter in self._lowered():
            own, master = own_part(parameter), own_part(self.masters[name])
            if own.device != master.device:
                master = _pinned(master, own.dtype)
            own.copy_(master, non_blocking=True)
            self._seen[name] = parameter._version

    @torch.no_grad()
    def read_parameters(self) -> None:
        """Take the parameters as they are now for the masters (after loading other weights into the module)."""
        for name, parameter in self._lowered():
            own_part(self.masters[name]).copy_(own_part(parameter))
            self._seen[name] = parameter._version

    def state_dict(self) -> dict[str, Tensor]:
        """Moments, step counts and masters as a flat dictionary: `exp_avg.NAME`, `exp_avg_sq.NAME`, `step.NAME`,
        `master.NAME` (lowered parameters only). A parameter that never had a gradient has no moments. The tensors are
        the live ones, not copies.
        """
        tensors: dict[str, Tensor] = {}
        for name, master in self.masters.items():
            for key, value in self._adamw.state.get(master, {}).items():
                tensors[f"{key}.{name}"] = value
        return tensors | {f"master.{name}": self.masters[name].detach() for name in self._finer()}

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `state_dict` gave, sharded as the parameters; lowered ones are written from their masters.

        Raises:
            StropError: a name or shape that does not fit the module, or a master that is missing; nothing is changed.
        """
        lowered = self._finer()
        for name in lowered:
            if f"master.{name}" not in tensors:
                raise StropError(f"optimizer state has no fp32 master of {name}; was it saved from an fp32 policy?")
        for key, value in tensors.items():
            kind, _, name = key.partition(".")
            known = kind in ("exp_avg", "exp_avg_sq", "step") or (kind == "master" and name in lowered)
            if not known or name not in self.masters:
                raise StropError(f"optimizer state {key} belongs to no parameter of this module")
            if kind != "step" and value.shape != self.masters[name].shape:
                have, want = tuple(value.shape), tuple(self.masters[name].shape)
                raise StropError(f"optimizer state {key} is {have}, not {want}")
        self._adamw.state.clear()
        self.read_parameters()
        for key, value in tensors.items():
            kind, _, name = key.partition(".")
            master = self.masters[name]
            if isinstance(value, DTensor) and not isinstance(master, DTensor):
                value = value.full_tensor()
            if kind == "master":
                master.copy_(value)
            else:
                self._adamw.state[master][kind] = value.to(device=master.device, copy=True)
        self._write_parameters()


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor: all of a plain one, its shard of a sharded one."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _checksum(tensor: Tensor) -> Tensor:
    """Σ b (b + 1) over the bits b of every eight bytes, read as an integer; int64, a scalar."""
    data = tensor.contiguous().flatten().view(torch.uint8)
    data = data.clone() if data.storage_offset() % 8 else data  # eight bytes cannot be read across the grid
    whole = len(data) // 8 * 8
    total = data[whole:].long().sum()
    for part in data[:whole].view(torch.int64).split(1 << 16):  # small enough for a cache
        total = total + (part * (part + 1)).sum()
    return total


def _master_of(parameter: nn.Parameter, offload: bool) -> nn.Parameter:
    kind = parameter.dtype if parameter.dtype in (torch.float32, torch.float64) else torch.float32
    if kind == parameter.dtype and not offload:
        return parameter
    master = parameter.detach().to(kind, copy=True)
    return nn.Parameter(master.cpu() if offload else master)


def _pinned(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in memory of the host that a GPU reads and writes at full speed."""
    return torch.empty_like(tensor, dtype=dtype, device="cpu", pin_memory=torch.cuda.is_available()).copy_(tensor)
