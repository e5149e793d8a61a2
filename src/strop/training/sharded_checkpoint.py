"""Checkpoints of any number of ranks: each writes its rows, the first what is not sharded and the manifest, last.

    root/step-00000012/{policy.0.safetensors, policy.1.safetensors, rng.safetensors, state.json, manifest.json}

Every rank reaches every exchange, whatever happens to it, so that a full disk of one is an error of all and nobody
waits for a rank that has given up. `checkpoint.load` reads the folder, for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor
from torch.distributed.tensor import DTensor

from strop.base.types import StropError
from strop.model.tensor_file import Groups
from strop.training import checkpoint
from strop.training.ranks import Ranks

T = TypeVar("T")


def save(entry: checkpoint.CheckpointEntry, own: Groups, extra: Groups, ranks: Ranks) -> None:
    """`checkpoint.save` by all ranks, through which nobody else talks meanwhile.

    Args:
        entry: `root` is a folder that the ranks share; the first rank's `state` is written.
        own: this rank's rows of every tensor, from `own_rows`.
        extra: groups that are whole; the first rank's are written.
        ranks: all of them.

    Raises:
        DiskFull: no space (or quota) left for a rank; earlier checkpoints are untouched.
        StropError: a checkpoint of that step is there.
    """
    if ranks.size == 1:
        tensors = {**extra, **own}
        checkpoint.save(entry.root, entry.step, tensors, entry.state, metric=entry.metric, retention=entry.retention)
        return
    first = ranks.rank == 0
    root, step = entry.root, entry.step
    with ExitStack() as open_folder, _told_alike(checkpoint.folder_of(root, step)):
        partial = _all(ranks, lambda: open_folder.enter_context(checkpoint.filling(root, step)) if first else None)[0]
        assert partial is not None
        files = _all(ranks, lambda: checkpoint.write_groups(partial, own, ranks.rank))
        _all(ranks, lambda: _rest(partial, entry, files, own, extra) if first else None)
        _all(ranks, open_folder.close)  # the first rank renames the folder into its place
    if first and entry.retention is not None:
        checkpoint.prune(root, entry.retention)


def own_rows(groups: Groups, first: bool) -> dict[str, dict[str, Tensor]]:
    """Copies of this rank's rows on the CPU, to be written while the tensors change; the `first` has what is whole."""
    return {
        group: {
            name: (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().to("cpu", copy=True)
            for name, tensor in members.items()
            if first or isinstance(tensor, DTensor)
        }
        for group, members in groups.items()
    }


@contextmanager
def _told_alike(folder: Path) -> Iterator[None]:
    """A full disk is `DiskFull` on every rank, not on the first alone; no rank ends of another refusal either."""
    try:
        yield
    except OSError as error:
        told = checkpoint.explained(error, folder)
        if told is error:
            told = StropError(f"cannot write checkpoint {folder}: {error}")
        raise told from error


def _all(ranks: Ranks, work: Callable[[], T]) -> list[T]:
    """Do the work on every rank: its result by rank. Where a rank fails, every rank raises that."""
    outcome: T | Exception
    try:
        outcome = work()
    except (StropError, OSError) as error:  # raised again below, on all ranks
        outcome = error
    except Exception as error:  # likewise; another process may not know what it is
        outcome = StropError(f"rank {ranks.rank}: {type(error).__name__}: {error}")
    found: Sequence[Any] = ranks.gather(outcome)
    errors = [one for one in found if isinstance(one, Exception)]
    if errors:
        raise errors[0]
    return list(found)


def _rest(
    partial: Path, entry: checkpoint.CheckpointEntry, files: Sequence[checkpoint.Facts], own: Groups, extra: Groups
) -> None:
    facts = checkpoint.write_groups(partial, extra)
    for part in files:
        facts |= part
    checkpoint.seal(partial, entry.step, facts, [*extra, *own], entry.state, entry.metric, len(files))
