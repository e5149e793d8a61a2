"""A device that the host cannot read, taken for a GPU: what may not wait for one, or mixes it with the CPU, is found.

    with faraway(monkeypatch) as watch:
        trainer.update(update)
    assert watch.found == [] and watch.waits == [...]

It is torch's `meta` device: tensors have shapes, types and a device, and no values; autograd and the shape functions of
PyTorch's own operators work there, Triton kernels are noted in place of being run. `Tensor.is_cuda` says yes, so that
code takes the ways it takes on a GPU. A single number that is read back is 1.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import InterpretedFunction

import strop

FAR = torch.device("meta")
_OURS = (str(Path(strop.__file__).parent), str(Path(__file__).parent))
# The functions through which tensors may go to a GPU: they use pinned memory, and nobody waits.
_SENDING = {"send", "sent"}


class Watch(TorchDispatchMode):
    """What was found: `found` are operators over tensors of both sides, `waits` places that read a number back, each
    as "operator in function"; `launched` counts Triton kernels by name, `far` operators on the far device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.waits: list[str] = []
        self.launched: Counter[str] = Counter()
        self.far = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            self.waits.append(_place("item"))
            return 1 if not args[0].dtype.is_floating_point else 1.0
        result = func(*args, **kwargs)
        given, made = _tensors((args, kwargs)), _tensors(result)
        far = any(tensor.is_meta for tensor in given)
        self.far += far
        near = [tensor for tensor in given if not tensor.is_meta]
        if near and (far or any(tensor.is_meta for tensor in made)) and _function() not in _SENDING:
            self.found.append(_place(func.overloadpacket.__name__))
        return result


class _Constructors(TorchFunctionMode):
    """Numbers of the host that are made a tensor on the far device: a copy from memory that is not pinned."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor) and made.is_meta and not isinstance(args[0], Tensor):
            self.watch.found.append(_place(func.__name__))
        return made


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _function() -> str:
    """The innermost function of strop, or of a test, that is being run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        ours = code.co_filename.startswith(_OURS) and code.co_filename != __file__
        if ours and code.co_name not in ("<genexpr>", "<listcomp>"):
            return code.co_name
        frame = frame.f_back
    return ""


def _place(what: str) -> str:
    return f"{what} in {_function()}"


@contextmanager
def faraway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """The far device is a GPU inside, and watched."""
    watch = Watch()

    def run(kernel: Any, *args: Any, grid: tuple[int, ...], warmup: bool = False, **kwargs: Any) -> None:
        watch.launched[kernel.fn.__name__] += 1
        given = [value.base if isinstance(value, _DESCRIPTOR) else value for value in (*args, *kwargs.values())]
        if any(isinstance(value, Tensor) and not value.is_meta for value in given):
            watch.found.append(f"{kernel.fn.__name__} on the host's memory")
        # The limits of a launch on a GPU.
        assert 0 < grid[0] < 2**31 and all(0 < size < 2**16 for size in grid[1:])

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "is_cuda", property(lambda tensor: tensor.is_meta))
        for kind in (InterpretedFunction, triton.runtime.JITFunction):
            patch.setattr(kind, "run", run)
        # It knows no `meta`, of which the operator itself knows.
        patch.setattr(sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda *_, **__: None)
        with _Constructors(watch), watch:
            yield watch


_DESCRIPTOR = triton.tools.tensor_descriptor.TensorDescriptor
