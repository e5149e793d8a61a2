"""Members of a rank group for tests, without a model."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from strop.base import progress
from strop.base.types import InputError, StropError
from strop.orchestration.rank_group import serve
from strop.orchestration.workers import ControllerConnection


def main(connection: ControllerConnection, rank: int) -> None:
    """Serve a few calls, good and bad."""
    if rank < 0:
        raise InputError("there is no such model")

    def add(*numbers: int) -> tuple[Any, str]:
        return sum(numbers) + rank, str(sum(numbers))

    def differ() -> tuple[Any, str]:
        return rank, str(rank)

    def refuse() -> tuple[Any, str]:
        raise StropError("the loss is not finite")

    def refuse_alone() -> tuple[Any, str]:
        if rank == 0:
            raise StropError("the disk is full")
        return None, ""

    def suffer(fault: str, who: int) -> tuple[Any, str]:
        if rank == who:
            {
                "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
                "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
                "stuck": lambda: time.sleep(3600),
                "crashed": lambda: 1 // 0,
            }[fault]()
        time.sleep(3600)  # as one does that waits for another
        return None, ""

    def share(array: np.ndarray, nothing: np.ndarray) -> tuple[Any, str]:
        lines = Path("/proc/self/status").read_text
        before, mine = _shared_memory(lines()), array[rank * len(array) // 4 : (rank + 1) * len(array) // 4]
        total = float(mine.sum())
        mine[0] = 7.0  # a member may write into what it was given; the others do not see it
        return (total, len(nothing), _shared_memory(lines()) - before), str(float(array[0]) == 7.0 * (rank == 0))

    def toil(seconds: float) -> tuple[Any, str]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.1)
            progress.made("a micro-batch")
        return "done", ""

    serve(
        connection,
        rank == 0,
        {"add": add, "differ": differ, "refuse": refuse, "refuse_alone": refuse_alone, "suffer": suffer, "toil": toil,
         "share": share},
    )  # fmt: skip


def _shared_memory(status: str) -> int:
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssShmem"))
