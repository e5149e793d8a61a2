"""The weight store: a version is there whole or not at all, and what is read is what was written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.orchestration.disks import mounted
from tests.orchestration.invariants import assert_sound
from tests.orchestration.simulation import made
from tests.runs import assert_same_run, small_config
from torch import Tensor

from strop.base.types import StropError
from strop.base.view import SilentView
from strop.orchestration.messages import StoredWeights
from strop.orchestration.weight_store import WeightStore, WeightTransport, claim, read, sweep
from strop.run.run import train
from strop.training.checkpoint import DiskFull


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


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    first = store.write(1, weights(1).items())
    stored = store.write(2, weights(2).items())
    assert stored.bytes == Path(stored.path).stat().st_size
    for found in (read(stored), load_file(stored.path)):
        assert found.keys() == weights().keys()
        for name, value in weights(2).items():
            assert found[name].dtype == value.dtype and torch.equal(found[name], value)
    mapped = read(first)
    store.keep({2})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["weights-2.safetensors"]
    assert torch.equal(mapped["large"], weights(1)["large"])  # who has it mapped may go on reading


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
    stored = WeightStore(tmp_path).write(3, weights().items())
    damage(stored)
    with pytest.raises(StropError, match="version 3"):
        read(stored)


def test_another_version_under_the_name_is_refused(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    old = store.write(3, weights(1).items())
    store.write(3, weights(2).items())
    with pytest.raises(StropError, match="version 3"):
        read(old)
    with pytest.raises(StropError, match="nowhere"):
        read(replace(old, path=str(tmp_path / "nowhere")))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a mebibyte."""
    with mounted(tmp_path / "small", "1m") as place:
        yield place


def test_a_full_disk_leaves_the_version_before(small_disk: Path) -> None:
    store = WeightStore(small_disk)
    good = store.write(1, [("w", torch.ones(100_000))])
    with pytest.raises(DiskFull, match="version 2"):
        store.write(2, [("w", torch.zeros(200_000))])
    assert torch.equal(read(good)["w"], torch.ones(100_000))
    assert sorted(p.name for p in small_disk.iterdir()) == ["weights-1.safetensors"]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("lag", [0, *(pytest.param(lag, marks=pytest.mark.slow) for lag in (1, 2, 4, 8))])
def test_a_full_memory_is_left_for_the_run_folder(small_disk: Path, tmp_path: Path, lag: int) -> None:
    run = made(tmp_path / "run", f"steps={lag + 3}", f"orchestration.max_lag={lag}")
    start = run.fleet.start

    def into_small(folder: Path) -> None:
        start(folder)
        run.fleet.transport.places[:] = [claim(folder, 1, small_disk)]

    def fill(step: int) -> None:
        if step == 2:
            with pytest.raises(OSError, match="No space"), (small_disk / "full").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

    run.fleet.start = into_small  # type: ignore[method-assign]
    run.learner.before = fill
    assert_sound(run.run())
    assert [place.root.parent for place in run.fleet.transport.places] == [small_disk, tmp_path / "run"]


@pytest.mark.usefixtures("forked")
def test_no_room_anywhere_ends_the_run_with_one_line(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.orchestration.weight_store.DISK_FULL_SECONDS", 0.01)
    (small_disk / "full").write_bytes(bytes((1 << 20) - 100_000))
    run = made(
        tmp_path / "run",
        source=lambda store, version: WeightStore(small_disk).write(version, [("w", torch.ones(100_000))]),
    )
    with pytest.raises(StropError, match="version 0 .*strop train --resume"):
        run.run()


@pytest.mark.parametrize("memory", [True, False])
def test_versions_are_kept_while_they_are_needed_and_nothing_is_left(tmp_path: Path, memory: bool) -> None:
    notes: list[str] = []
    (tmp_path / "memory").mkdir()
    transport = WeightTransport(1 << 10, notes.append, tmp_path / "memory" if memory else None)
    transport.start(tmp_path / "run")
    place = transport.places[-1].root
    assert place.is_relative_to(tmp_path / ("memory" if memory else "run"))
    stored = [
        transport.publish(lambda store, number: store.write(number, [("w", torch.full((3,), float(number)))]), version)
        for version in (1, 2, 3)
    ]
    transport.keep({1, 3})
    assert sorted(path.stem for path in place.glob("*.safetensors")) == ["weights-1", "weights-3"]
    assert [read(one)["w"].tolist() for one in (stored[0], stored[2])] == [[1.0] * 3, [3.0] * 3]
    transport.release()
    transport.release()
    assert not place.exists() and notes == []


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_run_comes_to_the_same_through_files_of_its_folder(tmp_path: Path) -> None:
    sets = ("steps=2", "orchestration.executor=embedded", "orchestration.generators=2", "evaluation.every=none")
    for way in ("shared_memory", "files"):
        train(small_config(*sets, f"orchestration.weights={way}"), tmp_path / way, SilentView())
    assert_same_run(tmp_path / "shared_memory", tmp_path / "files")
    assert not list(tmp_path.glob("*/weights*"))


def test_too_small_a_memory_is_not_claimed(small_disk: Path, tmp_path: Path) -> None:
    assert claim(tmp_path, 500_000, small_disk).root == tmp_path / "weights"
    assert claim(tmp_path, 500_000, tmp_path / "nowhere").root == tmp_path / "weights"
    (tmp_path / "file").touch()
    assert claim(tmp_path, 1, tmp_path / "file").root == tmp_path / "weights"
    place = claim(tmp_path, 100_000, small_disk)
    assert place.root.parent == small_disk
    place.release()
    assert not list(small_disk.iterdir())


def test_what_a_killed_run_left_is_swept_and_what_lives_is_not(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from strop.orchestration.weight_store import claim\n"
        f"place = claim(Path({str(tmp_path / 'other')!r}), 1, Path({str(tmp_path)!r}))\n"
        "(place.root / 'weights-1.safetensors').write_bytes(b'x')\n"
        "print(place.root, flush=True)\n"
        "time.sleep(60)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    left = Path(other.stdout.readline().strip())
    own = [claim(tmp_path / "run", 1, tmp_path) for _ in range(2)]
    assert left.exists() and own[0].root != own[1].root
    assert sweep(tmp_path) == []
    other.send_signal(signal.SIGKILL)
    other.wait()
    other.stdout.close()
    deadline = time.monotonic() + 5
    while sweep(tmp_path) != [left]:
        assert time.monotonic() < deadline
    assert not left.exists() and all(place.root.exists() for place in own)
