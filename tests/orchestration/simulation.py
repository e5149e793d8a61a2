"""The real loop over a real fleet of processes whose engines only pretend to compute."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from bench.simulated import SimulatedLearner, Simulation
from tests.orchestration.faulty import Fault
from tests.runs import small_config
from tests.watching import Notes

from strop.config.schema import RunConfig
from strop.data.dataset import Dataset
from strop.data.loading import load_data
from strop.model.files import byte_tokenizer
from strop.orchestration.executor import ProbeCheck
from strop.orchestration.fleet import Fleet
from strop.orchestration.messages import StoredWeights
from strop.orchestration.processes import Processes
from strop.orchestration.weight_store import WeightFile, WeightStore
from strop.orchestration.workers import Supervision, WorkerLauncher, WorkerSpec
from strop.run.loop import Loop, StepRecord
from strop.verifiers.protocol import InlineJudge, Judge

SETS = (
    "steps=6", "orchestration.executor=embedded", "algorithm.selection.zero_variance=keep", "evaluation.every=none",
    "sampling.max_new_tokens=400", "verifier.extract=last_number",
)  # fmt: skip
PROMPTS, SAMPLES = 6, 4  # of `small_config`


@lru_cache
def problems() -> Dataset:
    """Those of the small runs."""
    return load_data(small_config().data, byte_tokenizer()).train


@dataclass
class Made:
    """A loop with its parts; `run` trains it to its end."""

    config: RunConfig
    folder: Path
    fleet: Fleet
    learner: SimulatedLearner
    notes: Notes
    loop: Loop
    simulation: Simulation
    records: list[StepRecord] = field(default_factory=list)

    def run(self) -> Made:
        """Start, train every step, close."""
        try:
            self.fleet.start(self.folder)
            self.loop.reopen()
            while self.loop.step < self.config.steps:
                record = self.loop.next_step()
                assert record is not None
                self.records.append(record)
        finally:
            self.fleet.close()
        return self

    def kill_all_before(self, step: int) -> None:
        """Have all generators killed at once before a step's update."""

        def kill(now: int) -> None:
            if now == step:
                for generator in self.fleet.generators:
                    assert generator.worker.pid is not None
                    os.kill(generator.worker.pid, signal.SIGKILL)

        self.learner.before = kill

    @property
    def replaced(self) -> list[int]:
        """How often each generator was replaced by another worker."""
        return [generator.life for generator in self.fleet.generators]

    def column(self, name: str) -> list[Any]:
        """A metric by step."""
        return [record.metrics[name] for record in self.records]

    @property
    def largest_lag(self) -> float:
        """Of all trained tokens."""
        return max(self.column("lag/max"))


def beside(lag: int) -> tuple[str, ...]:
    """Settings of a run long enough for groups to become `lag` versions old."""
    return (f"orchestration.max_lag={lag}", f"steps={lag + 6}")


def made(
    folder: Path,
    *sets: str,
    simulation: Simulation | None = None,
    fault: str | None = None,
    after: int = 2,
    supervision: Supervision | None = None,
    judge: Judge | None = None,
    update: float = 0.0,
    generators: int = 2,
    source: Callable[..., Any] | None = None,
    launcher: WorkerLauncher | None = None,
) -> Made:
    """A run of `sets` with simulated generators, which meet `fault`."""
    config = small_config(*SETS, *sets)
    simulation = simulation or Simulation()
    learner, notes = SimulatedLearner(update), Notes()
    folder.mkdir(parents=True, exist_ok=True)
    settings: Any = simulation
    entry = "bench.simulated:main"
    if fault is not None:
        settings = Fault(simulation, fault, str(folder / "struck"), after)
        entry = "tests.orchestration.faulty:main"

    def stored(file: WeightFile, version: int) -> StoredWeights:
        return file.write(version, learner.weights())

    fleet = Fleet(
        launcher=launcher or Processes(),
        specs=[WorkerSpec(f"generator-{number}", entry, settings) for number in range(generators)],
        source=source or stored,
        store=WeightStore(1 << 16, notes.note),
        supervision=supervision or Supervision(),
        note=notes.note,
        check=ProbeCheck(),
        kv=config.orchestration.kv,
    )
    judge = judge or InlineJudge(config.verifier)
    loop = Loop(config, problems(), fleet, judge, learner, notes)  # type: ignore[arg-type]
    return Made(config, folder, fleet, learner, notes, loop, simulation)
