"""How a learner's tensors reach the disk, in one process and over ranks; saves go on in the background.

    storage.begin(entry, tensors, extra)     # copies, then returns
    ...                                      # training goes on
    storage.settle(wait=False)               # True once it is written; raises its error
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase

from strop.base import machine
from strop.base.progress import doing
from strop.base.types import StropError
from strop.model.critic import Critic
from strop.model.files import export
from strop.model.policy import Policy
from strop.model.tensor_file import WHOLE, Groups, Layout
from strop.training import checkpoint
from strop.training.ranks import ALONE, Ranks


class Background:
    """Runs one piece of work in a thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a piece of work is not done."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], object], name: str) -> None:
        """Begin `work`, after the piece before it; raises what that one raised."""
        self.wait()
        # Not a daemon: a process that ends in the meantime finishes what it has begun.
        self._thread = threading.Thread(target=self._run, args=(work,), name=name)
        self._thread.start()

    def wait(self) -> None:
        """Until the work is done; raises what it raised, once."""
        if self._thread is None:
            return
        with doing(f"writing the {self._thread.name}"):
            self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # whatever it is, it is raised again in `wait`
            self._error = error


class Storage:
    """Where ranks are several, all of them make each call.

    Args:
        layout: how tensors that are loaded lie in this process's memory.
        ranks: all of them.
        savers: the same ranks in a second process group, for saves that go on while training does.
    """

    def __init__(self, layout: Layout = WHOLE, ranks: Ranks = ALONE, savers: Ranks = ALONE) -> None:
        self.layout = layout
        self.background = Background()
        self._ranks, self._savers = ranks, savers
        self._sharded, self._first = layout is not WHOLE, ranks.rank == 0

    def begin(self, entry: checkpoint.CheckpointEntry, tensors: Groups, extra: Groups) -> None:
        """Begin a checkpoint of `tensors` and `extra`, once the one before is written.

        They are live, so they are copied; where memory has no room for copies, the checkpoint is written before this
        returns.

        Raises:
            StropError: what went wrong with the one before.
        """
        self.background.wait()
        frozen = replace(entry, state=copy.deepcopy(dict(entry.state)))
        own, whole = (own_rows(groups, self._first) for groups in (tensors, extra))
        size = sum(tensor.nbytes for groups in (own, whole) for named in groups.values() for tensor in named.values())
        copied = not any(self._ranks.gather(size > machine.memory()[1] * _ROOM))
        if copied:
            own, whole = copies(own), copies(whole)
        self.background.start(functools.partial(save, frozen, own, whole, self._savers), "checkpoint")
        if not copied:
            self.background.wait()

    def settle(self, wait: bool) -> bool:
        """Whether nothing is being written, by any rank; with `wait`, once that is so.

        Raises:
            DiskFull: no space for the last one; earlier ones are whole.
            StropError: it could not be written for another reason.
        """
        if not wait and any(self._ranks.gather(self.background.busy)):
            return False
        self.background.wait()
        return True

    def whole(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors whole, where they are read: on the first rank."""
        if not self._sharded:
            return dict(named)
        from strop.training.sharding import gathered_on

        return gathered_on(self._first, named)

    def export_policy(self, policy: Policy, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write a Hugging Face folder, from the first rank."""
        if not self._sharded:
            export(policy.model, tokenizer, folder)
            return
        from strop.training.sharding import export_policy

        export_policy(policy, tokenizer, folder, self._first)

    def export_critic(self, critic: Critic, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write the critic's folder, from the first rank."""
        if not self._sharded:
            critic.export(tokenizer, folder)
            return
        from strop.training.sharding import export_critic

        export_critic(critic, tokenizer, folder, self._first)


_ROOM = 0.8  # of the memory that is free, for the copy of a checkpoint
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
        checkpoint.save(entry, {**extra, **own})
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
    """This rank's rows; the `first` has what is whole."""
    return {
        group: {
            name: (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
            for name, tensor in members.items()
            if first or isinstance(tensor, DTensor)
        }
        for group, members in groups.items()
    }


def copies(groups: Groups) -> dict[str, dict[str, Tensor]]:
    """Copies on the CPU, to be written while the tensors change."""
    return {
        group: {name: tensor.to("cpu", copy=True) for name, tensor in members.items()}
        for group, members in groups.items()
    }


@contextmanager
def _told_alike(folder: Path) -> Iterator[None]:
    """Raise `DiskFull` on every rank where the disk is full, and a `StropError` for any other failure of the disk."""
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
