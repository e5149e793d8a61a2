"""How a version of the weights gets from the trainer to workers that generate or evaluate: as a stored file.

    trainer ─publish─▶ a file in memory, or in the run's folder ◀─read─ workers, each when it comes to it

A worker that receives a `StoredWeights` maps the file, checks its hash and swaps all of it in, or has nothing. Where
memory is full the file goes into the run's folder; where that is full too, it is tried again after a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeAlias

from strop.base.imports import command
from strop.base.types import StropError
from strop.orchestration.messages import StoredWeights
from strop.orchestration.weight_store import FOLDER, MEMORY, Claim, WeightStore, claim
from strop.training.checkpoint import DiskFull

Publish: TypeAlias = Callable[[WeightStore, int], StoredWeights]

DISK_FULL_TRIES = 3
DISK_FULL_SECONDS = 1.0


class WeightTransport:
    """Stores versions where workers read them, and removes those that are no longer needed.

    Args:
        version_bytes: about how large a version is, to choose where the files lie.
        note: receives a line where a place is full.
        memory: the folder for files in memory; None stores in the run's folder only.
        within: the name of the folder in the run's folder.

    Attributes:
        places: the folders that are used, the present one last; none before `start`.
    """

    def __init__(
        self, version_bytes: int, note: Callable[[str], None], memory: Path | None = MEMORY, within: str = FOLDER
    ) -> None:
        self.places: list[Claim] = []
        self._version_bytes = version_bytes
        self._note = note
        self._memory = memory
        self._within = within
        self._folder = Path()
        self._needed: set[int] = set()

    def start(self, folder: Path) -> None:
        """Find a place for the versions of the run in `folder`."""
        self._folder = folder
        self.places = [claim(folder, self._version_bytes, self._memory, self._within)]

    def publish(self, publish: Publish, version: int) -> StoredWeights:
        """Store a version, which `publish` writes into the store that it is given; earlier versions stay.

        Raises:
            StropError: there is no room for it, in memory or in the run's folder.
        """
        for attempt in range(DISK_FULL_TRIES):
            try:
                return publish(WeightStore(self.places[-1].path), version)
            except DiskFull as error:
                self.keep(self._needed)
                on_disk = Claim(self._folder / self._within, None)
                if self.places[-1].path != on_disk.path:
                    self.places.append(on_disk)
                    self._note(f"{error}; from now on they go to {on_disk.path}")
                elif attempt + 1 < DISK_FULL_TRIES:
                    self._note(f"{error}; trying again")
                    time.sleep(DISK_FULL_SECONDS)
        raise StropError(
            f"the weights of version {version} could not be published in {DISK_FULL_TRIES} tries: no space in "
            f"{self.places[-1].path}; free some, then go on with: {command('train --resume', self._folder)}"
        )

    def keep(self, versions: Collection[int]) -> None:
        """Remove the files of all other versions; a worker that has one mapped keeps what it reads."""
        self._needed = set(versions)
        for place in self.places:
            WeightStore(place.path).keep(versions)

    def release(self) -> None:
        """Remove all weights; may be called twice."""
        for place in self.places:
            place.release()
