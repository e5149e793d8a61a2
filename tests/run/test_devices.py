"""Device-seconds of generators and trainers by value, whose devices a run keeps busy, and what each child is given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.run.paper import PaperMachine
from tests.runs import small_config

from strop.base.types import InputError
from strop.orchestration.processes import Processes
from strop.orchestration.rank_group import RankGroup
from strop.orchestration.workers import WorkerSpec
from strop.run.assembly import generator_spec
from strop.run.devices import assumed_placement, devices_apart, driver_device, local_placement, seat
from strop.run.learners import RankGroupLearner
from strop.training.compute import ComputeMeter, peak_of

SECONDS = {"step": 10.0, "rollout": 5.0, "update": 2.0, "verify": 1.0, "evaluation": 1.5, "checkpoint": 0.5}
ROW = {"tokens/generated": 100.0, "tokens": 40.0, "critic/tokens": None}


def test_on_the_same_devices_each_is_charged_its_own_time() -> None:
    meter = ComputeMeter(4, parameters=10)
    spent = meter.add(SECONDS, ROW)
    # 10 s less evaluation and checkpoint; 2 operations a generated token, 6 a packed one.
    assert spent == {
        "compute/device_seconds": 32.0, "compute/generator_seconds": 20.0, "compute/trainer_seconds": 8.0,
        "compute/flops": 10 * (2 * 100 + 6 * 40),
    }  # fmt: skip


def test_finding_15_attention_is_counted_and_gives_the_share_of_the_peak() -> None:
    row = ROW | {"pairs/generated": 1000.0, "pairs": 500.0, "critic/pairs": None}
    spent = ComputeMeter(4, parameters=10, width=6, peak=1000.0).add(SECONDS, row)
    updating = 6 * 10 * 40 + 12 * 6 * 500
    assert spent["compute/flops"] == 2 * 10 * 100 + 4 * 6 * 1000 + updating
    assert spent["mfu"] == updating / (2.0 * 4 * 1000.0)
    assert "mfu" not in ComputeMeter(4, parameters=10, width=6).add(SECONDS, row)


def test_the_peak_is_known_by_the_name_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, bfloat16 = torch.device("cuda"), torch.bfloat16
    for name, peak in (("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA T4", None)):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert peak_of(gpu, bfloat16) == peak
    assert peak_of(gpu, torch.float32) is None and peak_of(torch.device("cpu"), bfloat16) is None


def test_injected_tokens_run_through_the_model_as_generated_ones_do() -> None:
    spent = ComputeMeter(4, parameters=10).add(SECONDS, ROW | {"tokens/generated": 70.0, "tokens/injected": 30.0})
    assert spent["compute/flops"] == 10 * (2 * 100 + 6 * 40)


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


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], object]:
    """Makes this machine one with so many GPUs, as far as torch says."""
    return partial(PaperMachine, monkeypatch)


@pytest.mark.parametrize(
    ("sets", "found"),
    [
        (("orchestration.executor=embedded", "orchestration.generators=3", "orchestration.max_lag=2"), (1, 3)),
        (("orchestration.executor=embedded", "orchestration.generators=2", "orchestration.max_lag=2"), (1, 2)),
        (("orchestration.executor=ray", "orchestration.generators=9"), (1, 9)),
    ],
)
def test_generators_have_gpus_of_their_own(
    sets: tuple[str, ...], found: tuple[int, int], gpus: Callable[[int], object]
) -> None:
    gpus(4)
    assert devices_apart(small_config("device=cuda", *sets), trainers=1) == found


def test_more_generators_than_gpus_are_refused(gpus: Callable[[int], object]) -> None:
    gpus(4)
    with pytest.raises(InputError, match=r"orchestration\.generators"):
        local_placement(small_config("device=cuda", "orchestration.generators=9", "orchestration.max_lag=2"))


WIDE = (
    "device=cuda", "engine=Vllm", "engine.tensor_parallel=2", "orchestration.generators=2", "orchestration.max_lag=8",
)  # fmt: skip


def test_each_child_sees_its_own_gpus_alone(gpus: Callable[[int], object]) -> None:
    gpus(8)
    config = small_config(*WIDE, "orchestration.trainers=3")
    placement = local_placement(config)
    generators = [generator_spec(config, config.model, placement, number) for number in range(2)]
    assert [spec.environment["CUDA_VISIBLE_DEVICES"] for spec in generators] == ["3,4", "5,6"]
    assert [(spec.settings.device, spec.gpus) for spec in generators] == [("cuda", 0)] * 2
    assert seat(config, placement, "evaluator").environment == {"CUDA_VISIBLE_DEVICES": ""}  # servers evaluate
    assert driver_device(config, placement) == "cpu"  # its trainers have the GPUs


@pytest.mark.parametrize("asynchronous", ["auto", "false"])
def test_finding_3_four_trainers_and_four_servers_fit_on_eight(gpus: Callable[[int], None], asynchronous: str) -> None:
    """An evaluator, or the driver in its place, shared the last server's GPU, which has no room."""
    gpus(8)
    four = ("orchestration.trainers=4", "orchestration.generators=4", "engine.tensor_parallel=1")
    config = small_config(*WIDE, *four, f"evaluation.asynchronous={asynchronous}")
    placement = local_placement(config)
    assert placement is not None and [share.gpus for share in placement.shares] == [(number,) for number in range(8)]
    assert driver_device(config, placement) == "cpu"


