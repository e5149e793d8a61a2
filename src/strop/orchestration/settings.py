"""Settings of orchestration: who generates, how stale it may be, and the Ray cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from strop.base.pieces import Settings
from strop.engines.protocol import KvMode

Count = Annotated[int, Field(ge=1)]
OnStale = Literal["wait", "drop"]
WindowMode = Literal["adaptive", "full"]


class RaySettings(Settings):
    """Which Ray cluster, and what a worker needs of it.

    Fields:
        address: HOST:PORT of a running cluster; none takes RAY_ADDRESS, and where that is not set either, a cluster is
            started on this machine, on the loopback device only, and ended with the run.
        cpus: that each worker reserves; a GPU besides, where the run is on GPUs.
        placement_seconds: how long a worker may wait for a place in the cluster.
        train_in_cluster: with `orchestration.trainers` above 1 its ranks are actors as well, the first one on the
            driver's node, the others wherever there is room; all nodes must see the run's folder.
    """

    address: str | None = None
    cpus: Annotated[float, Field(gt=0)] = 1.0
    placement_seconds: Annotated[float, Field(gt=0)] = 120.0
    train_in_cluster: bool = False


class OrchestrationSettings(Settings):
    """Who generates, how stale it may become (`lag_gate`), and what is done about generators that fail.

    Fields:
        max_lag: k; versions that may lie between the start of a group and its training.
        window: how far generators run ahead of the trainer. `adaptive` as far as keeps it from waiting, at most k + 1
            steps' worth of groups; `full` always so far. With completions of nearly equal length `adaptive` comes to a
            lag of about one whatever k is, so runs that compare values of k need `full`. In one process, where both
            take turns, it is always full.
        on_stale: a step waits for groups that would otherwise become too old, or drops them.
        executor: `in_process` generates in turn with training, on the trainer's own parameters; `embedded` in worker
            processes next to it; `ray` in actors of a Ray cluster. `auto` is the first at max_lag = 0 with a generator
            and one trainer, the second otherwise.
        ray: the cluster of `executor=ray`.
        generators: workers that generate, each with `engine.slots`.
        trainers: ranks that the trainer's modules are sharded over, each a process with its own GPU where there
            are GPUs; 1 trains in this process.
        sequence_parallel: ranks that share the tokens of each micro-batch (Ulysses); a divisor of `trainers`.
        trainer_restarts: how often a run whose ranks were lost goes on from its last checkpoint.
        weights: how they get to workers that generate: `files` in the run's folder, or `shared_memory`, which `auto`
            takes too: files in memory, and in the run's folder where memory has no room.
        kv: whether the cached keys and values of running completions are kept when weights change.
        restarts: deaths of generators that a run survives, and as many of its evaluator.
        silence_seconds: a worker of which nothing was heard for so long is killed and counts as dead.
        stall_seconds: so does one that lives but makes nothing for so long: no token, no micro-batch; loading a model
            must fit into it.
        watchdog_seconds: a run in which nothing is made for so long (no tokens, verdict, micro-batch or publication)
            is ended with the stacks of its processes; none never ends one.
    """

    max_lag: Annotated[int, Field(ge=0)] = 0
    window: WindowMode = "adaptive"
    on_stale: OnStale = "wait"
    executor: Literal["auto", "in_process", "embedded", "ray"] = "auto"
    ray: RaySettings = RaySettings()
    generators: Count = 1
    trainers: Count = 1
    sequence_parallel: Count = 1
    trainer_restarts: Annotated[int, Field(ge=0)] = 3
    weights: Literal["auto", "shared_memory", "files"] = "auto"
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
        """Whether the window follows the trainer's waiting. In process the clock shall not decide what is trained."""
        return self.window == "adaptive" and not self.in_process
