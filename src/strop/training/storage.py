"""How a learner's tensors reach the disk, in one process and over ranks; saves go on in the background.

    storage.begin(entry, tensors, extra)     # copies, then returns
    ...                                      # training goes on
    storage.settle(wait=False)               # True once it is written; raises its error
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedTokenizerBase

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
        savers: the same, by a process group of its own: saves go on beside training.
    """

    def __init__(self, layout: Layout = WHOLE, ranks: Ranks = ALONE, savers: Ranks = ALONE) -> None:
        self.layout = layout
        self.background = Background()
        self._ranks, self._savers = ranks, savers
        self._sharded, self._first = layout is not WHOLE, ranks.rank == 0

    def begin(self, entry: checkpoint.CheckpointEntry, tensors: Groups, extra: Groups) -> None:
        """Begin a checkpoint of `tensors` and `extra` (live ones: they are copied), once the one before is written.

        Raises:
            StropError: what went wrong with the one before.
        """
        from strop.training import sharded_checkpoint as sharded

        self.background.wait()
        frozen = replace(entry, state=copy.deepcopy(dict(entry.state)))
        own, whole = (sharded.own_rows(groups, self._first) for groups in (tensors, extra))
        self.background.start(functools.partial(sharded.save, frozen, own, whole, self._savers), "checkpoint")

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
