"""The learner whose modules are sharded over processes of their own: what the run sees of them.

Every rank is called with the same arguments and computes its share (`rank_worker`); the first one answers, and a digest
of what the others have come to is compared with it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from inspect import signature
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from strop.base.types import StropError
from strop.config.schema import RunConfig
from strop.orchestration.connection import WorkerLauncher, WorkerSpec
from strop.orchestration.messages import StoredWeights
from strop.orchestration.rank_group import RankGroup
from strop.orchestration.weight_store import WeightStore, read
from strop.run.devices import Seat
from strop.training.learner import Learner

# One host: exchanges stay on the loopback device unless the user has said otherwise.
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
    """The environment of ranks that are all on this host, as far as the user has not said otherwise."""
    return {name: value for name, value in _LOOPBACK.items() if name not in os.environ}


P = ParamSpec("P")
R = TypeVar("R")


def forwarded(
    method: Callable[Concatenate[Learner, P], R], changes_weights: bool = False
) -> Callable[Concatenate[RankGroupLearner, P], R]:
    """A method of `Learner` as one of `RankGroupLearner`: every rank is called with it, the first one's value returned.

    Args:
        method: what is called.
        changes_weights: whether weights that lie in a store are old afterwards.
    """

    def call(self: RankGroupLearner, /, *given: P.args, **named: P.kwargs) -> R:
        bound = signature(method).bind(self, *given, **named)
        value: R = self.call(method.__name__, *bound.args[1:])
        if changes_weights:
            self.stored = None
        return value

    update_wrapper(call, method)
    return call


class RankGroupLearner:
    """A `Learning` over `config.orchestration.trainers` ranks.

    Args:
        config: of the run.
        launcher: starts the ranks.
        threads: of each rank, for computing on a CPU.
        note: receives, in one line, what does not end the run.
        scattered: ranks may be on several hosts, the first one on this; else what they say to each other stays here.
        seats: what each rank is given to compute on; none: this host's CPU.
    """

    def __init__(
        self,
        config: RunConfig,
        launcher: WorkerLauncher,
        threads: int,
        note: Callable[[str], None],
        scattered: bool = False,
        seats: Sequence[Seat] = (),
    ) -> None:
        self._config = config
        self._launcher = launcher
        self._threads = threads
        self._note = note
        self._scattered = scattered
        self._seats = seats or [Seat("cpu")] * config.orchestration.trainers
        self._apart = scattered  # they have not met yet
        self._folder = Path()
        self._ranks: RankGroup | None = None
        self._meeting: Path | None = None
        self.stored: StoredWeights | None = None  # the present weights, where they lie in a store

    # ------------------------------------------------------------------ the ranks

    def start(self, folder: Path) -> None:
        """Launch the ranks, which load their shards meanwhile."""
        self._launcher.attach(folder)
        self._folder = folder.resolve()
        rendezvous = None
        if not self._scattered:  # ranks meet at a file: unlike a port no other process can connect to it
            self._meeting = Path(tempfile.mkdtemp(prefix="strop-ranks-"))
            rendezvous = f"file://{self._meeting}/meet"
        orchestration = self._config.orchestration
        data = self._config.model_dump(mode="json")
        environment = {} if self._scattered else loopback()
        specs = [
            WorkerSpec(
                role=f"trainer-{rank}",
                entry="strop.run.rank_worker:main",
                settings=RankSettings(data, rank, orchestration.trainers, rendezvous, orchestration.stall_seconds),
                threads=self._threads,
                environment={**environment, **self._seats[rank].environment},
                gpus=self._seats[rank].gpus,
                beside_controller=rank == 0,  # it writes the weights, into memory of this host
            )
            for rank in range(orchestration.trainers)
        ]
        self._ranks = RankGroup(self._launcher, specs, orchestration.silence_seconds, orchestration.stall_seconds)

    def call(self, method: str, *arguments: Any) -> Any:
        """Have every rank do it; what the first one answers. Scattered ranks meet at the first call.

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
        """End the ranks, once they have written what they were writing; may be called twice."""
        if self._ranks is not None and self._ranks.alive:
            try:
                if not self._apart:
                    self.settle(wait=True)
            except StropError as error:
                self._note(str(error))
            self._ranks.close()
        if self._meeting is not None:
            shutil.rmtree(self._meeting, ignore_errors=True)

    # ------------------------------------------------------------------ what every rank does

    sizes = forwarded(Learner.sizes)
    enter = forwarded(Learner.enter)
    replan = forwarded(Learner.replan)
    learn = forwarded(Learner.learn, changes_weights=True)
    probe = forwarded(Learner.probe)
    broken = forwarded(Learner.broken)
    save = forwarded(Learner.save)
    settle = forwarded(Learner.settle)
    load = forwarded(Learner.load, changes_weights=True)
    export = forwarded(Learner.export)

    def publish(self, store: WeightStore, version: int) -> StoredWeights:
        """Have the first rank write the weights as `version` of a store.

        Raises:
            DiskFull: there is no room for them.
        """
        stored = self.call("publish", str(store.root.resolve()), version)
        assert isinstance(stored, StoredWeights)
        self.stored = stored
        return stored

    def weights(self) -> Mapping[str, Tensor]:
        """Every parameter whole, in a mapped file; it may be gone after the next publication."""
        if self.stored is not None:
            return read(self.stored)
        with tempfile.TemporaryDirectory(prefix="strop-weights-") as place:
            found = read(self.publish(WeightStore(Path(place)), 0))  # stays mapped when the file is gone
        self.stored = None
        return found
