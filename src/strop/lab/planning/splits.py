"""How many of so many GPUs should train, and how many generate: the splits that the memory of each GPU allows.

    for split in splits(config, gpus=32, room=Room(gpu=80 * GIB, host=1024 * GIB)): ...
"""

from __future__ import annotations

from collections.abc import Iterator

from strop.base.types import InputError
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.engines.settings import Vllm
from strop.run.devices import placement_of
from strop.run.memory import MemoryPlan, Room, planned
from strop.run.update_memory import outline

NODE = 8  # GPUs of a host
WIDTHS = (1, 2, 4, 8)


def splits(config: RunConfig, gpus: int, room: Room) -> Iterator[MemoryPlan]:
    """The plans of memory with 1, 2, 4, … trainers, all other GPUs generating, by servers that are as narrow as may be.

    Args:
        config: a run with an engine.
        gpus: how many there are, on hosts of `NODE` each.
        room: of each GPU and of each host.

    Raises:
        InputError: no such model, or one that cannot be trained.
    """
    policy = outline(config.model)
    hosts = (NODE,) * (gpus // NODE) + ((gpus % NODE,) if gpus % NODE else ())
    trainers = 1
    while trainers < gpus:
        for width in WIDTHS if isinstance(config.engine, Vllm) else WIDTHS[:1]:
            sets = [f"orchestration.trainers={trainers}", f"orchestration.generators={(gpus - trainers) // width}"]
            if width > 1:
                sets.append(f"engine.tensor_parallel={width}")
            if len(hosts) > 1:
                sets += ["orchestration.executor=ray", f"orchestration.ray.train_in_cluster={trainers > NODE}".lower()]
            try:
                split = edit(config, sets)
                found = planned(split, policy, room=room, placement=placement_of(split, hosts))
            except InputError:  # there is no generator, or a server does not fit on a host
                continue
            if found.finding.level == "ok":
                yield found
                break
        trainers *= 2
