"""What paired seeds say about a claim: the effect with its interval, and the verdict, by a rule fixed beforehand.

    effect    the mean over seeds of what is measured, each seed's value a difference between arms of that seed
    interval  mean ± t · s / √n, Student's t with n − 1 degrees of freedom, at the level of the look

m, the `margin`, is the smallest effect of interest. What a claim says of the effect, and when the runs agree with it:

| says | agrees | disagrees |
| --- | --- | --- |
| above | interval above 0, mean at least m | interval below m |
| same | interval within ± m | interval leaves 0 out, mean beyond ± m |
| apart | interval leaves 0 out, mean beyond ± m | interval within ± m |
| not above | interval below m | interval above 0, mean at least m |

Else it is undecided, and more seeds may be run. "Above" disagrees where the interval rules out an effect that matters,
be it that there is none or that it goes the other way.

Seeds are added where a claim is undecided, so the values are looked at more than once, at the sizes of `LOOKS`. Each
look spends a part of `ERROR` (a group-sequential design with alpha spending by Bonferroni): at a look that spends a the
interval has the level 1 − a. For differences that are normal such an interval misses the effect with probability a,
whether or not the look is taken; so the probability that any look's does is at most Σ a = `ERROR`. Whatever verdict is
drawn while all intervals hold the effect is right in this sense: "above" does not agree where the effect is 0 or less
nor disagree where it is m or more; nothing is told apart from 0 where the effect is 0, nor within ± m where it is not.
The first look that decides counts, whatever seeds come later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from strop.lab.ablation.collect import Paired, mean, paired

Says = Literal["above", "same", "apart", "not above"]
Verdict = Literal["agrees", "disagrees", "undecided", "not tried"]

LOOKS = {3: 0.01, 5: 0.04}  # how many seeds have been run: the probability of error that the look spends
ERROR = sum(LOOKS.values())
PASS_MARGIN = 0.02  # of a pass rate: the papers' own (ScaleRL A.5)
LOG_MARGIN = 0.2  # of a ratio, as a logarithm: about a fifth


class Result(NamedTuple):
    """What came of a claim.

    Fields:
        values: what was measured, by seed, of all seeds that were run.
        effect: their mean with its interval at the look that the verdict is of; without an interval before the first.
        verdict: by the rule, or "not tried".
        untried: why the runs say nothing about the claim; empty where they do.
        shown: what the arms showed of their mechanisms: of every check the numbers, seed by seed.
        made: the day of the latest run.
    """

    values: dict[int, float]
    effect: Paired | None
    verdict: Verdict
    untried: str = ""
    shown: Mapping[str, Sequence[float | None]] = {}
    made: str = ""


def judge(values: Mapping[int, float], says: Says, margin: float, looks: Mapping[int, float] = LOOKS) -> Result:
    """The effect over seeds, and whether it is what the claim says, at the first look that decides.

    Args:
        values: what was measured, by seed; the look at n sees the n lowest seeds.
        says: what the claim says of it.
        margin: the smallest effect of interest, at least 0, in the unit of the values.
        looks: numbers of seeds, each with the probability of error that it spends.
    """
    ordered = {seed: values[seed] for seed in sorted(values)}
    listed = list(ordered.values())
    found = mean(listed)
    result = Result(ordered, None if found is None else Paired(found.value, None, found.n, 0.0), "undecided")
    for size, spent in sorted(looks.items()):
        if len(listed) < size or result.verdict != "undecided":
            break
        effect = paired(listed[:size], 1.0 - spent)
        assert effect is not None
        result = Result(ordered, effect, _verdict(effect, says, margin))
    return result


def _verdict(effect: Paired, says: Says, margin: float) -> Verdict:
    assert effect.interval is not None
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


def false_verdicts(tried: int) -> float:
    """How many verdicts of so many tried claims are false in the mean, at most, however they depend on each other."""
    return ERROR * tried


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
