"""The learner of one of several ranks: the same `Learner`, its modules sharded, its trainers aware of the ranks.

    learner = join(config, rank=1, size=2, rendezvous="file:///tmp/meet", seconds=1800.0)
"""

from __future__ import annotations

import datetime
import hashlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.device_mesh import init_device_mesh

from strop.base.metrics import plain, values
from strop.base.seeds import derive
from strop.base.types import InputError
from strop.base.view import SilentView
from strop.config.schema import RunConfig
from strop.model.critic import Critic
from strop.model.device import pick_device
from strop.model.policy import Policy
from strop.model.sequence_parallel import SequenceParallel, refuse_heads
from strop.orchestration.connection import ControllerConnection
from strop.orchestration.messages import StoredWeights
from strop.orchestration.rank_group import Handler, serve
from strop.orchestration.weight_store import WeightStore
from strop.run.learner_parts import Modules, check_tokens, make_learner, wants_reference
from strop.run.rank_group_learner import RankSettings
from strop.training.embedded_base import located
from strop.training.learner import Learner
from strop.training.ranks import Together, open_store, reach_store, use_interface_of
from strop.training.samples import TrainResult
from strop.training.sharding import Place, sharded_critic, sharded_policy
from strop.training.storage import Storage


def join(config: RunConfig, rank: int, size: int, rendezvous: str | Store, seconds: float) -> Learner:
    """Meet the other ranks and build this one's share of the learner; every rank is called with the same `config`.

    Args:
        config: of the run.
        rank: of this process, from 0; on GPUs, it takes the GPU of that number, modulo those it sees.
        size: how many ranks there are.
        rendezvous: where they meet: `tcp://HOST:PORT` or `file://PATH`, or a store that all have opened.
        seconds: how long an exchange may take before it is given up.

    Raises:
        StropError: a model cannot be loaded.
    """
    team = config.orchestration.sequence_parallel
    place, ranks, storage = meet(pick_device(config.device), rank, size, rendezvous, seconds, team)
    torch.manual_seed(derive(config.seed, "torch"))
    modules = sharded_modules(config, place)
    _share_sequences(modules, rank, size, team, datetime.timedelta(seconds=seconds))
    return make_learner(config, modules, ranks, storage)


def meet(
    device: torch.device, rank: int, size: int, rendezvous: str | Store, seconds: float, team: int = 1
) -> tuple[Place, Together, Storage]:
    """Meet the other ranks: where this one keeps its shards, all of them, and how their tensors reach the disk.

    The arguments are those of `join`; a rank of several on GPUs takes the GPU of its number. `team` ranks in a row
    compute each micro-batch together.
    """
    timeout = datetime.timedelta(seconds=seconds)
    if device.type == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    met: dict[str, Any] = {"init_method" if isinstance(rendezvous, str) else "store": rendezvous}
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=timeout, **met)
    place = Place(init_device_mesh(device.type, (size,)), device)
    # Groups of their own: exchanges of different threads and of different backends must not meet.
    ranks = Together(dist.new_group(backend="gloo", timeout=timeout), team)
    return place, ranks, Storage(place, ranks, Together(dist.new_group(backend="gloo", timeout=timeout)))


