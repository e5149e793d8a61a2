"""The device that a model computes on."""

from __future__ import annotations

from typing import Literal

import torch

from strop.base.types import InputError


def pick_device(name: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """`auto` is the GPU where there is one.

    Raises:
        InputError: CUDA was asked for and is not there.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device=cuda: this torch sees no GPU; set device=cpu, or see `strop doctor`")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
