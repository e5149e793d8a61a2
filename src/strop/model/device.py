"""The device that a model computes on."""

from __future__ import annotations

import os
from typing import Final

import torch

from strop.base.types import InputError

ALLOCATOR: Final = "PYTORCH_ALLOC_CONF"
FORMER_ALLOCATOR: Final = "PYTORCH_CUDA_ALLOC_CONF"  # what it was called before torch 2.9


def pick_device(name: str) -> torch.device:
    """The device of that name as torch has it; `auto` is the GPU where there is one.

    What is to be told to torch before a GPU computes is said here: products of float32 run in TensorFloat-32, and the
    allocator grows its segments, so that batches of changing size leave no holes (unless the environment says how).

    Raises:
        InputError: CUDA was asked for and is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError("device=cuda: this torch sees no GPU; set device=cpu, or see `strop doctor`")
        torch.set_float32_matmul_precision("high")
        if FORMER_ALLOCATOR not in os.environ:
            os.environ.setdefault(ALLOCATOR, "expandable_segments:True")
    return device
