"""Checkpoints of a run that are written while it goes on, each seen through before the next is begun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from strop.base.imports import command
from strop.base.types import StropError
from strop.base.view import View
from strop.orchestration.learning import Learning
from strop.run.folder import RunFolder
from strop.training import checkpoint

DISK_FULL_RETRIES = 3


@dataclass(frozen=True)
class _Save:
    """A checkpoint that is being written, and the pass rates that go with it."""

    step: int
    pass_rates: list[str]


class Saver:
    """Writes the checkpoints of one process's share of a run. A full disk is met by trying again at later steps.

    Attributes:
        saved: the last step that is on disk; None before the first.
        failed: how many saves in a row met a full disk.
    """

    def __init__(self, folder: RunFolder, learner: Learning, view: View) -> None:
        self.saved: int | None = None
        self.failed = 0
        self._folder = folder
        self._learner = learner
        self._view = view
        self._under_way: _Save | None = None

    def begin(self, entry: checkpoint.Entry, pass_rates: list[str]) -> None:
        """Begin to write the learner as it is.

        Args:
            entry: the checkpoint but for its tensors.
            pass_rates: lines of the run's history, written once the checkpoint is.

        Raises:
            StropError: a parameter is not finite.
        """
        broken = self._learner.broken()
        if broken is not None:
            raise StropError(
                f"step {entry.step}: parameter {broken} is not finite, so the step is not saved; go back with "
                f"{command('train --resume', self._folder.path)}, and lower optim.lr in a new run"
            )
        extra: dict[str, Any] = {"rng": {"torch": torch.get_rng_state()}}
        self._learner.save(entry, extra)
        self._under_way = _Save(entry.step, pass_rates)

    def settle(self, wait: bool, last: bool = False) -> None:
        """See the save that was begun through, if `wait`; take over its outcome once it is known.

        Raises:
            DiskFull: it has been so several times in a row, or this is the `last` chance.
        """
        if self._under_way is None:
            return
        try:
            if not self._learner.settle(wait):
                return
        except checkpoint.DiskFull as error:
            self._under_way = None
            self.failed += 1
            if last or self.failed >= DISK_FULL_RETRIES:
                raise
            self._view.note(f"{error}; trying again after the next step")
            return
        self.saved, self.failed = self._under_way.step, 0
        self._folder.write_pass_rates(self._under_way.pass_rates)
        self._under_way = None
