"""Groups of unequal sizes: a step has the completions it should, and a resume goes on with the same sizes."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.forks import forking
from tests.run.test_run import StopsAfter
from tests.runs import assert_same_run, metrics, small_config

from strop.algorithms.allocation import Allocation
from strop.base.imports import allow_module
from strop.base.rollout_table import read_groups
from strop.base.view import SilentView
from strop.config.schema import RunConfig
from strop.run.folder import RunFolder
from strop.run.run import Interrupted, resume, train

allow_module(__name__)
UNEQUAL = f"algorithm.allocation={__name__}:Uneven"


class Uneven(Allocation):
    """Half of them one more than the mean, half one less; which ones goes by what is predicted."""

    least: int = 2

    def __call__(self, rates: NDArray[np.float64], samples: int) -> list[int]:
        half, odd = divmod(len(rates), 2)
        sizes = [samples + 1] * half + [samples] * odd + [samples - 1] * half
        turn = int(rates.sum() * 1e6) % len(rates)
        return [*sizes[turn:], *sizes[:turn]]


def unequal(*sets: str) -> RunConfig:
    return small_config("evaluation.every=none", "algorithm.selection.zero_variance=keep", UNEQUAL, *sets)


def sizes(run: Path) -> list[list[int]]:
    folder = RunFolder.open(run)
    stored = (read_groups(folder.rollouts_path(step)) for step in folder.rollout_steps())
    return [[len(group.rollouts) for group in groups] for groups in stored]


def test_a_resume_goes_on_with_the_same_sizes(tmp_path: Path) -> None:
    config = unequal("data.source.count=12", "checkpoint.every=10")  # from step 3 on every problem is known
    train(config, tmp_path / "whole", SilentView())
    found = sizes(tmp_path / "whole")
    assert all(sorted(step) == [3, 3, 3, 5, 5, 5] for step in found) and len({tuple(step) for step in found}) > 1
    assert [row["sequences"] for row in metrics(tmp_path / "whole")] == [24] * 4
    assert metrics(tmp_path / "whole")[0]["groups/largest"] == 5
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", StopsAfter(2, signal.SIGINT))
    resume(tmp_path / "parts", SilentView())
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_sizes_are_kept_ahead_of_training(tmp_path: Path) -> None:
    with forking():
        ahead = ("orchestration.max_lag=2", "orchestration.window=full")
        train(unequal("steps=5", *ahead), tmp_path / "run", SilentView())
    found = sizes(tmp_path / "run")
    assert sum(map(sum, found)) == 5 * 24 and {size for step in found for size in step} == {3, 5}


def test_replaced_groups_come_in_the_sizes_of_those_drawn_with_them(tmp_path: Path) -> None:
    sets = ("algorithm.selection={zero_variance='drop', of='reward', refill=true}", "steps=2")
    shaped = 'algorithm.shaping=[{piece="OverlongShaping", max_tokens=12, buffer_tokens=12}]'
    train(unequal(*sets, shaped), tmp_path / "run", SilentView())
    assert [row["groups/trained"] for row in metrics(tmp_path / "run")] == [6, 6]
