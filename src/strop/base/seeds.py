"""Seeds derived by name, so that every random stream of a run follows only from the run's seed."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def derive(seed: int, *names: int | str) -> int:
    """A seed in [0, 2^63) for the stream called `names`, e.g. `derive(7, "request", 12, 0)`."""
    text = "\x1f".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def permutation(entropy: int | list[int], size: int) -> NDArray[np.intp]:
    """A permutation of 0 … size - 1 that depends only on `entropy`, not on the version of numpy.

    RandomState's stream is frozen; Generator.permutation may change with numpy, and a resumed run with it.
    """
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(entropy))).permutation(size)
