"""Comparison of recipes by their fitted curves (ScaleRL A.5, Figure 5), and of seeds.

Two recipes differ in A when their asymptotes lie more than the margin apart (0.02 in the paper, from three seeds) and
the interval of the difference excludes 0. If A is within the margin, both are fitted again with A fixed to the
average, and B decides, then C_mid. If the intervals are too wide to tell, the comparison is undecided.

`allocate` says how many samples per prompt a budget is best spent on (IsoCompute, arXiv 2603.12151). Runs that differ
only in n, the samples per prompt, each get their curve; at a budget C the best n is that of the highest curve, a mean
over seeds. The paper finds that it rises with C and then saturates. Steps are what is left of the budget, and prompts
per step matter little within a moderate range. Nothing is extrapolated: a curve counts up to its last point. The
samples are of the noise of evaluations and, where an n has several runs, of the scatter of seeds, pooled over all n.
Without it a best n is that of these runs only.

Shapes: N numbers of samples, S bootstrap samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from strop.base.types import InputError
from strop.lab.scaling.curves import Curve
from strop.lab.scaling.fitting import Fit, FitSettings, Interval, fit, quantiles, r0_weight, redraw
from strop.lab.scaling.sigmoid import FitProblem, Sigmoid, solve

Array = NDArray[np.float64]

MARGIN = 0.02
ENOUGH_SEEDS = 3


@dataclass(frozen=True, eq=False)
class Refit:
    """A fit with A fixed: its B and C_mid, with bootstrap samples [S, 2] of both."""

    fit: Fit
    sigmoid: Sigmoid
    sse: float
    samples: Array

    @property
    def b_interval(self) -> Interval:
        return quantiles(self.samples[:, 0], self.fit.settings.level)

    @property
    def c_mid_interval(self) -> Interval:
        return quantiles(self.samples[:, 1], self.fit.settings.level)


@dataclass(frozen=True)
class Seeds:
    """The asymptotes of one recipe's seeds, with their mean and the largest deviation from it (A.5)."""

    recipe: str
    asymptotes: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.asymptotes))

    @property
    def deviation(self) -> float:
        return float(np.max(np.abs(np.asarray(self.asymptotes) - self.mean)))

    @property
    def enough(self) -> bool:
        """Whether there are at least three seeds; fewer give no useful margin."""
        return len(self.asymptotes) >= ENOUGH_SEEDS


@dataclass(frozen=True)
class CurveComparison:
    """The comparison of two recipes. `by` is the parameter that decides, `better` the better recipe; both may be None.

    `difference` is first minus second, of A where A decides or is undecided, of B or log C_mid at the common
    `asymptote` otherwise; `interval` is its bootstrap interval.
    """

    first: str
    second: str
    verdict: Literal["differ", "no difference", "undecided"]
    by: Literal["A", "B", "C_mid"] | None
    better: str | None
    difference: float
    interval: Interval
    margin: float
    asymptote: float | None

    def __str__(self) -> str:
        low, high = self.interval if self.difference >= 0 else (-self.interval[1], -self.interval[0])
        span = f"{abs(self.difference):.3g} ({low:.3g} to {high:.3g})"
        if self.verdict == "undecided":
            return f"undecided, A differs by {span}; more points or more seeds are needed"
        if self.by == "A":
            return f"{self.better} reaches the higher A, by {span}, margin {self.margin:.3g}"
        common = f"A is the same within {self.margin:.3g} (fixed to {self.asymptote:.3f})"
        if self.by == "B":
            return f"{common}; {self.better} is more efficient, B is higher by {span}"
        if self.by == "C_mid":
            factors = f"{np.exp(abs(self.difference)):.3g} ({np.exp(low):.3g} to {np.exp(high):.3g})"
            return f"{common}, B too; {self.better} is earlier, C_mid by a factor of {factors}"
        return f"{common}, and neither B nor C_mid differs: no difference was found"


def refit(found: Fit, asymptote: float) -> Refit:
    """Fit B and C_mid again with A fixed, by weighted least squares, with bootstrap samples.

    Raises:
        ValueError: the fit was refused, or the asymptote does not lie above R_0.
    """
    used = found.used
    if asymptote <= used.r0:
        raise ValueError(f"{found.name}: A fixed to {asymptote:g} does not lie above R_0 = {used.r0:g}")
    drawn, r0 = redraw(found)
    rates, r0 = np.concatenate([used.pass_rate[None, :], drawn]), np.concatenate([[used.r0], r0])
    moves = r0_weight(used, found.weight, found.settings)
    y, at = rates - r0[:, None], np.log(used.compute)
    solution = solve(FitProblem(at, y, found.weight, r0, asymptote=asymptote, r0_weight=moves), 1)
    sigmoid = Sigmoid(asymptote, float(solution.b[0]), float(solution.mid[0]), used.r0 + float(solution.shift[0]))
    sse = float(((used.pass_rate - sigmoid.value(used.compute)) ** 2).sum())
    return Refit(found, sigmoid, sse, np.stack([solution.b, solution.mid], axis=1)[1:])


