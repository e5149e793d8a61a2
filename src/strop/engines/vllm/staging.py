"""Weights on their way into vLLM's worker: a file in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from strop.model import tensor_file


@contextmanager
def in_memory(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """A safetensors file that is nowhere but in memory: a path that other processes can open, and its hash.

    It needs no tmpfs of a certain size (a container's /dev/shm has 64 MiB), and nothing is left behind by any death.
    """
    descriptor = os.memfd_create("strop-weights")
    try:
        path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        _, digest = tensor_file.write(path, weights)
        yield str(path), digest
    finally:
        os.close(descriptor)