def _share_sequences(modules: Modules, rank: int, size: int, team: int, timeout: datetime.timedelta) -> None:
    """Have ranks in a row, `team` of them, compute each micro-batch together.

    Raises:
        InputError: a model's heads cannot be shared among them.
    """
    if team == 1:
        return
    groups = [dist.new_group(list(range(first, first + team)), timeout) for first in range(0, size, team)]
    for module in (modules.policy, modules.critic, modules.reference):
        if module is not None:
            assert isinstance(module, (Policy, Critic))
            refuse_heads(module.model.config.to_dict(), team)
            module.sequence = SequenceParallel(groups[rank // team])


def sharded_modules(config: RunConfig, place: Place) -> Modules:
    """Policy, critic and reference policy as one process would build them, this rank's rows of each.

    Raises:
        InputError: there is no such model, or it cannot be trained.
    """
    adapted = located(config.model, config.seed, SilentView())
    model = adapted.model_copy(update={"lora": None})
    seed = derive(config.seed, "model")
    policy = sharded_policy(adapted, seed, place)
    critic = None
    if config.critic is not None:
        path = config.critic.path
        settings = model
        if path is not None:
            named = model.model_copy(update={"path": path, "fresh": None, "revision": None})
            settings = located(named, config.seed, SilentView())
        try:
            critic = sharded_critic(settings, derive(config.seed, "critic"), seed if path is None else 0, place)
        except InputError as error:
            raise InputError(f"critic.path={path}: {error}") from error
        check_tokens(critic, policy, str(path))
    reference = sharded_policy(model, seed, place).requires_grad_(False) if wants_reference(config) else None
    return Modules(policy, critic, reference)


# ---------------------------------------------------------------------- as a worker


def main(connection: ControllerConnection, settings: RankSettings) -> None:
    """Join the other ranks, then do what the controller calls for."""
    if settings.rendezvous is None:
        calls = Scattered(settings, connection.address).handlers
    else:
        config = RunConfig.model_validate(settings.config)
        learner = join(config, settings.rank, settings.size, settings.rendezvous, settings.seconds)
        calls = handlers(learner)
    serve(connection, settings.rank == 0, calls)


class Scattered:
    """A rank that may be on a host of its own; `handlers` are all of a rank's once it has met the others."""

    def __init__(self, settings: RankSettings, address: str) -> None:
        self._settings = settings
        self._address = address
        self._store: TCPStore | None = None
        self.handlers: dict[str, Handler] = {"host": self.host, "meet": self.meet}

    def host(self, mark: str) -> tuple[str | None, str]:
        """The address at which the others meet the first rank; None from the others.

        `mark` is a file in the run's folder, which all must see.

        Raises:
            InputError: this rank does not see it.
        """
        if not Path(mark).exists():
            raise InputError(
                f"trainer-{self._settings.rank}, on {socket.gethostname()}, does not see the run's folder "
                f"{Path(mark).parent}, where ranks write checkpoints; put it where all nodes see it, or leave "
                "orchestration.ray.train_in_cluster out"
            )
        if self._settings.rank > 0:
            return None, ""
        self._store = open_store(self._address, self._settings.size, self._settings.seconds)
        return f"{self._address}:{self._store.port}", ""

    def meet(self, place: str) -> tuple[None, str]:
        """Join the other ranks."""
        settings = self._settings
        use_interface_of(self._address)
        store = self._store or reach_store(place, settings.size, settings.seconds)
        config = RunConfig.model_validate(settings.config)
        learner = join(config, settings.rank, settings.size, store, settings.seconds)
        self.handlers.update(handlers(learner))
        return None, ""


def handlers(learner: Learner) -> dict[str, Handler]:
    """By name, what a rank does when `RankGroupLearner` calls: it gives a value and the digest all ranks must share."""

    def learn(*arguments: Any) -> TrainResult | None:
        result = learner.learn(*arguments)
        return None if result is None else TrainResult(result.samples, plain(result.metrics))

    def publish(root: str, version: int) -> tuple[StoredWeights | None, str]:
        weights = learner.weights()  # of all ranks together; the first one has them and writes them
        return (WeightStore(Path(root)).write(version, weights.items()) if weights else None), ""

    same = (
        learner.sizes, learner.enter, learner.replan, learner.probe, learner.broken, learner.save, learner.settle,
        learner.load, learner.export,
    )  # fmt: skip
    calls: dict[str, Callable[..., Any]] = {method.__name__: method for method in same} | {"learn": learn}
    return {name: agreed(call) for name, call in calls.items()} | {"publish": publish}


def agreed(call: Callable[..., Any]) -> Handler:
    """What a rank does when it is called: the value, and the digest of it that all ranks must share."""

    def handle(*arguments: Any) -> tuple[Any, str]:
        value = call(*arguments)
        return value, digest(value)

    return handle


def digest(value: Any) -> str:
    """A digest that ranks share where they came to the same: train results by their samples and metrics."""
    found = hashlib.blake2b(digest_size=16)
    if isinstance(value, np.ndarray):
        found.update(value.tobytes())
    elif isinstance(value, TrainResult):
        for sample in value.samples:
            found.update(sample.id.to_bytes(8, "little", signed=True))
            found.update(sample.advantages.tobytes())
        found.update(json.dumps(values(value.metrics), sort_keys=True).encode())
    else:
        found.update(str(value).encode())
    return found.hexdigest()
