"""The learner whose modules are sharded over processes of their own: what the run sees of them.

Every rank is told the same and computes its share (`sharded_learner`); the first one answers, the others say a digest.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from strop.base.types import FloatArray, Group, IntArray, StropError
from strop.config.schema import RunConfig
from strop.orchestration.connection import Launcher, WorkerSpec
from strop.orchestration.messages import StoredWeights
from strop.orchestration.rank_group import RankGroup
from strop.orchestration.weight_store import WeightStore, read
from strop.run.devices import Seat
from strop.training import checkpoint
from strop.training.dcp_file import Groups
from strop.training.result import TrainResult
from strop.training.settings import LearnerSettings

# One host: exchanges stay on the loopback device unless the user has said otherwise.
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class RankSettings:
    """What a rank's worker is told: the run's configuration as plain data, and the arguments of `join`.

    `rendezvous` None: where they meet is told later, by the calls `host` and `meet`.
    """

    config: dict[str, Any]
    rank: int
    size: int
    rendezvous: str | None
    seconds: float


@dataclass(frozen=True)
class Facts:
    """What a rank says: parameters of the policy, and devices of all ranks."""

    parameters: int
    computing_parameters: int
    devices: int


class RankGroupLearner:
    """A `Learning` over `config.orchestration.trainers` ranks.

    Args:
        config: of the run.
        launcher: starts the ranks.
        threads: of each rank, for computing on a CPU.
        note: is told, in one line, what does not end the run.
        scattered: ranks may be on several hosts, the first one on this; else what they say to each other stays here.
        seats: what each rank is given to compute on; none: this host's CPU.
    """

    def __init__(
        self,
        config: RunConfig,
        launcher: Launcher,
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
        self._facts: Facts | None = None
        self._meeting: Path | None = None
        self._stored: StoredWeights | None = None  # the present weights, where they lie in a store

    # ------------------------------------------------------------------ the ranks

    def start(self, folder: Path) -> None:
        """Launch the ranks, which load their shards meanwhile."""
        self._launcher.attach(folder)
        self._folder = folder.resolve()
        rendezvous = None
        if not self._scattered:  # ranks meet at a file: unlike a port it listens to nobody
            self._meeting = Path(tempfile.mkdtemp(prefix="strop-ranks-"))
            rendezvous = f"file://{self._meeting}/meet"
        orchestration = self._config.orchestration
        data = self._config.model_dump(mode="json")
        unsaid = {name: value for name, value in _LOOPBACK.items() if name not in os.environ}
        environment = {} if self._scattered else unsaid
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

    def _call(self, method: str, *arguments: Any) -> Any:
        if self._ranks is None:
            raise StropError("the trainer's ranks are not started")
        if self._apart:
            self._apart = False
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".seen-") as mark:
                place = self._ranks.call("host", mark.name)
            self._ranks.call("meet", place)
        return self._ranks.call(method, *arguments)

    @property
    def facts(self) -> Facts:
        """What the ranks said of the model they hold; waits until they have loaded it."""
        if self._facts is None:
            self._facts = self._call("facts")
        return self._facts

    @property
    def parameters(self) -> int:
        """How many parameters the policy has."""
        return self.facts.parameters

    @property
    def computing_parameters(self) -> int:
        """How many of them a token is multiplied with."""
        return self.facts.computing_parameters

    @property
    def devices(self) -> int:
        """GPUs, or cores on a machine without, of all ranks together."""
        return self.facts.devices

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
            shutil.rmtree(self._meeting, ignore_errors=True)  # nobody meets there any more

    # ------------------------------------------------------------------ training

    def enter(self, settings: LearnerSettings, updates: int) -> None:
        """Go on with the settings of a new stage."""
        self._call("enter", settings.model_dump(mode="json"), updates)

    def replan(self, updates_left: int, steps_left: int) -> None:
        """After `load` with another configuration."""
        self._call("replan", updates_left, steps_left)

    def learn(
        self, groups: Sequence[Group], survivors: Collection[int], step: int, states: Mapping[str, Mapping[str, Any]]
    ) -> TrainResult | None:
        """Train on a batch."""
        self._stored = None
        result = self._call("learn", list(groups), set(survivors), step, dict(states))
        assert result is None or isinstance(result, TrainResult)
        return result

    def probe(self, token_ids: IntArray) -> FloatArray:
        """The policy's log-probs of a probe."""
        found: FloatArray = self._call("probe", token_ids)
        return found

    def broken(self) -> str | None:
        """The name of a parameter that is not finite; None where all are."""
        name = self._call("broken")
        assert name is None or isinstance(name, str)
        return name

    # ------------------------------------------------------------------ weights

    def publish(self, store: WeightStore, version: int) -> StoredWeights:
        """Have the first rank write the weights as `version` of a store.

        Raises:
            DiskFull: there is no room for them.
        """
        stored = self._call("publish", str(store.root.resolve()), version)
        assert isinstance(stored, StoredWeights)
        self._stored = stored
        return stored

    def weights(self) -> Mapping[str, Tensor]:
        """Every parameter whole, in a mapped file; it may be gone after the next publication."""
        if self._stored is not None:
            return read(self._stored)
        with tempfile.TemporaryDirectory(prefix="strop-weights-") as place:
            found = read(self.publish(WeightStore(Path(place)), 0))  # stays mapped when the file is gone
        self._stored = None
        return found

    # ------------------------------------------------------------------ the disk

    def save(self, entry: checkpoint.Entry, extra: Groups) -> None:
        """Begin a checkpoint."""
        self._call("save", replace(entry, root=entry.root.resolve()), extra)

    def settle(self, wait: bool) -> bool:
        """Whether no save is under way."""
        return bool(self._call("settle", wait))

    def load(self, root: Path, step: int) -> None:
        """Take back a checkpoint."""
        self._stored = None
        self._call("load", root.resolve(), step)

    def export(self, tokenizer: PreTrainedTokenizerBase, model: Path, critic: Path) -> None:
        """Have the first rank write the policy, and the critic where there is one."""
        self._call("export", tokenizer, model.resolve(), critic.resolve())
