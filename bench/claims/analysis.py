"""What a handful of paired seeds say about a claim: the effect with its interval, and the verdict, by a fixed rule.

    effect    the mean over seeds of what is measured, each seed's value a difference between arms of that seed
    interval  mean ± t · s / √n, Student's t with n − 1 degrees of freedom, at LEVEL

m, the `margin`, is the smallest effect of interest. What a claim says of the effect, and when the runs agree with it:

| says | agrees | disagrees |
| --- | --- | --- |
| above | interval above 0, mean at least m | interval below m |
| same | interval within ± m | interval leaves 0 out, mean beyond ± m |
| apart | interval leaves 0 out, mean beyond ± m | interval within ± m |
| not above | interval below m | interval above 0, mean at least m |

Else it is undecided: so is whatever has fewer than three seeds. "Above" disagrees where the interval rules out an
effect that matters, be it that there is none or that it goes the other way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from strop.lab.ablation.statistics import Paired, paired

Says = Literal["above", "same", "apart", "not above"]
Verdict = Literal["agrees", "disagrees", "undecided"]

LEVEL = 0.95
ENOUGH_SEEDS = 3
PASS_MARGIN = 0.02  # of a pass rate: the papers' own (ScaleRL A.5)
LOG_MARGIN = 0.2  # of a ratio, as a logarithm: about a fifth


class Result(NamedTuple):
    """What came of a claim: the values by seed, their mean with its interval, and the verdict."""

    values: dict[int, float]
    effect: Paired | None
    verdict: Verdict


def judge(values: Mapping[int, float], says: Says, margin: float, level: float = LEVEL) -> Result:
    """The effect over seeds, and whether it is what the claim says.

    Args:
        values: what was measured, by seed.
        says: what the claim says of it.
        margin: the smallest effect of interest, at least 0, in the unit of the values.
        level: of the interval.
    """
    ordered = {seed: values[seed] for seed in sorted(values)}
    effect = paired(list(ordered.values()), level)
    return Result(ordered, effect, _verdict(effect, says, margin))


def _verdict(effect: Paired | None, says: Says, margin: float) -> Verdict:
    if effect is None or effect.interval is None or effect.n < ENOUGH_SEEDS:
        return "undecided"
    low, high = effect.interval
    away = not low <= 0.0 <= high
    raised = low > 0.0 and effect.value >= margin
    within = -margin < low and high < margin
    beyond = away and abs(effect.value) >= margin
    holds, fails = {
        "above": (raised, high < margin),
        "same": (within, beyond),
        "apart": (beyond, within),
        "not above": (high < margin, raised),
    }[says]
    # With a margin an effect may be both there and too small to matter: then what matters counts.
    if holds == fails:
        return "undecided"
    return "agrees" if holds else "disagrees"


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, 1 the smallest; equal values share the mean of their ranks."""
    order = sorted(values)
    return [order.index(value) + 1 + (order.count(value) - 1) / 2 for value in values]


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's: the correlation of the ranks; None where one of the two does not vary."""
    a, b = ranks(x), ranks(y)
    mean = (len(a) + 1) / 2
    left, right = [value - mean for value in a], [value - mean for value in b]
    norm = (sum(value**2 for value in left) * sum(value**2 for value in right)) ** 0.5
    return sum(p * q for p, q in zip(left, right, strict=True)) / norm if norm else None
