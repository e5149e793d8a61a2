"""Saves in the background: of when they were begun, one at a time, kept as they are told."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from strop.training import checkpoint
from strop.training.checkpoint import CheckpointEntry, Retention
from strop.training.storage import Storage


class Copied(dict[str, dict[str, Tensor]]):
    """Notes which checkpoints are there when it is copied."""

    def __init__(self, root: Path, **groups: dict[str, Tensor]) -> None:
        super().__init__(groups)
        self.root = root
        self.seen: list[int] = []

    def items(self) -> Any:
        self.seen = checkpoint.steps(self.root)
        return super().items()


def test_what_is_saved_is_what_there_was_when_it_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, real = threading.Event(), checkpoint.save

    def late(*args: Any, **kwargs: Any) -> Path:
        assert held.wait(20)
        return real(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", late)
    storage, keep = Storage(), Retention(last=1, best=1)
    weight, state = torch.ones(3), {"held_out": {"2": 0.5}}
    storage.begin(
        CheckpointEntry(tmp_path, 1, state, 0.5, keep), {"policy": {"w": weight}}, {"rng": {"r": torch.arange(2)}}
    )
    weight.zero_()
    state["held_out"]["4"] = 1.0
    assert not storage.settle(wait=False) and checkpoint.steps(tmp_path) == []
    threading.Timer(0.1, held.set).start()
    second = Copied(tmp_path, policy={"w": weight})
    storage.begin(CheckpointEntry(tmp_path, 2, {}, 0.25, keep), second, {})
    assert second.seen == [1]  # one copy at a time in memory
    storage.begin(CheckpointEntry(tmp_path, 3, {}, None, keep), {}, {})
    assert storage.settle(wait=True) and storage.settle(wait=False)
    assert checkpoint.steps(tmp_path) == [1, 3]  # the best and the newest
    first = checkpoint.load(tmp_path, 1)
    assert first.state == {"held_out": {"2": 0.5}}
    assert first.tensors["policy"]["w"].tolist() == [1, 1, 1] and first.tensors["rng"]["r"].tolist() == [0, 1]
