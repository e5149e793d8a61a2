"""Settings of orchestration: generators, staleness, supervision of workers, and the Ray cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from strop.base.pieces import Settings
from strop.engines.protocol import KvMode

Count = Annotated[int, Field(ge=1)]
WindowMode = Literal["adaptive", "full"]


class RaySettings(Settings):
    """The resources of a worker on the Ray cluster that the variable RAY_ADDRESS names (HOST:PORT).

    Fields:
        cpus: processors that each worker reserves; on GPUs it reserves a GPU too.
        placement_seconds: how long a worker may wait for a place in the cluster.
        train_in_cluster: with `orchestration.trainers` above 1 its ranks are actors as well, the first one on the
            driver's node, the others wherever there is room; all nodes must see the run's folder.
    """

    cpus: Annotated[float, Field(gt=0)] = 1.0
    placement_seconds: Annotated[float, Field(gt=0)] = 120.0
    train_in_cluster: bool = False


class OrchestrationSettings(Settings):
    """Generators, how stale their samples may become (`lag_gate`), and when workers that fail are replaced.

    Fields:
        max_lag: k, the most versions between the start of a group and its training.
        window: how far generators run ahead of the trainer. `adaptive`: only as far as keeps the trainer from waiting,
            at most k + 1 steps' worth of groups. `full`: always k + 1. With completions of nearly equal length
            `adaptive` gives a lag of about one for every k, so runs that compare values of k need `full`. In one
            process, where both take turns, the window is always full.
        executor: `in_process` generates in turn with training, on the trainer's own parameters; `embedded` in worker
            processes next to it; `ray` in actors of a Ray cluster. `auto` is the first at max_lag = 0 with a generator
            and one trainer, the second otherwise.
        ray: the cluster of `executor=ray`.
        generators: workers that generate, each with `engine.slots`.
        trainers: ranks that the trainer's modules are sharded over, each a process with its own GPU where there
            are GPUs; 1 trains in this process.
        sequence_parallel: ranks that share the tokens of each micro-batch (Ulysses); a divisor of `trainers`.
        trainer_restarts: how often a run continues from its last checkpoint after ranks were lost.
        kv: whether the cached keys and values of running completions are kept when weights change.
        restarts: how many deaths of generators a run survives, and how many of its evaluator.
        silence_seconds: a worker that sends nothing for so long is killed.
        stall_seconds: a worker that makes nothing for so long (no token, no micro-batch) is killed; loading a model
            must fit into this time.
        watchdog_seconds: a run in which nothing is made for so long (no token, verdict, micro-batch or publication)
            is ended, and the stacks of its processes are written; none switches this off.
    """

    max_lag: Annotated[int, Field(ge=0)] = 0
    window: WindowMode = "adaptive"
    executor: Literal["auto", "in_process", "embedded", "ray"] = "auto"
    ray: RaySettings = RaySettings()
    generators: Count = 1
    trainers: Count = 1
    sequence_parallel: Count = 1
    trainer_restarts: Annotated[int, Field(ge=0)] = 3
    kv: KvMode = "keep"
    restarts: Annotated[int, Field(ge=0)] = 10
    silence_seconds: Annotated[float, Field(ge=5)] = 60.0
    stall_seconds: Annotated[float, Field(ge=5)] = 900.0
    watchdog_seconds: Annotated[float, Field(gt=0)] | None = 1800.0

    @property
    def in_process(self) -> bool:
        """Whether the trainer's process generates too."""
        single = self.max_lag == 0 and self.generators == 1 and self.trainers == 1
        return self.executor == "in_process" or (self.executor == "auto" and single)

    @property
    def adapts_window(self) -> bool:
        """Whether the window follows the trainer's waiting. In one process the clock decides nothing."""
        return self.window == "adaptive" and not self.in_process
