"""Differences of versions are exact, small where little has changed, and refused where they are put on another base."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from strop.base.types import StropError
from strop.orchestration import weight_store
from strop.orchestration.messages import StoredWeights, WeightUpdate
from strop.orchestration.ray_workers import Cargo, QueueConnection, RayWorkers
from strop.orchestration.weight_store import MOST, Bytes, WeightFile, difference, patched, read
from strop.orchestration.workers import written


def whole(base: Bytes, delta: Bytes) -> bytes:
    return b"".join(patched(base, delta))


@pytest.mark.parametrize("words", [1, 255, 256, 257, 5000])
def test_finding_8_a_difference_is_exact(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_store, "_PIECE", 2048)  # several pieces
    rng = np.random.default_rng(words)
    base = rng.integers(0, 256, 2 * words, dtype=np.uint8)
    for changed in {0, 1, words // 10}:
        content = base.copy()
        content.view(np.uint16)[rng.choice(words, changed, replace=False)] += 1
        found = difference(base, content)
        if found is not None:
            assert whole(base, found) == content.tobytes() and len(found) <= MOST * len(content)
        assert found is not None or 3 * changed + 2 * -(-words // 256) > MOST * len(content)
    assert difference(base, ~base) is None and difference(base, base[:-2]) is None


def versions(folder: Path) -> list[StoredWeights]:
    """Three in bfloat16: a step of 1e-6 moves few values of the second, and all of the third differ."""
    masters = torch.randn(300_000, generator=torch.Generator().manual_seed(1)) * 0.02
    moved = masters - 1e-6 * torch.sign(torch.randn(300_000, generator=torch.Generator().manual_seed(2)))
    tensors = [masters, moved, masters + 1.0]
    return [
        WeightFile(folder / f"weights-{version}").write(version, [("w", tensor.bfloat16())])
        for version, tensor in enumerate(tensors)
    ]


def sender() -> RayWorkers:
    """A launcher whose object store is a copy."""
    launcher = RayWorkers.__new__(RayWorkers)
    launcher._ray = SimpleNamespace(put=np.copy, get=lambda reference: reference)
    launcher._packed = launcher._base = None
    return launcher


def receive(connection: QueueConnection, stored: StoredWeights, cargo: Cargo) -> StoredWeights:
    update = WeightUpdate(stored, "keep", np.arange(3, dtype=np.int32))
    connection.come(connection._due, written(update), cargo)
    (message,) = connection.receive(0.0)
    assert isinstance(message, WeightUpdate)
    return message.weights


def test_finding_8_another_node_gets_differences_and_has_equal_bits(tmp_path: Path) -> None:
    launcher, connection = sender(), QueueConnection()
    cargoes = []
    for stored in versions(tmp_path):
        cargo = launcher._pack(stored)
        assert launcher._pack(stored) is cargo  # once a version, however many workers there are
        found = read(receive(connection, stored, cargo))["w"]
        assert torch.equal(found.view(torch.int16), read(stored)["w"].view(torch.int16))
        cargoes.append(cargo)
    assert [cargo.base is None for cargo in cargoes] == [True, False, True]
    assert len(cargoes[1].content) < 0.1 * len(cargoes[0].content)


def test_finding_8_a_difference_to_another_base_is_refused(tmp_path: Path) -> None:
    launcher = sender()
    first, second, other = versions(tmp_path)
    launcher._pack(first)
    delta = launcher._pack(second).content
    wrong = np.fromfile(other.path, np.uint8)
    with pytest.raises(StropError, match="version 1"):
        read(receive(QueueConnection(), second, Cargo(delta, wrong)))


def test_finding_8_packing_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:1")
    launcher = RayWorkers.__new__(RayWorkers)
    monkeypatch.setattr("strop.orchestration.ray_workers.require", lambda *given, **named: SimpleNamespace())
    monkeypatch.setattr(RayWorkers, "_is_on_this_node", lambda self, handle: False)
    launcher.__init__(SimpleNamespace())  # type: ignore[misc]
    sent: list[tuple[Any, ...]] = []
    deliver = SimpleNamespace(options=lambda **options: SimpleNamespace(remote=lambda *given: sent.append(given)))
    handle: Any = SimpleNamespace(end=None, sent=0, actor=SimpleNamespace(deliver=deliver), kill=pytest.fail)

    begun, packed = threading.Event(), threading.Event()

    def pack(stored: StoredWeights) -> Cargo:
        begun.set()
        assert packed.wait(60)
        return Cargo("full")

    monkeypatch.setattr(launcher, "_pack", pack)
    (stored, *_) = versions(tmp_path)
    launcher.send(handle, WeightUpdate(stored, "keep", np.arange(3, dtype=np.int32)))
    launcher.send(handle, "after it")
    assert begun.wait(60)
    packed.set()
    launcher.close()
    assert [given[0] for given in sent] == [1, 0] and sent[1][2:] == ("full",)  # put in order by the worker
