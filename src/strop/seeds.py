"""Seeds derived by name, so that every random stream of a run follows from its one seed and from nothing else."""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: int | str) -> int:
    """A seed in [0, 2^63) for the stream called `names`, e.g. `derive(7, "request", 12, 0)`."""
    text = "\x1f".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
