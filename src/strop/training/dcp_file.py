"""Tensors of several ranks in one folder: each rank writes its shards, any number of ranks reads them back.

The format is that of torch.distributed.checkpoint. Its `.metadata` is a pickle, so such a folder is trusted as the run
it belongs to is; what is handed on is an export. A tensor is kept under `GROUP/NAME`.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

Groups = Mapping[str, Mapping[str, Tensor]]


class Layout(Protocol):
    """How tensors that are read lie in memory."""

    def lay(self, tensor: Tensor) -> Tensor:
        """A whole tensor of the CPU as this process wants it."""
        ...

    def empty(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Room for such a tensor."""
        ...


class Whole:
    """Everything, on the CPU."""

    def lay(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def empty(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Room for all of it."""
        return torch.empty(shape, dtype=dtype)


WHOLE = Whole()


def stage(groups: Groups) -> dict[str, Tensor]:
    """Copies of this rank's shards on the CPU, to be written while the tensors change."""
    from torch.distributed.checkpoint.staging import BlockingAsyncStager

    flat = {f"{group}/{name}": tensor for group, members in groups.items() for name, tensor in members.items()}
    return BlockingAsyncStager().stage(flat)


def write(folder: Path, staged: Mapping[str, Tensor], group: dist.ProcessGroup) -> list[Path]:
    """Write what `stage` gave into a folder that is there, and make it durable; every rank of `group` calls it.

    Returns:
        The files of this rank; those of the first one hold `.metadata`.

    Raises:
        OSError: a rank's file system refused, with its `errno`; on every rank.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True, overwrite=True)
    try:
        save(dict(staged), storage_writer=writer, process_group=group)
    except CheckpointException as error:
        raise OSError(_errno(error), f"cannot write {folder}: {_reason(error)}") from error
    rank = dist.get_rank(group)
    names = [f"__{rank}_*.distcp"] + ([".metadata"] if rank == 0 else [])
    return sorted(file for name in names for file in folder.glob(name))


def read(folder: Path, group: str, layout: Layout = WHOLE) -> dict[str, Tensor]:
    """The tensors of a group by name; a process reads what its layout asks for, and waits for no other."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    prefix = f"{group}/"
    found: dict[str, Tensor] = {}
    for key, facts in FileSystemReader(folder).read_metadata().state_dict_metadata.items():
        if key.startswith(prefix) and isinstance(facts, TensorStorageMetadata):
            found[key] = layout.empty(facts.size, facts.properties.dtype)
    with warnings.catch_warnings():  # of a process that reads alone, which is what is wanted
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        load(found, storage_reader=FileSystemReader(folder), no_dist=True)
    return {key.removeprefix(prefix): tensor for key, tensor in found.items()}


def _errno(error: BaseException) -> int:
    """The system's reason, found among the failures of all ranks; EIO where none is known."""
    numbers = {cause.errno for cause in _causes(error) if isinstance(cause, OSError) and cause.errno is not None}
    full = numbers & {errno.ENOSPC, errno.EDQUOT}
    return min(full or numbers or {errno.EIO})


def _reason(error: BaseException) -> str:
    return str(_causes(error)[-1])


def _causes(error: BaseException) -> list[BaseException]:
    """Every failure of every rank, and what each came of."""
    from torch.distributed.checkpoint.api import CheckpointException

    found: list[BaseException] = []
    rest = [failure for failure, _ in error.failures.values()] if isinstance(error, CheckpointException) else [error]
    while rest:
        one = rest.pop(0)
        found.append(one)
        rest += [cause for cause in (one.__cause__, one.__context__) if cause is not None and cause not in found]
    return found
