"""A real disk that is full when a checkpoint is due: the run goes on, and comes to what it would have come to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forks import forking
from tests.orchestration.disks import mounted
from tests.orchestration.invariants import assert_sound_folder
from tests.runs import small_config

from strop.base.view import SilentView
from strop.run.run import train
from strop.training import checkpoint

ROOM = 128 << 10  # for metrics and rollouts, not for a checkpoint (some 400 KiB)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight mebibytes."""
    with mounted(tmp_path / "small", "8m") as place:
        yield place


class FullFor(SilentView):
    """Fills a disk, but for `ROOM`, when a step is done, until another one is."""

    def __init__(self, disk: Path, first: int, last: int) -> None:
        self.filler, self.first, self.last = disk / "filler", first, last
        self.checkpoints = disk / "run" / "checkpoints"
        self.newest: list[int | None] = []
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def advance(self, step: int, metrics: object) -> None:
        self.newest.append(checkpoint.latest(self.checkpoints))
        if step == self.first:
            with pytest.raises(OSError, match="No space"), self.filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            with self.filler.open("r+b") as file:
                file.truncate(self.filler.stat().st_size - ROOM)
        elif step == self.last:
            self.filler.unlink()


def test_a_run_outlives_a_disk_that_is_full_for_a_while(small_disk: Path, tmp_path: Path) -> None:
    sets = ("steps=5", "evaluation.every=none", "orchestration.executor=in_process")
    view = FullFor(small_disk, 2, 4)
    train(small_config(*sets), small_disk / "run", view)
    assert view.newest[2:4] == [1, 1]  # neither the second step nor the third was saved
    assert sum("no space for checkpoint" in line and "trying again" in line for line in view.notes) == 2
    assert checkpoint.latest(small_disk / "run" / "checkpoints") == 5
    train(small_config(*sets), tmp_path / "undisturbed", SilentView())
    assert_sound_folder(small_disk / "run", tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.parametrize("lag", [1, 2, 4, 8])
def test_a_pipeline_outlives_it_too(small_disk: Path, lag: int) -> None:
    steps = lag + 5
    view = FullFor(small_disk, 2, 4)
    sets = (f"steps={steps}", f"orchestration.max_lag={lag}", "orchestration.kv=recompute", "optim.lr=1e-2")
    with forking():
        train(small_config(*sets, "checkpoint.keep=99", "evaluation.every=none"), small_disk / "run", view)
    assert sum("no space for checkpoint" in line and "trying again" in line for line in view.notes) >= 2
    assert checkpoint.latest(small_disk / "run" / "checkpoints") == steps
    assert_sound_folder(small_disk / "run", None, unsaved=(2, 3))
