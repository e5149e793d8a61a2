"""Lower bounds of the step time for given costs and lag: expected, or for the completions of a simulation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from strop.lab.planning.costs import Costs, Lengths, Setup
from strop.lab.planning.simulate import Simulation

DRAWS = 2000


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


def pipeline_bound(setup: Setup, costs: Costs, lengths: Lengths, draws: int = DRAWS, seed: int = 0) -> Bound:
    """A lower bound of the mean seconds of a training step, for given costs and lag k = `setup.max_lag`.

    With P prompts a step, G samples a prompt, N generators, decode costs a, b, c, and means over groups that are kept:

        U = update + publication + recording of a mean step: the trainer and the controller do them in turn
        n = min(slots, ⌈(k + 1)·P·G / N⌉), the most sequences that a generator can share a decode step among
        C = (tokens of a step)·(a / n + b) / N + c·(contexts of all its decode steps) / N
        D = E[max over the P·G completions of a step of length·(a + b)] + verdict

        k = 0:  T ≥ max(C, D) + U                    generation and training take turns
        k ≥ 1:  T ≥ max(U, C, (D + U) / (k + 1))     colocated: T ≥ max(C + U, (D + U) / (k + 1))

    The last: groups admitted under version v must be trained by the step that makes version v + k + 1, so that each
    k + 1 steps in a row hold the longest completion of a step whole, and the update that it is trained in. It assumes
    the gate as it is, which admits P groups a version as soon as it may. D and the tokens are means over `draws` groups
    drawn from `lengths`: a bound of the mean step, not of each.
    """
    rng = np.random.default_rng([seed, 1])
    groups = [lengths.draw(rng, setup.samples_per_prompt) for _ in range(max(draws, setup.prompts_per_step))]
    kept = setup.prompts_per_step * (1.0 if setup.refill else 1 - setup.drop)
    generated = setup.prompts_per_step / (1 - setup.drop) if setup.refill else float(setup.prompts_per_step)
    tokens = float(np.mean([group.sum() for group in groups]))
    contexts = float(np.mean([_contexts(group, setup.prompt_tokens) for group in groups]))
    trained = float(np.mean([sum(setup.trained(length) for length in group.tolist()) for group in groups]))
    trainer = _trainer_seconds(setup, costs, kept * trained, kept * tokens)
    each = costs.decode_step / setup.at_once + costs.decode_sequence
    work = tokens * each + contexts * costs.decode_context + setup.samples_per_prompt * costs.start_sequence
    generation = generated * work / setup.generators
    step = [max(group.max() for group in part) for part in _parts(groups, setup.prompts_per_step)]
    longest = float(np.mean(step)) * (costs.decode_step + costs.decode_sequence) + costs.verdict
    return _combine(setup, trainer, generation, longest, (longest + trainer) / (setup.max_lag + 1))


def settled_bound(plan: Simulation, costs: Costs) -> Bound:
    """The lower bound for the completions of a simulation, over its settled steps; their mean is never below it.

    Other drawn completions would have another mean, which may lie above the simulated time. U, C and D are
    those of the settled steps, and the last term is Σ (D + U) over the steps at least k + 1 apart that have the most.
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


def _contexts(group: NDArray[np.int64], prompt: float) -> float:
    """Context tokens read by all decode steps of a group: prompt, prompt + 1, … of each sequence."""
    return float((group * prompt + group * (group - 1) / 2).sum())


def _trainer_seconds(setup: Setup, costs: Costs, trained: float, generated: float) -> float:
    """U, for a step of so many tokens."""
    updates = setup.updates_per_step * setup.passes_per_batch
    updating = costs.updating(trained * setup.passes_per_batch, updates, setup.trainers)
    return updating + costs.publish + costs.recording(generated)


def _parts(groups: list[NDArray[np.int64]], size: int) -> list[list[NDArray[np.int64]]]:
    """Whole steps' worth of groups."""
    return [groups[at : at + size] for at in range(0, len(groups) - size + 1, size)]


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