def joint_refit(fits: Sequence[Fit]) -> list[Refit]:
    """All accepted fits again, with A fixed to their average, so that slopes compare (Figure 5)."""
    accepted = [(found, found.sigmoid) for found in fits if found.sigmoid is not None]
    if not accepted:
        return []
    asymptote = float(np.mean([sigmoid.A for _, sigmoid in accepted]))
    return [refit(found, asymptote) for found, _ in accepted if asymptote > found.used.r0]


def seeds(recipe: str, fits: Sequence[Fit]) -> Seeds:
    """The scatter of a recipe's asymptotes over its accepted fits."""
    return Seeds(recipe, tuple(found.sigmoid.A for found in fits if found.sigmoid is not None))


def compare(
    first: str, first_fits: Sequence[Fit], second: str, second_fits: Sequence[Fit], margin: float = MARGIN
) -> CurveComparison | None:
    """Whether two recipes differ, each given by the fits of its seeds; None where one has no accepted fit.

    If a recipe has three seeds that deviate by more than `margin`, their deviation is used instead.
    """
    ours = [found for found in first_fits if found.sigmoid is not None]
    theirs = [found for found in second_fits if found.sigmoid is not None]
    if not ours or not theirs:
        return None
    spreads = [spread.deviation for spread in (seeds(first, ours), seeds(second, theirs)) if spread.enough]
    margin = max([margin, *spreads])
    level = ours[0].settings.level
    a_first, a_second = _asymptotes(ours, 1), _asymptotes(theirs, 2)
    difference, interval = _difference(a_first, a_second, level)
    apart, wide = abs(difference) > margin, interval[1] - interval[0] > 2.0 * margin
    if (apart and interval[0] <= 0.0 <= interval[1]) or (not apart and wide):
        return CurveComparison(first, second, "undecided", None, None, difference, interval, margin, None)
    if apart:
        better = first if difference > 0 else second
        return CurveComparison(first, second, "differ", "A", better, difference, interval, margin, None)
    return _by_efficiency(first, ours, second, theirs, margin, 0.5 * (a_first[0] + a_second[0]))


def _by_efficiency(
    first: str, ours: Sequence[Fit], second: str, theirs: Sequence[Fit], margin: float, asymptote: float
) -> CurveComparison:
    level = ours[0].settings.level
    refits = [[refit(found, asymptote) for found in fits] for fits in (ours, theirs)]

    def pooled(column: int, logarithm: bool, group: int) -> tuple[float, Array]:
        members = refits[group]
        parts = [(each.sigmoid.C_mid if column else each.sigmoid.B, each.samples[:, column]) for each in members]
        if logarithm:
            parts = [(float(np.log(value)), np.log(samples)) for value, samples in parts]
        return _pool(parts, 3 + 2 * column + group)

    b, b_interval = _difference(pooled(0, False, 0), pooled(0, False, 1), level)
    if not b_interval[0] <= 0.0 <= b_interval[1]:
        better = first if b > 0 else second
        return CurveComparison(first, second, "differ", "B", better, b, b_interval, margin, asymptote)
    mid, mid_interval = _difference(pooled(1, True, 0), pooled(1, True, 1), level)
    if not mid_interval[0] <= 0.0 <= mid_interval[1]:
        better = first if mid < 0 else second
        return CurveComparison(first, second, "differ", "C_mid", better, mid, mid_interval, margin, asymptote)
    return CurveComparison(first, second, "no difference", None, None, b, b_interval, margin, asymptote)


def _asymptotes(fits: Sequence[Fit], stream: int) -> tuple[float, Array]:
    return _pool([(found.sigmoid.A, found.samples[:, 0]) for found in fits if found.sigmoid is not None], stream)


def _pool(parts: Sequence[tuple[float, Array]], stream: int) -> tuple[float, Array]:
    """The mean over seeds and samples of it, [S].

    Fits of one seed number share their random numbers, so samples are shuffled before they meet. Seeds of a run that
    scatter more than their fits explain widen the samples.
    """
    rng = np.random.default_rng(stream)
    values = np.array([value for value, _ in parts])
    size = min(len(samples) for _, samples in parts)
    samples = np.mean([rng.permutation(samples)[:size] for _, samples in parts], axis=0)
    if len(values) > 1:
        missing = max(0.0, float(values.var(ddof=1)) / len(values) - float(samples.var()))
        samples = samples + np.sqrt(missing) * rng.standard_normal(size)
    return float(values.mean()), samples


def _difference(first: tuple[float, Array], second: tuple[float, Array], level: float) -> tuple[float, Interval]:
    size = min(len(first[1]), len(second[1]))
    return first[0] - second[0], quantiles(first[1][:size] - second[1][:size], level)


# ---------------------------------------------------------------------- by samples per prompt


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
    streams = itertools.count(settings.seed)
    for name, curves in recipes.items():
        if not name.isdecimal() or int(name) < 1:
            raise InputError(f"{name}: name each run by its samples per prompt, such as 8=runs/eight")
        # Samples of two curves are compared: the same noise drawn for both would hide most of it.
        fits[int(name)] = [fit(curve, settings.model_copy(update={"seed": next(streams)})) for curve in curves]
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
