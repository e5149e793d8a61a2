"""The order of training problems: epochs without replacement, resumable from a JSON-able state."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from strop.seeds import permutation
from strop.types import InputError


class SamplerState(TypedDict):
    """Where a sampler stands: `cursor` problems of `epoch` are given out; the rest says which order that was."""

    epoch: int
    cursor: int
    size: int
    seed: int


class Sampler:
    """Indices 0 … size - 1, each once an epoch, in an order of its own every epoch; never ends.

    The order depends on (seed, epoch, size) alone, and not on numpy's version. Not thread-safe: the controller is the
    only one that draws.
    """

    def __init__(self, size: int, seed: int) -> None:
        if size < 1:
            raise InputError("no problems to draw from")
        self._size, self._seed = size, seed
        self._epoch, self._cursor = 0, 0
        self._order = self._permutation()

    @property
    def epoch(self) -> int:
        """The epoch, from 0, that the next index belongs to."""
        return self._epoch

    @property
    def state(self) -> SamplerState:
        """Where it stands, for a checkpoint."""
        return SamplerState(epoch=self._epoch, cursor=self._cursor, size=self._size, seed=self._seed)

    def next(self) -> int:
        """The next index; an epoch's end leads straight into the next epoch."""
        index = int(self._order[self._cursor])
        self._cursor += 1
        if self._cursor == self._size:
            self._epoch, self._cursor = self._epoch + 1, 0
            self._order = self._permutation()
        return index

    def restore(self, state: SamplerState) -> None:
        """Go on from where `state` was taken.

        Raises:
            InputError: it is of another data set or seed, or is no state of a sampler.
        """
        if (state["size"], state["seed"]) != (self._size, self._seed):
            raise InputError(
                f"the checkpoint's data order is of {state['size']} problems with seed {state['seed']}, this run's of "
                f"{self._size} with seed {self._seed}: resume with the same data settings"
            )
        if state["epoch"] < 0 or not 0 <= state["cursor"] < self._size:
            raise InputError(f"not a place in the data: epoch {state['epoch']}, cursor {state['cursor']}")
        self._epoch, self._cursor = state["epoch"], state["cursor"]
        self._order = self._permutation()

    def _permutation(self) -> NDArray[np.intp]:
        return permutation([self._seed, self._epoch], self._size)
