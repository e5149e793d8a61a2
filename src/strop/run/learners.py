"""The learner of a run: in this process, or sharded over several ranks.

`make_learner` builds the learner of one process. `join` builds the learner of one of several ranks: the same `Learner`,
with sharded modules and trainers that know the ranks. `RankGroupLearner` is the run's view of those ranks: it calls
every rank with the same arguments, returns the result of the first one, and compares the digests of all results.

    learner = join(config, rank=1, size=2, rendezvous="file:///tmp/meet", seconds=1800.0)
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from inspect import signature
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.device_mesh import init_device_mesh

from strop.base.metrics import plain, values
from strop.base.seeds import derive
from strop.base.types import InputError, StropError
from strop.base.view import SilentView, View
from strop.config.schema import RunConfig
from strop.model.critic import HEAD_FILE, Critic
from strop.model.device import pick_device
from strop.model.policy import Policy, load_policy
from strop.model.sequence_parallel import SequenceParallel, refuse_heads
from strop.orchestration.messages import StoredWeights
from strop.orchestration.rank_group import Handler, RankGroup, serve
from strop.orchestration.weight_store import WeightFile, read
from strop.orchestration.workers import ControllerConnection, WorkerLauncher, WorkerSpec
from strop.run.devices import Seat
from strop.run.reference import references
from strop.training.embedded_base import located
from strop.training.learner import Learner, objective_of
from strop.training.ranks import ALONE, Ranks, Together, open_store, reach_store, use_interface_of
from strop.training.samples import TrainResult
from strop.training.sharding import Place, gathered, sharded_critic, sharded_policy
from strop.training.step import Trainer
from strop.training.storage import Storage


@dataclass(frozen=True)
class Modules:
    """The modules that a learner trains, and its reference policies: whole, or all sharded over the same ranks."""

    policy: Policy
    critic: Critic | None = None
    references: Mapping[str | None, nn.Module] = field(default_factory=dict)


def make_learner(
    config: RunConfig, modules: Modules, ranks: Ranks = ALONE, storage: Storage | None = None
) -> Learner:
    """The learner with the trainers of the policy and of the critic, if there is one."""
    batch, temperature = config.batch, config.sampling.temperature
    updates = config.steps * batch.updates_per_step * batch.passes_per_batch
    trainer = Trainer(modules.policy, objective_of(config.algorithm), config.optim, updates, temperature, ranks)
    critic = None
    if modules.critic is not None:
        settings = config.critic
        assert settings is not None
        total = config.steps * settings.updates_per_step * settings.passes_per_batch
        critic = Trainer(modules.critic, settings.loss, settings.optim, total, temperature, ranks)
    return Learner(config.learner, trainer, critic, modules.references, storage)


def modules_of(config: RunConfig, policy: Policy, view: View, place: Place | None = None) -> Modules:
    """The policy, and the critic and reference policy if the algorithm needs them.

    They are whole, or with a `place` sharded as the policy is: this rank's rows of each.

    Raises:
        InputError: there is no such model, or it cannot be trained.
    """
    critic = None if config.critic is None else _critic(config, config.critic.path, policy, view, place)
    return Modules(policy, critic, references(config, policy, view, place))


def _critic(config: RunConfig, path: str | None, policy: Policy, view: View, place: Place | None) -> Critic:
    """The policy with a value head; or an exported critic, or another model with a value head, from `path`.

    Raises:
        InputError: there is no such model, or it knows other tokens than the policy.
    """
    seed = derive(config.seed, "critic")
    if path is None and place is None:
        policy.use_kernels()  # which the critic then has, whether or not an engine has asked for them before
        return Critic.from_policy(policy, seed).to(policy.device)
    other = {} if path is None else {"path": path, "fresh": None, "revision": None}
    try:
        settings = located(config.model.model_copy(update={"lora": None, **other}), config.seed, view)
        if place is not None:
            critic = sharded_critic(settings, seed, derive(config.seed, "model") if path is None else 0, place)
        elif (Path(str(path)) / HEAD_FILE).is_file():
            critic = Critic.load(Path(str(path)), settings).to(policy.device)
        else:
            critic = Critic.from_policy(load_policy(settings)[0], seed).to(policy.device)
    except InputError as error:
        raise InputError(f"critic.path={path}: {error}") from error
    check_tokens(critic, policy, str(path))
    return critic


def check_tokens(critic: Critic, policy: Policy, path: str) -> None:
    """Refuse a critic from `path` that does not know the policy's tokens.

    Raises:
        InputError: naming both numbers.
    """
    known = critic.model.get_input_embeddings().weight.shape[0]
    if known < policy.vocabulary:
        raise InputError(
            f"critic.path={path}: it knows {known} tokens and the policy {policy.vocabulary}; name a model with the "
            "policy's tokenizer"
        )


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
    offload = config.optim.offload is True
    place, ranks, storage = meet(pick_device(config.device), rank, size, rendezvous, seconds, team, offload)
    torch.manual_seed(derive(config.seed, "torch"))
    view = SilentView()
    policy = sharded_policy(located(config.model, config.seed, view), derive(config.seed, "model"), place)
    modules = modules_of(config, policy, view, place)
    _share_sequences(modules, rank, size, team, datetime.timedelta(seconds=seconds))
    return make_learner(config, modules, ranks, storage)


def meet(
    device: torch.device, rank: int, size: int, rendezvous: str | Store, seconds: float, team: int = 1,
    offload: bool = False,
) -> tuple[Place, Together, Storage]:  # fmt: skip
    """Meet the other ranks: where this one keeps its shards, all of them, and how their tensors reach the disk.

    The arguments are those of `join`; a rank of several on GPUs takes the GPU of its number. `team` ranks in a row
    compute each micro-batch together; `offload` is that of `Place`.
    """
    timeout = datetime.timedelta(seconds=seconds)
    if device.type == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    # Norms of what lies in the host's memory are summed there.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    met: dict[str, Any] = {"init_method" if isinstance(rendezvous, str) else "store": rendezvous}
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=timeout, **met)
    place = Place(init_device_mesh(device.type, (size,)), device, offload)
    # Separate groups: exchanges of different threads and of different backends must not mix.
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
    for module in (modules.policy, modules.critic, *modules.references.values()):
        if isinstance(module, (Policy, Critic)):
            refuse_heads(module.model.config.to_dict(), team)
            module.sequence = SequenceParallel(groups[rank // team])


# ---------------------------------------------------------------------- as a worker


def main(connection: ControllerConnection, settings: RankSettings) -> None:
    """Join the other ranks, then serve the controller's calls."""
    if settings.rendezvous is None:
        calls = Scattered(settings, connection.address).handlers
    else:
        config = RunConfig.model_validate(settings.config)
        learner = join(config, settings.rank, settings.size, settings.rendezvous, settings.seconds)
        calls = handlers(learner)
    serve(connection, settings.rank == 0, calls)


