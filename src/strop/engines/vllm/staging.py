"""Weights on their way into vLLM's worker: as a file in memory, or as what the worker has received by itself."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strop.engines.broadcast import Entry
from strop.engines.vllm.model_folder import ModelFolder
from strop.engines.weights import fitting
from strop.model import tensor_file


def taken_apart(
    folder: ModelFolder, received: Sequence[Mapping[str, Any]], dtypes: Collection[torch.dtype]
) -> dict[str, list[str]]:
    """The names that received tensors have in the model's files: one each, or, of experts in one tensor, of each part.

    `received` are the fields of their `Entry`s. Parts come expert by expert, of each expert the equal shares of its
    rows.

    Raises:
        InputError: names missing or unknown, a shape or dtype that does not fit.
    """
    parts: defaultdict[str, list[str]] = defaultdict(list)

    def in_files() -> Iterator[tuple[str, Tensor]]:
        for one in received:
            entry = Entry(one["name"], one["dtype"], tuple(one["shape"]))
            for name, tensor in folder.in_files([(entry.name, entry.empty("meta"))]):
                parts[entry.name].append(name)
                yield name, tensor

    fitting(in_files(), folder.shapes, folder.tied, dtypes)
    return dict(parts)


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
