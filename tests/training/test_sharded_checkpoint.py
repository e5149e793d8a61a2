"""Checkpoints of one, two and four ranks are read by one, two and four; a full disk, and saves beside training."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.orchestration.disks import mounted
from tests.runs import small_config
from tests.training.several import together
from tests.training.test_sharded_trainer import CRITIC, KL, MODEL, groups, single
from torch import Tensor

from strop.base.types import StropError
from strop.training import checkpoint
from strop.training.checkpoint import CheckpointEntry, DiskFull, Retention
from strop.training.learner import Learner

ONE_LAYER = "model.fresh.layers=1"  # has tensors of every kind
CONFIG = small_config(*MODEL, *CRITIC, *KL, "algorithm.reference.reset_every=1", "model.dtype=bfloat16", ONE_LAYER)
KEEP = Retention(last=9)


def teach(learner: Learner, step: int) -> None:
    found = groups(step)
    assert learner.learn(found, {group.ticket for group in found}, step, {}) is not None


def everything(learner: Learner) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, whole; on the first rank."""
    tensors, _ = learner.state_dict()
    flat = {f"{group}/{name}": value for group, members in tensors.items() for name, value in members.items()}
    return {name: value.detach().clone() for name, value in learner.storage.whole(flat).items()}


def save(learner: Learner, root: Path, step: int) -> None:
    extra = {"rng": {"torch": torch.arange(5)}}
    learner.save(CheckpointEntry(root, step, {"loop": {"step": step}}, None, KEEP), extra)


def writes(root: Path) -> Callable[[Learner, int], Any]:
    """Train, save, train on while the save is written, save again, and say what was to be written."""

    def work(learner: Learner, rank: int) -> Any:
        teach(learner, 0)
        before = everything(learner)
        save(learner, root, 1)
        teach(learner, 1)
        learner.settle(wait=True)
        after = everything(learner)
        save(learner, root, 2)
        learner.close()
        return before, after

    return work


def reads(root: Path, step: int) -> Callable[[Learner, int], Any]:
    def work(learner: Learner, rank: int) -> Any:
        learner.load(root, step)
        return everything(learner)

    return work


def on(size: int, folder: Path, work: Callable[[Learner, int], Any]) -> Any:
    """What the first of `size` ranks says; a size of 0 is a plain learner without any process group."""
    return work(single(CONFIG), 0) if size == 0 else together(CONFIG, size, folder, work)[0]


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in expected.items())


@pytest.fixture(scope="module")
def saved_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Path, Any]]:
    """The checkpoints that so many ranks have written, not to be changed, and what was to be written."""

    @cache
    def written(size: int) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp(f"saved-by-{size}")
        return folder / "checkpoints", on(size, folder / "saving", writes(folder / "checkpoints"))

    return written


@pytest.mark.parametrize("saved, read", [(0, (2,)), (2, (0, 4)), pytest.param(4, (0, 2), marks=pytest.mark.slow)])
def test_a_checkpoint_is_read_by_any_number_of_ranks(
    saved: int, read: tuple[int, ...], saved_by: Callable[[int], tuple[Path, Any]], tmp_path: Path
) -> None:
    root, (before, after) = saved_by(saved)
    assert not torch.equal(before["policy/model.embed_tokens.weight"], after["policy/model.embed_tokens.weight"])
    groups_of = {name.split("/")[0] for name in after}
    assert groups_of == {"policy", "optimizer", "critic", "critic-optimizer", "reference"}
    assert {file.suffix for file in checkpoint.folder_of(root, 2).iterdir()} == {".safetensors", ".json"}
    for step, expected in ((1, before), (2, after)):
        found = checkpoint.load(root, step)
        assert found.state["loop"] == {"step": step} and found.state["learner"]["policy"]["updates"] == step
        assert found.tensors["rng"]["torch"].tolist() == [0, 1, 2, 3, 4]
        flat = {f"{group}/{name}": v for group in groups_of for name, v in found.tensors[group].items()}
        assert_equal(flat, expected)
    for size in read:
        assert_equal(on(size, tmp_path / f"reading-{size}", reads(root, 1)), before)


def test_a_damaged_shard_is_refused(saved_by: Callable[[int], tuple[Path, Any]], tmp_path: Path) -> None:
    root = Path(shutil.copytree(saved_by(2)[0], tmp_path / "checkpoints"))
    shard = checkpoint.folder_of(root, 2) / "policy.1.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(StropError):
        checkpoint.load(root, 2)
    assert checkpoint.load(root, 1).step == 1
    file = checkpoint.folder_of(root, 1) / "manifest.json"
    manifest = json.loads(file.read_text())
    for ranks, files in ((10**12, manifest["files"]), (2, {"state.json": manifest["files"]["state.json"]})):
        file.write_text(json.dumps(manifest | {"ranks": ranks, "files": files}))
        with pytest.raises(StropError):
            checkpoint.load(root, 1)


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    folder = checkpoint.folder_of(tmp_path, 1)
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    manifest: dict[str, Any] = {"format": 2, "step": 1, "metric": None, "groups": [], "files": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StropError, match=r"manifest\.json"):
        checkpoint.load(tmp_path, 1)


@pytest.fixture
def little_room(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    with mounted(tmp_path / "little", "4m") as place:
        yield place


@pytest.mark.parametrize("size", [0, 2])
def test_a_full_disk_keeps_the_checkpoint_before(size: int, little_room: Path, tmp_path: Path) -> None:
    root = little_room / "checkpoints"

    def work(learner: Learner, rank: int) -> Any:
        save(learner, root, 1)
        learner.settle(wait=True)
        if rank == 0:
            (little_room / "filler").write_bytes(b"x" * (shutil.disk_usage(little_room).free - 40_000))
        save(learner, root, 2)
        with pytest.raises(DiskFull, match="step-00000002"):
            learner.settle(wait=True)
        if rank == 0:
            (little_room / "filler").unlink()
        save(learner, root, 3)
        learner.close()

    on(size, tmp_path / "ranks", work)
    assert checkpoint.steps(root) == [1, 3]
    assert sorted(path.name for path in root.iterdir()) == ["step-00000001", "step-00000003"]
    assert checkpoint.load(root, 1).step == 1 and checkpoint.load(root, 3).step == 3


def test_ranks_keep_as_many_checkpoints_as_they_are_told_and_know_when_they_are_written(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"

    def work(learner: Learner, rank: int) -> list[bool]:
        for step in (1, 2):
            state = {"loop": {"step": step}}
            learner.save(CheckpointEntry(root, step, state, None, Retention(last=1)), {})
            state["loop"]["step"] = 99
            learner.settle(wait=True)
        late = threading.Event()
        if rank == 1:  # has not written its share yet
            learner.storage.background.start(late.wait, "late")
        settled = learner.settle(wait=False)
        late.set()
        return [settled, learner.settle(wait=True)]

    assert together(CONFIG, 2, tmp_path, work) == [[False, True]] * 2
    assert checkpoint.steps(root) == [2] and checkpoint.load(root, 2).state["loop"] == {"step": 2}