class Scattered:
    """A rank that may run on another host; `handlers` is complete once it has met the others."""

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
    """The handlers of a rank by name; each returns a value and its digest, which must be equal on all ranks."""

    def learn(*arguments: Any) -> TrainResult | None:
        result = learner.learn(*arguments)
        if result is None:
            return None
        samples = tuple(replace(sample, routed_experts=None) for sample in result.samples)  # which nobody reads again
        return TrainResult(samples, plain(result.metrics))

    def publish(path: str, version: int) -> tuple[StoredWeights | None, str]:
        weights = learner.policy.weights()
        whole = gathered(weights)
        try:
            first = learner.trainer.ranks.rank == 0
            return (WeightFile(Path(path)).write(version, weights.items(), whole) if first else None), ""
        finally:
            for _ in whole:  # by all ranks together, also where the first one could not write
                pass

    same = (
        learner.sizes, learner.enter, learner.replan, learner.broken, learner.digest, learner.save, learner.settle,
        learner.load, learner.export,
    )  # fmt: skip
    calls: dict[str, Callable[..., Any]] = {method.__name__: method for method in same} | {"learn": learn}
    # Every rank computes the probe whole, and GPUs of two kinds round otherwise; the first rank's is the run's.
    return {name: agreed(call) for name, call in calls.items()} | {
        "publish": publish, "probe": lambda token_ids: (learner.probe(token_ids), "")
    }  # fmt: skip


