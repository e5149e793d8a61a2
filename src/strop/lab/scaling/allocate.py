"""How many samples per prompt a budget is best spent on (IsoCompute, arXiv 2603.12151).

Runs that differ only in n, the samples per prompt, each get their curve of pass rate against compute. At a budget C the
best n is that of the highest curve, a mean over seeds; the paper finds that it rises with C and then saturates. Steps
are what is left of the budget, and prompts per step matter little within a moderate range. Nothing here extrapolates: a
curve counts up to its last point. The samples are of the noise of evaluations and, where an n has several runs, of the
scatter of seeds, pooled over all n. Without it a best n is that of these runs only. Shapes: N numbers of samples, S
bootstrap samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strop.base.types import InputError
from strop.lab.scaling.curves import Curve
from strop.lab.scaling.fitting import Fit, FitSettings, fit

Array = NDArray[np.float64]
BUDGETS = 9
SURE = 0.9  # the share of bootstrap samples in which an n must be the best


@dataclass(frozen=True)
class Best:
    """The best n at a budget, its pass rate, the share of samples in which it is the best, and the n best most often
    in the others."""

    compute: float
    n: int
    pass_rate: float
    sure: float
    next_best: int | None


@dataclass(frozen=True, eq=False)
class Allocation:
    """What is best at each budget, in rising order, and what can be said of the whole."""

    fits: Mapping[int, Sequence[Fit]]
    best: Sequence[Best]
    verdict: str


def allocate(
    recipes: Mapping[str, Sequence[Curve]], settings: FitSettings, budgets: Sequence[float] = ()
) -> Allocation:
    """The best n at each budget; by default at nine, from where every curve has begun to where only one goes on.

    Raises:
        InputError: a name is no whole number, fewer than two numbers have a curve that could be fitted, or no two
            reach a budget.
    """
    fits: dict[int, list[Fit]] = {}
    seeds = itertools.count(settings.seed)
    for name, curves in recipes.items():
        if not name.isdecimal() or int(name) < 1:
            raise InputError(f"{name}: name each run by its samples per prompt, such as 8=runs/eight")
        # Samples of two curves are compared: the same noise drawn for both would hide most of it.
        fits[int(name)] = [fit(curve, settings.model_copy(update={"seed": next(seeds)})) for curve in curves]
    fits = dict(sorted(fits.items()))
    accepted = {n: [each for each in found if each.sigmoid is not None] for n, found in fits.items()}
    accepted = {n: found for n, found in accepted.items() if found}
    if len(accepted) < 2:
        refused = "; ".join(f"{n}: {each.refused}" for n, found in fits.items() for each in found if each.refused)
        raise InputError(f"two curves at least must support a fit ({refused})")
    ends = sorted(max(each.used.compute[-1] for each in found) for found in accepted.values())
    start = max(min(each.used.compute[0] for each in found) for found in accepted.values())
    grid = list(budgets) or [float(c) for c in np.geomspace(min(start, ends[-2]), ends[-2], BUDGETS)]
    random = np.random.default_rng(settings.seed)
    best = [_best(accepted, compute, random) for compute in grid]
    return Allocation(fits, best, _verdict(list(accepted), best))


def _best(accepted: Mapping[int, Sequence[Fit]], compute: float, random: np.random.Generator) -> Best:
    """The best of the numbers whose curves reach this budget."""
    at_budget = {n: [each for each in found if each.used.compute[-1] >= compute] for n, found in accepted.items()}
    reach = [n for n, found in at_budget.items() if found]
    if len(reach) < 2:
        raise InputError(f"--budget {compute:g}: fewer than two curves reach it, and none is extrapolated")
    runs = [np.array([float(each.accepted().value(compute)) for each in at_budget[n]]) for n in reach]
    rates = np.array([values.mean() for values in runs])
    drawn = np.column_stack([np.mean([e.sampled(compute)[:, 0] for e in at_budget[n]], axis=0) for n in reach])
    drawn += _of_seeds(runs, len(drawn), random)
    wins = np.bincount(drawn.argmax(1), minlength=len(reach)) / len(drawn)
    first = int(rates.argmax())
    others = np.where(np.arange(len(reach)) == first, -1.0, wins)
    second = reach[int(others.argmax())] if others.max() > 0 else None
    return Best(compute, reach[first], float(rates[first]), float(wins[first]), second)


def _of_seeds(runs: Sequence[Array], samples: int, random: np.random.Generator) -> Array:
    """What other seeds would add to each mean, [S, N]; 0 where no number has two runs."""
    freedom = sum(len(values) - 1 for values in runs)
    if not freedom:
        return np.zeros((samples, len(runs)))
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in runs)
    deviation = np.sqrt(squares / random.chisquare(freedom, samples))  # Student's t, with its freedom
    share = 1 / np.sqrt([len(values) for values in runs])
    return deviation[:, None] * share * random.standard_normal((samples, len(runs)))


def _verdict(tried: Sequence[int], best: Sequence[Best]) -> str:
    """Whether the best n rises, and whether it has come to rest below the largest that was tried."""
    sure = [each.n for each in best if each.sure >= SURE]
    if len(sure) < 2:
        return "undecided: at fewer than two budgets is one n the best in 90 % of the samples"
    if any(later < earlier for earlier, later in zip(sure, sure[1:], strict=False)):
        return "the best n does not rise with the budget here, unlike the paper's"
    if sure[0] == sure[-1]:
        return f"n = {sure[-1]} is the best at every budget that decides; try budgets or n further apart"
    if sure[-1] == tried[-1]:
        return f"the best n rises from {sure[0]} to {sure[-1]}, the largest tried: no saturation yet"
    return f"the best n rises from {sure[0]} and saturates at {sure[-1]}: {tried[-1]} was tried and is not better"
