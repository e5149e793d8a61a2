"""How a learner's tensors reach the disk, in one process and over ranks; saves go on in the background.

    storage.begin(entry, tensors, extra)     # copies, then returns
    ...                                      # training goes on
    storage.settle(wait=False)               # True once it is written; raises its error
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from strop.model.critic import Critic
from strop.model.files import export
from strop.model.policy import Policy
from strop.model.tensor_file import WHOLE, Groups, Layout
from strop.training import checkpoint
from strop.training.background import Background
from strop.training.ranks import Ranks

_THREAD = "checkpoint"


class Storage(Protocol):
    """Where ranks are several, all of them make each call."""

    @property
    def layout(self) -> Layout:
        """How tensors that are loaded lie in memory."""
        ...

    def begin(self, entry: checkpoint.Entry, tensors: Groups, extra: Groups) -> None:
        """Begin a checkpoint of `tensors` (live ones: they are copied) and `extra`, once the one before is written.

        Raises:
            StropError: what went wrong with the one before.
        """
        ...

    def settle(self, wait: bool) -> bool:
        """Whether nothing is being written; with `wait`, once that is so.

        Raises:
            DiskFull: no space for the last one; earlier ones are whole.
            StropError: it could not be written for another reason.
        """
        ...

    def whole(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors whole, where they are read: on the first rank."""
        ...

    def export_policy(self, policy: Policy, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write a Hugging Face folder."""
        ...

    def export_critic(self, critic: Critic, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write the critic's folder."""
        ...


class _Saving:
    """The save in the background."""

    def __init__(self) -> None:
        self.background = Background()

    def settle(self, wait: bool) -> bool:
        """Whether nothing is being written; with `wait`, once that is so."""
        if self.background.busy and not wait:
            return False
        self.background.wait()
        return True


class PlainStorage(_Saving):
    """The storage of one process: safetensors."""

    layout: Layout = WHOLE

    def begin(self, entry: checkpoint.Entry, tensors: Groups, extra: Groups) -> None:
        """Begin a checkpoint, once the one before is written."""
        self.background.wait()
        copies = {
            group: {name: tensor.detach().to("cpu", copy=True) for name, tensor in members.items()}
            for group, members in (*tensors.items(), *extra.items())
        }
        state, metric, retention = copy.deepcopy(dict(entry.state)), entry.metric, entry.retention
        self.background.start(
            lambda: checkpoint.save(entry.root, entry.step, copies, state, metric=metric, retention=retention), _THREAD
        )

    def whole(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors themselves."""
        return dict(named)

    def export_policy(self, policy: Policy, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write a Hugging Face folder."""
        export(policy.model, tokenizer, folder)

    def export_critic(self, critic: Critic, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write the critic's folder."""
        critic.export(tokenizer, folder)


class ShardedStorage(_Saving):
    """The storage of several ranks: each writes its shards.

    Args:
        layout: the rank's place.
        ranks: all of them.
        group: of all of them, on the CPU, and for nothing else: saves go on beside training.
    """

    def __init__(self, layout: Layout, ranks: Ranks, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.layout = layout
        self._ranks = ranks
        self._group = group
        self._first = ranks.rank == 0

    def settle(self, wait: bool) -> bool:
        """Whether no rank is writing; every rank comes to the same answer."""
        if not wait and any(self._ranks.gather(self.background.busy)):
            return False
        return super().settle(wait=True)

    def begin(self, entry: checkpoint.Entry, tensors: Groups, extra: Groups) -> None:
        """Begin a checkpoint, once the one before is written."""
        from strop.training import sharded_checkpoint

        self.background.wait()
        frozen = replace(entry, state=copy.deepcopy(dict(entry.state)))
        own = sharded_checkpoint.own_rows(tensors, self._first)
        work = functools.partial(sharded_checkpoint.save, frozen, own, extra, self._group)
        self.background.start(work, _THREAD)

    def whole(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors whole on the CPU of the first rank; nothing on the others."""
        from strop.training.sharding import gathered_on

        return gathered_on(self._first, named)

    def export_policy(self, policy: Policy, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write a Hugging Face folder, from the first rank."""
        from strop.training.sharding import export_policy

        export_policy(policy, tokenizer, folder, self._first)

    def export_critic(self, critic: Critic, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write the critic's folder, from the first rank."""
        from strop.training.sharding import export_critic

        export_critic(critic, tokenizer, folder, self._first)
