"""The lower bound of the step time for the completions of a simulation, with given costs and lag."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from strop.lab.planning.costs import Costs, Setup
from strop.lab.planning.simulate import Simulation


@dataclass(frozen=True)
class Bound:
    """A lower bound of the mean step time, with its parts.

    Attributes:
        seconds: the bound.
        trainer: seconds of update, publication and recording, one after the other.
        generation: seconds that the generators need for a step's tokens with as many sequences at once as there can be.
        longest: mean seconds of the longest completion of a step, with nothing else in its generator.
        limit: the part that sets the bound; `longest` with more than one version counts 1 / (k + 1) of it.
    """

    seconds: float
    trainer: float
    generation: float
    longest: float
    limit: Literal["trainer", "generation", "longest"]


def settled_bound(plan: Simulation, costs: Costs) -> Bound:
    """The lower bound for the completions of a simulation, over its settled steps; their mean is never below it.

    With lag k, P prompts a step, G samples a prompt, N generators, decode costs a, b, c, and means over settled steps:

        U = update + publication + recording: the trainer and the controller do them in turn
        n = min(slots, ⌈(k + 1)·P·G / N⌉), the most sequences that a generator can share a decode step among
        C = (tokens of a step)·(a / n + b) / N + c·(contexts of all its decode steps) / N
        D = (length of the longest completion of a step)·(a + b) + verdict

        k = 0:  T ≥ max(C, D) + U                    generation and training take turns
        k ≥ 1:  T ≥ max(U, C, (D + U) / (k + 1))     colocated: T ≥ max(C + U, (D + U) / (k + 1))

    The last: groups admitted under version v must be trained by the step that makes version v + k + 1, so that each
    k + 1 steps in a row hold the longest completion of a step whole, and the update that it is trained in. Here it is
    Σ (D + U) over the steps at least k + 1 apart that have the most. It assumes the gate as it is, which admits P
    groups a version as soon as it may.
    """
    settled = plan.settled_steps
    count = settled.stop - settled.start
    before = plan.generation[settled.start - 1].most if settled.start else 0.0
    generation = max(plan.generation[settled.stop - 1].least - before, 0.0) / (plan.setup.generators * count)
    training = np.array(plan.training[settled])
    longest = np.array(plan.longest[settled]) * (costs.decode_step + costs.decode_sequence) + costs.verdict
    apart = plan.setup.max_lag + 1
    most = [0.0] * apart  # of what lies before a step, with `apart` steps that hold nothing before the first
    for seconds in (longest + training).tolist()[apart - 1 :]:
        most.append(max(most[-1], most[-apart] + seconds))
    return _combine(plan.setup, float(training.mean()), generation, float(longest.mean()), most[-1] / count)


def _combine(setup: Setup, trainer: float, generation: float, longest: float, spread: float) -> Bound:
    alternating = setup.max_lag == 0 or setup.colocated
    busy = generation + trainer if alternating else max(generation, trainer)
    seconds = max(busy, spread)
    if spread >= busy:
        limit: Literal["trainer", "generation", "longest"] = "longest"
    else:
        limit = "generation" if generation >= trainer else "trainer"
    return Bound(seconds, trainer, generation, longest, limit)


def plan_values(plan: Simulation, costs: Costs) -> dict[str, Any]:
    """A simulation with its bound, as plain values."""
    bound = settled_bound(plan, costs)
    updates = plan.setup.updates_per_step * plan.setup.passes_per_batch
    return {
        "name": plan.setup.name,
        "setup": asdict(plan.setup),
        "seconds_per_update": plan.update_seconds,
        "bound_seconds_per_update": bound.seconds / updates,
        "bound_by": bound.limit,
        "step_seconds": {
            "mean": plan.mean, "p50": plan.quantile(0.5), "p95": plan.quantile(0.95), "total": plan.total,
        },
        "trainer_idle": plan.trainer_idle,
        "generators_idle": plan.generators_idle,
        "running_sequences": plan.running,
        "tokens_per_second": plan.tokens_per_second,
        "mean_lag": plan.mean_lag,
        "updates_behind": plan.updates_behind,
        "max_lag": plan.max_lag,
    }  # fmt: skip
