"""The learner of one of several ranks: the same `Learner`, its modules sharded and its trainers told of the ranks.

    place, learner = join(config, rank=1, size=2, rendezvous="tcp://127.0.0.1:29400", seconds=1800.0)
"""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from strop.assembly import Modules, check_tokens, located, make_learner, pick_device, wants_reference
from strop.config import RunConfig
from strop.console import SilentView
from strop.learner import Learner
from strop.seeds import derive
from strop.trainer.ranks import Together
from strop.trainer.sharding import Place, sharded_critic, sharded_policy
from strop.trainer.storage import ShardedStorage
from strop.types import InputError


def join(config: RunConfig, rank: int, size: int, rendezvous: str, seconds: float) -> Learner:
    """Meet the other ranks and build this one's share of the learner; every rank is called with the same `config`.

    Args:
        config: of the run.
        rank: of this process, from 0; on GPUs, it takes the GPU of that number, modulo those it sees.
        size: how many ranks there are.
        rendezvous: where they meet: `tcp://HOST:PORT` or `file://PATH`.
        seconds: how long an exchange may take before it is given up.

    Raises:
        StropError: a model cannot be loaded.
    """
    device = pick_device(config.device)
    timeout = datetime.timedelta(seconds=seconds)
    if device.type == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=size, timeout=timeout)
    torch.manual_seed(derive(config.seed, "torch"))
    place = Place(init_device_mesh(device.type, (size,)), device)
    # Groups of their own: exchanges of different threads and of different backends must not meet.
    ranks = Together(dist.new_group(backend="gloo", timeout=timeout))
    storage = ShardedStorage(place, dist.new_group(backend="gloo", timeout=timeout))
    return make_learner(config, sharded_modules(config, place), ranks, storage)


def sharded_modules(config: RunConfig, place: Place) -> Modules:
    """Policy, critic and reference policy as one process would build them, this rank's rows of each.

    Raises:
        InputError: there is no such model, or it cannot be trained.
    """
    model = located(config.model, config.seed, SilentView())
    seed = derive(config.seed, "model")
    policy = sharded_policy(model, seed, place)
    critic = None
    if config.critic is not None:
        path = config.critic.path
        settings = model
        if path is not None:
            named = config.model.model_copy(update={"path": path, "fresh": None, "revision": None})
            settings = located(named, config.seed, SilentView())
        try:
            critic = sharded_critic(settings, derive(config.seed, "critic"), seed if path is None else 0, place)
        except InputError as error:
            raise InputError(f"critic.path={path}: {error}") from error
        check_tokens(critic, policy, str(path))
    reference = sharded_policy(model, seed, place).requires_grad_(False) if wants_reference(config) else None
    return Modules(policy, critic, reference)
