"""Devices of a run's processes: the placement, the share of each worker, and the number of busy devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from strop.base.machine import cuda_visible
from strop.base.types import InputError
from strop.config.schema import RunConfig
from strop.engines.settings import Vllm
from strop.orchestration.placement import DRIVER, GENERATOR, TRAINER, Placement, place


def placement_of(config: RunConfig, hosts: Sequence[int]) -> Placement:
    """Assign the GPUs of `hosts` to the workers; each entry is the number of GPUs of a host.

    Raises:
        InputError: see `strop.orchestration.placement.place`.
    """
    served = isinstance(config.engine, Vllm)
    return place(hosts, config.orchestration, width_of(config), config.evaluates_apart, served)


def width_of(config: RunConfig) -> int:
    """The number of GPUs of a generator's engine; 0 if its server already runs elsewhere."""
    if not isinstance(config.engine, Vllm):
        return 1
    return 0 if config.engine.urls else config.engine.tensor_parallel


def seen_gpus(config: RunConfig) -> int:
    """The number of GPUs that this process sees and may use.

    Raises:
        InputError: `device=cuda`, and there is none.
    """
    import torch

    from strop.model.device import pick_device

    return torch.cuda.device_count() if pick_device(config.device).type == "cuda" else 0


def local_placement(config: RunConfig) -> Placement | None:
    """Assign the GPUs of this host to the workers; None with Ray, which places workers itself.

    Raises:
        InputError: it does not fit, or `device=cuda`, and there is no GPU.
    """
    return None if config.orchestration.executor == "ray" else placement_of(config, (seen_gpus(config),))


def assumed_placement(config: RunConfig) -> Placement:
    """As `local_placement`; for Ray, which places workers itself, on this host and enough like it.

    Raises:
        InputError: see `local_placement`; or trainers that are to be on this host do not fit there.
    """
    placement, gpus = local_placement(config), seen_gpus(config)
    if placement is not None:
        return placement
    orchestration, width = config.orchestration, width_of(config)
    if not gpus:
        return placement_of(config, (0,))
    if orchestration.trainers > gpus and not orchestration.ray.train_in_cluster:
        raise InputError(
            f"orchestration.trainers={orchestration.trainers}: this host has {gpus} GPUs; set "
            "orchestration.ray.train_in_cluster=true to use those of others"
        )
    each = max(gpus, width)
    more = 1 + -(-orchestration.trainers // each) + -(-orchestration.generators // (each // max(width, 1)))
    return placement_of(config, (gpus, *(each,) * more))


def driver_computes(config: RunConfig) -> bool:
    """Whether the driver's policy trains, or evaluates because neither a worker nor servers do."""
    return config.orchestration.trainers == 1 or not (config.evaluates_apart or isinstance(config.engine, Vllm))


def driver_device(config: RunConfig, placement: Placement | None) -> str:
    """The device of the driver's policy, which trains, or only evaluates if separate ranks train."""
    if placement is None:
        return "cuda:0" if seen_gpus(config) and driver_computes(config) else "cpu"
    gpus = placement.of(DRIVER).gpus
    return f"cuda:{gpus[0]}" if gpus else "cpu"


@dataclass(frozen=True)
class Seat:
    """The resources of a worker: its torch device, the GPUs that Ray reserves, and environment variables."""

    device: str
    gpus: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


def seat(config: RunConfig, placement: Placement | None, role: str) -> Seat:
    """The resources of the worker of a role. It sees only its GPUs, so it numbers them from 0."""
    if placement is None:
        width = width_of(config) if role.startswith(GENERATOR) else 1
        gpus = width if seen_gpus(config) else 0
        return Seat("cuda" if gpus else "cpu", gpus)
    if not sum(placement.hosts):
        return Seat("cpu")
    gpus_of = placement.of(role).gpus
    return Seat("cuda" if gpus_of else "cpu", environment=cuda_visible(gpus_of))


def devices_apart(config: RunConfig, trainers: int) -> tuple[int, int]:
    """The number of devices of the trainer, and of devices that only generators use.

    Args:
        config: the configuration of the run.
        trainers: devices of its learner.

    Generators in separate processes have separate GPUs if there is more than one. On a machine without GPUs they use
    the trainer's cores in turn if the lag is 0, and otherwise share them with it.
    """
    import torch

    orchestration = config.orchestration
    if orchestration.in_process:
        return trainers, 0
    gpus = seen_gpus(config)
    if gpus and orchestration.executor == "ray":  # GPUs that this process need not see
        return trainers, orchestration.generators * width_of(config)
    if gpus:
        placement = placement_of(config, (gpus,))
        trains = (DRIVER,) if orchestration.trainers == 1 else (TRAINER,)
        return trainers, len(placement.gpus_of(GENERATOR) - placement.gpus_of(*trains))
    if orchestration.max_lag == 0:
        return trainers, 0
    count = orchestration.generators
    generating = count * max(torch.get_num_threads() // (count + 1), 1)
    return max(trainers - generating, 1), generating
