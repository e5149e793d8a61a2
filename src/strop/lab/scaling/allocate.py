"""How many samples per prompt a budget is best spent on (IsoCompute, arXiv 2603.12151).

Runs that differ only in n, the samples per prompt, each get their curve of pass rate against compute. At a budget C the
best n is that of the highest curve; the paper finds that it rises with C and then saturates. Steps are what is left of
the budget, and prompts per step matter little within a moderate range. Nothing here extrapolates: a curve counts up to
its last point. The samples are of the noise of evaluations; another seed of the training scatters more. Shapes: R runs,
S bootstrap samples.
"""

from __future__ import annotations

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

    fits: Mapping[int, Fit]
    best: Sequence[Best]
    verdict: str


def allocate(
    recipes: Mapping[str, Sequence[Curve]], settings: FitSettings, budgets: Sequence[float] = ()
) -> Allocation:
    """The best n at each budget; by default at nine, from where every curve has begun to where only one goes on.

    Raises:
        InputError: a name is no whole number, a name has several runs, fewer than two curves could be fitted, or no
            two curves reach a budget.
    """
    fits: dict[int, Fit] = {}
    for name, curves in recipes.items():
        if not name.isdecimal() or int(name) < 1 or len(curves) > 1:
            raise InputError(f"{name}: name each run once by its samples per prompt, such as 8=runs/eight")
        # Samples of two curves are compared: the same noise drawn for both would hide most of it.
        seeded = settings.model_copy(update={"seed": settings.seed + len(fits)})
        fits[int(name)] = fit(curves[0], seeded)
    fits = dict(sorted(fits.items()))
    accepted = {n: found for n, found in fits.items() if found.sigmoid is not None}
    if len(accepted) < 2:
        refused = "; ".join(f"{n}: {found.refused}" for n, found in fits.items() if found.refused)
        raise InputError(f"two curves at least must support a fit ({refused})")
    ends = sorted(found.used.compute[-1] for found in accepted.values())
    start = max(found.used.compute[0] for found in accepted.values())
    grid = list(budgets) or [float(c) for c in np.geomspace(min(start, ends[-2]), ends[-2], BUDGETS)]
    best = [_best(accepted, compute) for compute in grid]
    return Allocation(fits, best, _verdict(list(accepted), best))


def _best(accepted: Mapping[int, Fit], compute: float) -> Best:
    """The best of the curves that reach this budget."""
    reach = [n for n, found in accepted.items() if found.used.compute[-1] >= compute]
    if len(reach) < 2:
        raise InputError(f"--budget {compute:g}: fewer than two curves reach it, and none is extrapolated")
    rates = np.array([float(accepted[n].accepted().value(compute)) for n in reach])
    drawn = np.column_stack([accepted[n].sampled(compute)[:, 0] for n in reach])  # [S, R]
    wins = np.bincount(drawn.argmax(1), minlength=len(reach)) / len(drawn)
    first = int(rates.argmax())
    others = np.where(np.arange(len(reach)) == first, -1.0, wins)
    second = reach[int(others.argmax())] if others.max() > 0 else None
    return Best(compute, reach[first], float(rates[first]), float(wins[first]), second)


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
