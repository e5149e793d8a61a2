"""Fine-tuning over several ranks: processes of this host that hold the model, its gradients and its optimizer between
them, each calling the same methods of a `FineTuner`.

    tuner = TunerRanks(config, folder)      # the ranks load their shards meanwhile
    tuner.update()                          # every rank computes its share; the first one's metrics
    tuner.close()
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from strop.base.metrics import Metrics
from strop.base.seeds import derive
from strop.model.device import pick_device
from strop.orchestration.connection import ControllerConnection, WorkerSpec
from strop.orchestration.processes import Processes
from strop.orchestration.rank_group import RankGroup, serve
from strop.run.fine_tuner import FineTuner, read_data
from strop.run.rank_group_learner import loopback
from strop.run.rank_worker import agreed, meet
from strop.run.sft_config import SftConfig
from strop.training.sharding import sharded_policy

SILENCE_SECONDS, STALL_SECONDS = 60.0, 1800.0  # after which a rank that gives no sign, or makes nothing, counts as dead


@dataclass(frozen=True)
class TunerRank:
    """The settings of a rank's worker; ranks meet at a file."""

    config: dict[str, Any]
    rank: int
    rendezvous: str


class TunerRanks:
    """A `Tuner` whose work is done by `config.trainers` ranks, launched at once."""

    def __init__(self, config: SftConfig, folder: Path) -> None:
        """`folder` is the run's."""
        self._meeting = Path(tempfile.mkdtemp(prefix="strop-ranks-"))
        data = config.model_dump(mode="json")
        specs = [
            WorkerSpec(
                role=f"trainer-{rank}",
                entry="strop.run.fine_tuning_ranks:main",
                settings=TunerRank(data, rank, f"file://{self._meeting}/meet"),
                threads=max(torch.get_num_threads() // config.trainers, 1),
                environment=loopback(),
                gpus=0,
                beside_controller=rank == 0,
            )
            for rank in range(config.trainers)
        ]
        self._ranks = RankGroup(Processes(folder), specs, SILENCE_SECONDS, STALL_SECONDS)

    def total(self) -> int:
        """As `FineTuner.total`; the first call, which waits until every rank has its shards."""
        found: int = self._ranks.call("total")
        return found

    def update(self) -> Metrics:
        """As `FineTuner.update`."""
        found: Metrics = self._ranks.call("update")
        return found

    def save(self, root: Path) -> None:
        """As `FineTuner.save`, each rank its rows."""
        self._ranks.call("save", root.resolve())

    def load(self, root: Path, step: int) -> None:
        """As `FineTuner.load`."""
        self._ranks.call("load", root.resolve(), step)

    def export(self, folder: Path) -> None:
        """As `FineTuner.export`, by the first rank."""
        self._ranks.call("export", folder.resolve())

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()
        shutil.rmtree(self._meeting, ignore_errors=True)


def main(connection: ControllerConnection, settings: TunerRank) -> None:
    """A rank: meet the others, then do what the controller calls for."""
    tuner = join(SftConfig.model_validate(settings.config), settings.rank, settings.rendezvous)
    same = (tuner.total, tuner.update, tuner.save, tuner.load, tuner.export)
    serve(connection, settings.rank == 0, {method.__name__: agreed(method) for method in same})


def join(config: SftConfig, rank: int, rendezvous: str) -> FineTuner:
    """The tuner of a rank, once all have met."""
    data = read_data(config)
    place, ranks, storage = meet(pick_device(config.device), rank, config.trainers, rendezvous, STALL_SECONDS)
    policy = sharded_policy(config.model, derive(config.seed, "model"), place)
    return FineTuner(policy, data, config, storage, ranks)
