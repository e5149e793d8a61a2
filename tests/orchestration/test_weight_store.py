"""The weight store: a version is there whole or not at all, and what is read is what was written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.orchestration.disks import mounted
from torch import Tensor

from strop.base.types import StropError
from strop.orchestration.messages import StoredWeights
from strop.orchestration.weight_store import FOLDER, WeightFile, WeightStore, read


def weights(seed: int = 0) -> dict[str, Tensor]:
    """Several types and shapes, one more than a piece of the digest, one empty, one that is trained."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "large": torch.randn(3_000_000, generator=generator),
        "half": torch.randn(7, 5, generator=generator).to(torch.bfloat16),
        "transposed": torch.randn(4, 3, generator=generator).T,
        "empty": torch.zeros(0, 3),
        "one": torch.nn.Parameter(torch.tensor(2.5)),
    }


NO_ROOM = 1 << 62  # bytes, for which no memory has room


def stored_in(store: WeightStore, version: int) -> StoredWeights:
    return store.publish(lambda file, number: file.write(number, weights(number).items()), version)


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_is_read_is_what_was_written_until_it_is_not_kept(tmp_path: Path, in_memory: bool) -> None:
    notes: list[str] = []
    store = WeightStore(1 << 10 if in_memory else NO_ROOM, notes.append)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "weights-9.safetensors").touch()  # a killed process left it
    store.start(tmp_path)
    assert not store.root.exists()
    first, second, third = (stored_in(store, version) for version in (1, 2, 3))
    assert store.root.exists() != in_memory and first.bytes == Path(first.path).stat().st_size
    for found in (read(third), load_file(third.path)):
        assert found.keys() == weights().keys()
        for name, value in weights(3).items():
            assert found[name].dtype == value.dtype and torch.equal(found[name], value)
    mapped = read(second)
    store.keep({1, 3})
    assert [Path(one.path).exists() for one in (first, second, third)] == [True, False, True]
    assert torch.equal(mapped["large"], weights(2)["large"])  # who has it mapped may go on reading
    code = "import sys; print(len(open(sys.argv[1], 'rb').read()))"
    seen = subprocess.run([sys.executable, "-c", code, first.path], capture_output=True, check=True)
    assert int(seen.stdout) == first.bytes  # another process sees it
    store.release()
    store.release()
    assert not Path(first.path).exists() and not store.root.exists() and notes == []


def test_without_room_in_memory_versions_go_to_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = WeightStore(1 << 10, lambda line: None)
    store.start(tmp_path)
    monkeypatch.setattr("strop.base.machine.memory", lambda: (1 << 20, 1 << 11))
    stored_in(store, 1)
    monkeypatch.setattr("strop.base.machine.memory", lambda: (1 << 20, 1 << 12))
    stored_in(store, 2)
    assert [path.name for path in store.root.iterdir()] == ["weights-1.safetensors"]
    store.release()


def flipped(stored: StoredWeights) -> None:
    with open(stored.path, "r+b") as file:
        file.seek(stored.bytes // 2)
        byte = file.read(1)
        file.seek(stored.bytes // 2)
        file.write(bytes([byte[0] ^ 1]))


def cut(stored: StoredWeights) -> None:
    os.truncate(stored.path, stored.bytes - 1)


@pytest.mark.parametrize("damage", [flipped, cut, lambda stored: os.truncate(stored.path, 0)])
def test_damaged_weights_are_refused(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    stored = WeightFile(tmp_path / "weights").write(3, weights().items())
    damage(stored)
    with pytest.raises(StropError, match="version 3"):
        read(stored)


def test_another_version_under_the_name_is_refused(tmp_path: Path) -> None:
    file = WeightFile(tmp_path / "weights")
    old = file.write(3, weights(1).items())
    file.write(3, weights(2).items())
    with pytest.raises(StropError, match="version 3"):
        read(old)
    with pytest.raises(StropError, match="nowhere"):
        read(replace(old, path=str(tmp_path / "nowhere")))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a mebibyte."""
    with mounted(tmp_path / "small", "1m") as place:
        yield place


def test_a_full_disk_leaves_the_version_before(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.orchestration.weight_store.DISK_FULL_SECONDS", 0.01)
    notes: list[str] = []
    store = WeightStore(NO_ROOM, notes.append)
    store.start(small_disk)
    good = store.publish(lambda file, number: file.write(number, [("w", torch.ones(100_000))]), 1)
    store.keep({1})
    with pytest.raises(StropError, match=r"version 2 .*--resume"):
        store.publish(lambda file, number: file.write(number, [("w", torch.zeros(200_000))]), 2)
    assert len(notes) == 2 and all("version 2" in line for line in notes)
    assert torch.equal(read(good)["w"], torch.ones(100_000))
    assert [path.name for path in store.root.iterdir()] == ["weights-1.safetensors"]
