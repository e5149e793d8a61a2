"""Curves from stored samples: avg@n against the response budget, and problem by problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from strop.base.types import InputError
from strop.evaluation.intervals import Array, Interval, rate_interval
from strop.evaluation.result import EvaluationResult, on_common_problems

BUDGET_POINTS = 8
BINS = (0.0, 0.25, 0.5, 0.75, 1.0)


class BudgetPoint(NamedTuple):
    """avg@N under a budget of `tokens`, with its interval over problems, and the share of samples it cuts off."""

    tokens: int
    rate: float
    interval: Interval
    truncated: float


class Bin(NamedTuple):
    """Problems whose pass rate before lies in a range: how many, and their mean rates before and after."""

    label: str
    problems: int
    before: float
    after: float


def budgets_up_to(most: int, points: int = BUDGET_POINTS) -> tuple[int, ...]:
    """Up to `points` budgets at equal steps that end at `most`: 4k, 8k … 32k for 32,768."""
    return tuple(sorted({max(1, most * step // points) for step in range(1, points + 1)}))


def rate_by_budget(result: EvaluationResult, budgets: Sequence[int], seed: int = 0) -> list[BudgetPoint]:
    """avg@N had the response been cut off after b tokens, for every b of `budgets` (Skywork-OR1, Figure 8).

    Sampling does not depend on the budget, so a kept sample of length l is the sample under any budget b ≥ l. One that
    is longer would have been cut off before its answer: truncated, and worth nothing.

    Raises:
        InputError: a budget is below 1, or the verifier failed on every sample.
    """
    if any(budget < 1 for budget in budgets):
        raise InputError("a response budget has at least one token")
    usable = result.usable.sum(axis=1)
    judged = usable > 0
    if not judged.any():
        raise InputError(f"{result.dataset}: the verifier failed on every sample, so there is no pass rate")
    points = []
    for budget in budgets:
        within = result.lengths <= budget
        cut = ~within | (result.truncated & (result.lengths >= budget))
        rates = (result.correct & result.usable & within).sum(axis=1)[judged] / usable[judged]
        points.append(BudgetPoint(budget, float(rates.mean()), rate_interval(rates, seed), float(cut.mean())))
    return points


def paired_rates(before: EvaluationResult, after: EvaluationResult) -> tuple[Array, Array]:
    """The pass rates of the problems that both judged, float64 [problems] each, in the order of the benchmark.

    Raises:
        InputError: the results share no problem.
    """
    first, second = on_common_problems(before, after)
    both = first.judged & second.judged
    return first.pass_rates[both], second.pass_rates[both]


def gains_by_difficulty(before: Array, after: Array, edges: Sequence[float] = BINS) -> list[Bin]:
    """Mean rates before and after by the rate before (Archer, Section 4.3.4): where do the gains come from?

    Problems never solved before are a bin of their own, as are those always solved; the others fall into the ranges
    between `edges`, their upper ends included. Empty bins are left out.
    """
    found: list[Bin] = []

    def add(label: str, mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> None:
        if mask.any():
            found.append(Bin(label, int(mask.sum()), float(before[mask].mean()), float(after[mask].mean())))

    add("0", before == 0.0)
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        inside = (before > low) & (before <= high) & (before > 0.0) & (before < 1.0)
        add(f"{100 * low:.0f}–{100 * high:.0f}", inside)
    add("100", before == 1.0)
    return found