def agreed(call: Callable[..., Any]) -> Handler:
    """A handler that returns the value of `call` and its digest, which must be equal on all ranks."""

    def handle(*arguments: Any) -> tuple[Any, str]:
        value = call(*arguments)
        return value, digest(value)

    return handle


def digest(value: Any) -> str:
    """A digest of a result; of a train result, that of its samples and metrics."""
    found = hashlib.blake2b(digest_size=16)
    if isinstance(value, TrainResult):
        for sample in value.samples:
            found.update(sample.id.to_bytes(8, "little", signed=True))
            found.update(sample.advantages.tobytes())
        found.update(json.dumps(values(value.metrics), sort_keys=True).encode())
    else:
        found.update(str(value).encode())
    return found.hexdigest()


# On one host, exchanges stay on the loopback device unless the user names another.
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class RankSettings:
    """The settings of a rank's worker: the run's configuration as plain data, and the arguments of `join`.

    With `rendezvous` None the ranks learn where to meet by the calls `host` and `meet`.
    """

    config: dict[str, Any]
    rank: int
    size: int
    rendezvous: str | None
    seconds: float


def loopback() -> dict[str, str]:
    """Environment variables for ranks on this host, except those that the user has set."""
    return {name: value for name, value in _LOOPBACK.items() if name not in os.environ}


P = ParamSpec("P")
R = TypeVar("R")


def forwarded(
    method: Callable[Concatenate[Any, P], R], changes_weights: bool = False
) -> Callable[Concatenate[TrainerRanks, P], R]:
    """A method of what each rank holds, as one of `TrainerRanks`: all ranks are called, the first one's value returned.

    Args:
        method: what is called.
        changes_weights: whether weights that lie in a store are old afterwards.
    """

    def call(self: TrainerRanks, /, *given: P.args, **named: P.kwargs) -> R:
        bound = signature(method).bind(self, *given, **named)
        value: R = self.call(method.__name__, *bound.args[1:])
        if changes_weights:
            self.stored = None
        return value

    update_wrapper(call, method)
    return call


