"""The connection of an actor, without Ray: messages in the order of their numbers, weights in memory and checked."""

from __future__ import annotations

import pickle
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from strop.base.types import InputError, StropError
from strop.orchestration.messages import Cancel, Failed, Finished, StoredWeights, Updated, WeightUpdate, Work
from strop.orchestration.ray_workers import Cargo, QueueConnection, RayHost, RayWorkers
from strop.orchestration.settings import RaySettings
from strop.orchestration.weight_store import WeightFile, read
from strop.orchestration.workers import ControllerGone, WorkerSetup, WorkerSpec, written


def test_messages_that_overtook_others_wait_for_them() -> None:
    connection = QueueConnection()
    for number in (1, 2):
        connection.come(number, written(Cancel(str(number))), None)
    assert connection.receive(0.0) == []
    connection.come(0, written(Cancel("0")), None)
    assert [message.request_id for message in connection.receive(0.0)] == ["0", "1", "2"]


def test_what_came_before_the_end_is_received_and_then_nobody_is_there() -> None:
    connection = QueueConnection()
    connection.come(0, written("last"), None)
    connection.close()
    assert connection.receive(5.0) == ["last"]
    with pytest.raises(ControllerGone):
        connection.receive(5.0)


def test_who_waits_is_woken(tmp_path: Path) -> None:
    connection = QueueConnection()
    threading.Timer(0.1, connection.come, (0, written("now"), None)).start()
    assert connection.receive(30.0) == ["now"]
    threading.Timer(0.1, connection.send, ("answer",)).start()
    while not (bodies := connection.collect().bodies):
        pass
    assert bodies == (written("answer"),)


def stage(connection: QueueConnection, stored: StoredWeights, content: bytes) -> StoredWeights:
    update = WeightUpdate(stored, "keep", np.arange(3, dtype=np.int32))
    connection.come(connection._due, written(update), Cargo(np.frombuffer(content, np.uint8)))
    (message,) = connection.receive(0.0)
    assert isinstance(message, WeightUpdate)
    return message.weights


def test_weights_from_elsewhere_are_whole_or_refused(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    stored = WeightFile(tmp_path / "weights").write(7, tensors.items())
    content = Path(stored.path).read_bytes()
    Path(stored.path).unlink()  # another node does not have it
    connection = QueueConnection()
    here = stage(connection, stored, content)
    assert here.version == 7 and here.path != stored.path
    found = read(here)
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)
    connection.send(Finished((), Work()))  # a generator goes on while it reads
    assert Path(here.path).exists()
    connection.send(Updated(7, np.zeros(2, np.float32), Work()))
    assert connection.receive(0.0) == []
    assert not Path(here.path).exists() and torch.equal(found["a"], tensors["a"])  # still mapped
    for broken in (content[:-1], content[:-1] + bytes([content[-1] ^ 1])):
        with pytest.raises(StropError, match="version"):
            read(stage(connection, stored, broken))


def test_of_two_versions_in_a_queue_each_is_whole_when_it_is_read(tmp_path: Path) -> None:
    connection, probe = QueueConnection(), np.arange(3, dtype=np.int32)
    for version in (1, 2):
        stored = WeightFile(tmp_path / "weights").write(version, {"a": torch.full((4,), float(version))}.items())
        content = np.frombuffer(Path(stored.path).read_bytes(), np.uint8)
        connection.come(version - 1, written(WeightUpdate(stored, "keep", probe)), Cargo(content))
    for version in (1, 2):
        (message,) = connection.receive(0.0)
        assert read(message.weights)["a"].tolist() == [version] * 4


def test_an_entry_that_fails_leaves_last_words(tmp_path: Path) -> None:
    host = RayHost(written(WorkerSetup.of(WorkerSpec("nobody", "tests.orchestration.nowhere:main", None), None)))
    collected = host.collect()
    while not collected.ended:
        collected = host.collect()
    assert len(collected.bodies) == 1
    said = pickle.loads(collected.bodies[0])
    assert isinstance(said, Failed) and not said.fatal and "No module named 'tests.orchestration.nowhere'" in said.error


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r'pip install "strop\[ray\]"'):
        RayWorkers(RaySettings())