def test_each_rank_of_the_trainer_is_given_one(
    gpus: Callable[[int], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launched: list[WorkerSpec] = []
    monkeypatch.setattr(RankGroup, "__init__", lambda self, launcher, specs, *seconds: launched.extend(specs))
    gpus(8)
    config = small_config(*WIDE, "orchestration.trainers=3")
    placement = local_placement(config)
    seats = [seat(config, placement, f"trainer-{rank}") for rank in range(3)]
    RankGroupLearner(config, Processes(), print, seats=seats).start(tmp_path)
    assert [spec.environment["CUDA_VISIBLE_DEVICES"] for spec in launched] == ["0", "1", "2"]
    assert all(spec.environment["NCCL_SOCKET_IFNAME"] == "lo" for spec in launched)


def test_on_ray_each_worker_asks_for_as_many_as_its_engine_takes(gpus: Callable[[int], object]) -> None:
    gpus(1)
    config = small_config(*WIDE, "orchestration.executor=ray")
    assert local_placement(config) is None and driver_device(config, None) == "cuda:0"
    assert generator_spec(config, config.model, None, 0).gpus == 2 and seat(config, None, "evaluator").gpus == 1


def test_a_cluster_is_assumed_to_have_room_that_this_host_lacks(gpus: Callable[[int], object]) -> None:
    gpus(1)
    config = small_config(*WIDE, "orchestration.executor=ray", "engine.tensor_parallel=4")
    shares = {share.role: (share.host, share.gpus) for share in assumed_placement(config).shares}
    assert shares["driver"] == (0, (0,)) and shares["generator-1"] == (2, (0, 1, 2, 3))
    with pytest.raises(InputError, match="this host has 1 GPUs; set orchestration.ray.train_in_cluster=true"):
        assumed_placement(small_config(*WIDE, "orchestration.executor=ray", "orchestration.trainers=2"))


def test_servers_elsewhere_leave_their_workers_without_gpus(gpus: Callable[[int], object]) -> None:
    gpus(2)
    config = small_config(*WIDE, 'engine.urls=["http://a", "http://b"]')
    spec = generator_spec(config, config.model, local_placement(config), 1)
    assert spec.environment == {"CUDA_VISIBLE_DEVICES": ""} and spec.settings.device == "cpu"
    assert spec.settings.engine.urls == ("http://b",)


def test_without_gpus_nothing_is_said_of_them() -> None:
    config = small_config("device=cpu", "orchestration.generators=2", "orchestration.max_lag=2")
    spec = generator_spec(config, config.model, local_placement(config), 1)
    assert spec.environment == {} and spec.settings.device == "cpu"