class TrainerRanks:
    """Worker processes that are the ranks of one trainer: launched together, called alike, ended together.

    Args:
        launcher: starts the ranks.
        entry: the function of a rank's process, as `WorkerSpec` names it.
        config: of the run, as plain data.
        size: how many ranks there are.
        patience: seconds of silence, and without progress, after which a rank counts as dead.
        scattered: ranks may be on several hosts, the first one on this; else what they say to each other stays here.
        seats: what each rank is given to compute on; none: this host's CPU.
    """

    def __init__(
        self,
        launcher: WorkerLauncher,
        entry: str,
        config: dict[str, Any],
        size: int,
        patience: tuple[float, float],
        scattered: bool = False,
        seats: Sequence[Seat] = (),
    ) -> None:
        self._launcher = launcher
        self._entry = entry
        self._config = config
        self._size = size
        self._patience = patience
        self._scattered = scattered
        self._seats = seats or [Seat("cpu")] * size
        self._apart = scattered  # they have not met yet
        self._folder = Path()
        self._ranks: RankGroup | None = None
        self._meeting: Path | None = None
        self.stored: StoredWeights | None = None  # the present weights, where they lie in a store

    def start(self, folder: Path) -> None:
        """Launch the ranks, which then load their shards."""
        self._launcher.attach(folder)
        self._folder = folder.resolve()
        rendezvous = None
        if not self._scattered:  # ranks meet at a file: unlike a port no other process can connect to it
            self._meeting = Path(tempfile.mkdtemp(prefix="strop-ranks-"))
            rendezvous = f"file://{self._meeting}/meet"
        environment = {} if self._scattered else loopback()
        silence, stall = self._patience
        team = int(self._config.get("orchestration", {}).get("sequence_parallel", 1))
        specs = [
            WorkerSpec(
                role=f"trainer-{rank}",
                entry=self._entry,
                settings=RankSettings(self._config, rank, self._size, rendezvous, stall),
                threads=max(torch.get_num_threads() // self._size, 1),
                environment={**environment, **self._seats[rank].environment},
                gpus=self._seats[rank].gpus,
                beside_controller=rank < team,  # the first writes the weights, into memory of this host
                team=(rank % team, team),
            )
            for rank in range(self._size)
        ]
        self._ranks = RankGroup(self._launcher, specs, silence, stall, not self._scattered)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method on every rank and return the result of the first. Scattered ranks meet at the first call.

        Raises:
            StropError: see `RankGroup.call`.
        """
        if self._ranks is None:
            raise StropError("the trainer's ranks are not started")
        if self._apart:
            self._apart = False
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".seen-") as mark:
                place = self._ranks.call("host", mark.name)
            self._ranks.call("meet", place)
        return self._ranks.call(method, *arguments)

    def close(self) -> None:
        """End the ranks; may be called twice."""
        if self._ranks is not None:
            self._ranks.close()
        if self._meeting is not None:
            shutil.rmtree(self._meeting, ignore_errors=True)


class RankGroupLearner(TrainerRanks):
    """A learner over `config.orchestration.trainers` ranks, with the methods of `Learner`.

    Args:
        config: of the run.
        launcher, scattered, seats: as `TrainerRanks` has them.
        note: receives, in one line, what does not end the run.
    """

    def __init__(
        self,
        config: RunConfig,
        launcher: WorkerLauncher,
        note: Callable[[str], None],
        scattered: bool = False,
        seats: Sequence[Seat] = (),
    ) -> None:
        settings = config.orchestration
        patience = settings.silence_seconds, settings.stall_seconds
        data = config.model_dump(mode="json")
        entry = "strop.run.learners:main"
        super().__init__(launcher, entry, data, settings.trainers, patience, scattered, seats)
        self._note = note

    def close(self) -> None:
        """Wait for the current checkpoint and end the ranks; may be called twice."""
        if self._ranks is not None and self._ranks.alive and not self._apart:
            try:
                self.settle(wait=True)
            except StropError as error:
                self._note(str(error))
        super().close()

    sizes = forwarded(Learner.sizes)
    enter = forwarded(Learner.enter)
    replan = forwarded(Learner.replan)
    learn = forwarded(Learner.learn, changes_weights=True)
    probe = forwarded(Learner.probe)
    broken = forwarded(Learner.broken)
    digest = forwarded(Learner.digest)
    save = forwarded(Learner.save)
    settle = forwarded(Learner.settle)
    load = forwarded(Learner.load, changes_weights=True)
    export = forwarded(Learner.export)

    def publish(self, file: WeightFile, version: int) -> StoredWeights:
        """Have the first rank write the weights into a file.

        Raises:
            DiskFull: there is no room for them.
        """
        stored = self.call("publish", str(file.path), version)
        assert isinstance(stored, StoredWeights)
        self.stored = stored
        return stored

    def weights(self) -> Mapping[str, Tensor]:
        """All parameters, in a mapped file that may be removed after the next publication."""
        if self.stored is not None:
            return read(self.stored)
        with tempfile.TemporaryDirectory(prefix="strop-weights-") as place:
            stored = self.publish(WeightFile(Path(place, "weights.safetensors")), 0)
            found = read(stored)  # stays mapped when the file is gone
        self.stored = None
        return found


Learning: TypeAlias = Learner | RankGroupLearner
