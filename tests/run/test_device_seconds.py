"""Device-seconds of generators and trainers by value, and whose devices a run keeps busy."""

from __future__ import annotations

import pytest
import torch
from tests.runs import small_config

from strop.run.devices import devices_apart
from strop.training.compute import ComputeMeter

SECONDS = {"step": 10.0, "rollout": 5.0, "update": 2.0, "verify": 1.0, "evaluation": 1.5, "checkpoint": 0.5}
ROW = {"tokens/generated": 100.0, "tokens": 40.0, "critic/tokens": None}


def test_on_the_same_devices_each_is_charged_its_own_time() -> None:
    meter = ComputeMeter(4, parameters=10)
    spent = meter.add(SECONDS, ROW)
    # 10 s less evaluation and checkpoint; 2 operations a generated token, 6 a trained one.
    assert spent == {
        "compute/device_seconds": 32.0, "compute/generator_seconds": 20.0, "compute/trainer_seconds": 8.0,
        "compute/flops": 10 * (2 * 100 + 6 * 40),
    }  # fmt: skip


def test_devices_of_their_own_are_charged_whether_they_work_or_wait() -> None:
    meter = ComputeMeter(2, parameters=10, generators=6)
    meter.add(SECONDS, ROW)
    kept = ComputeMeter(2, 10, 6)
    kept.load(meter.state())  # over a resume too
    spent = kept.add(SECONDS, ROW)
    assert spent["compute/generator_seconds"] == 2 * 8.0 * 6 and spent["compute/trainer_seconds"] == 2 * 8.0 * 2
    assert spent["compute/device_seconds"] == spent["compute/generator_seconds"] + spent["compute/trainer_seconds"]


@pytest.mark.parametrize(
    ("sets", "found"),
    [
        (("orchestration.executor=in_process",), (8, 0)),
        (("orchestration.executor=embedded", "orchestration.generators=2"), (8, 0)),  # in turn, at lag 0
        (("orchestration.executor=embedded", "orchestration.generators=3", "orchestration.max_lag=2"), (2, 6)),
        (("orchestration.executor=ray", "orchestration.generators=20", "orchestration.max_lag=2"), (1, 20)),
    ],
)
def test_cores_are_shared_out(sets: tuple[str, ...], found: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert devices_apart(small_config("device=cpu", *sets), trainers=8) == found


@pytest.mark.parametrize(
    ("sets", "found"),
    [
        (("orchestration.executor=embedded", "orchestration.generators=3", "orchestration.max_lag=2"), (1, 3)),
        (("orchestration.executor=embedded", "orchestration.generators=2", "orchestration.max_lag=2"), (1, 2)),
        (("orchestration.executor=ray", "orchestration.generators=9"), (1, 9)),
    ],
)
def test_generators_have_gpus_of_their_own(
    sets: tuple[str, ...], found: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert devices_apart(small_config("device=cuda", *sets), trainers=1) == found
