"""The best split of devices between generators and trainers, and alternatives beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from strop.base.types import InputError
from strop.lab.planning.bound import pipeline_bound
from strop.lab.planning.costs import Costs
from strop.lab.planning.lengths import Lengths
from strop.lab.planning.setup import Setup
from strop.lab.planning.simulate import Simulation, simulate

COARSE = 12
BOUND_DRAWS = 400
SEARCH_STEPS = 12  # settled ones, beside those that fill and drain the pipeline
Split = tuple[int, int]  # generators, trainers


def splits(devices: int, devices_per_generator: int) -> list[Split]:
    """Every (generators, trainers) that uses all of `devices`.

    Raises:
        InputError: there are too few devices for one generator and one trainer.
    """
    most = (devices - 1) // devices_per_generator
    if most < 1:
        raise InputError(
            f"{devices} devices are too few for a generator of {devices_per_generator} and a trainer; give more devices"
        )
    return [(count, devices - count * devices_per_generator) for count in range(1, most + 1)]


def best_split(
    setup: Setup,
    costs: Costs,
    lengths: Lengths,
    devices: int,
    steps: int,
    seed: int = 0,
    progress: Callable[[str], None] = lambda what: None,
) -> Simulation:
    """The split of `devices` with the least simulated seconds per update.

    A coarse grid of splits is tried on few steps, then those between the neighbours of its best; a split whose bound
    already is worse than what was found is not simulated. The best is simulated for all `steps`.

    Raises:
        InputError: too few devices.
    """
    found: dict[Split, Simulation] = {}
    every = splits(devices, setup.devices_per_generator)
    few = min(steps, max(SEARCH_STEPS // setup.updates_per_step, 3) + 2 * setup.max_lag)

    def try_all(candidates: Sequence[Split]) -> None:
        chosen = [_with(setup, split) for split in candidates if split not in found]
        bounds = {id(each): pipeline_bound(each, costs, lengths, BOUND_DRAWS, seed).seconds for each in chosen}
        for each in sorted(chosen, key=lambda each: bounds[id(each)]):
            updates = each.updates_per_step * each.passes_per_batch
            best = min((result.update_seconds for result in found.values()), default=float("inf"))
            if bounds[id(each)] / updates < best:
                progress(f"{each.name}: {each.generators} generators, {each.trainers} trainers")
                found[(each.generators, each.trainers)] = simulate(each, costs, lengths, few, seed)

    stride = max(1, len(every) // COARSE)
    try_all([*every[::stride], every[-1]])
    while stride > 1:
        at = every.index(_best(found))
        stride = max(1, stride // 2)
        try_all([every[place] for place in (at - stride, at + stride) if 0 <= place < len(every)])
    return simulate(_with(setup, _best(found)), costs, lengths, steps, seed)


def _with(setup: Setup, split: Split) -> Setup:
    return replace(setup, generators=split[0], trainers=split[1], colocated=False)


def _best(found: dict[Split, Simulation]) -> Split:
    return min(found, key=lambda split: (found[split].update_seconds, split[1]))


def alternatives(setup: Setup, lags: Sequence[int]) -> list[Setup]:
    """For each k PipelineRL-k (k = 0: synchronous), and for k ≥ 2 PPO-off-policy-k beside it."""
    found: list[Setup] = []
    for k in lags:
        found.append(setup.pipeline(k))
        if k >= 2:
            found.append(setup.alternating(k))
    return found
