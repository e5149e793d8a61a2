"""The settings of the processes in which a verifier runs, and whether this process is one of them."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt

from strop.base.pieces import Settings


class Isolation(Settings):
    """Worker processes for a verifier that may hang, crash or eat memory.

    Fields:
        workers: how many; None: one less than the cores this process may use, at least 1 and at most 8.
        seconds: wall time of one verdict before the worker is killed.
        retry_seconds: wall time of the one further try, in a fresh worker; then the verdict is `timeout`.
        memory_mib: address space that a worker may take beyond what the supervisor has.
    """

    workers: PositiveInt | None = None
    seconds: PositiveFloat = 2.0
    retry_seconds: PositiveFloat = 0.6
    memory_mib: PositiveInt = 1024


