"""Work done by several ranks in forked processes, and what each of them came to."""

from __future__ import annotations

import faulthandler
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

from strop.config.schema import RunConfig
from strop.run.learners import join
from strop.training.learner import Learner

Work = Callable[[Learner, int], Any]


def together(config: RunConfig, size: int, folder: Path, work: Work) -> list[Any]:
    """`work(learner, rank)` on `size` ranks that hold the learner of `config` between them; results by rank.

    Raises:
        AssertionError: with the traceback of a rank that failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ranks = start_processes(_rank, (config, size, folder, work), size, join=False, start_method="fork")
    assert ranks is not None
    while not ranks.join():
        pass
    found = [pickle.loads((folder / f"rank-{rank}").read_bytes()) for rank in range(size)]
    failures = [text for text, _ in found if text]
    assert not failures, "\n".join(failures)
    return [result for _, result in found]


def _rank(rank: int, config: RunConfig, size: int, folder: Path, work: Work) -> None:
    torch.set_num_threads(1)
    faulthandler.enable(2)  # of a rank that is killed by a signal this is all that is known
    outcome: tuple[str, Any]
    try:
        learner = join(config, rank, size, f"file://{folder}/meet", seconds=60.0)
        outcome = "", work(learner, rank)
    except BaseException:  # reported by `together`
        outcome = traceback.format_exc(), None
    (folder / f"rank-{rank}").write_bytes(pickle.dumps(outcome))
