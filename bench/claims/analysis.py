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
The first look that decides counts, whatever seeds come later. What no look decided has a number of seeds that would
(`seeds_needed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.lab.ablation.collect import Paired, mean, paired
from strop.lab.ablation.power import MOST, fewest, standard

Says = Literal["above", "same", "apart", "not above"]
Verdict = Literal["agrees", "disagrees", "undecided", "not tried"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

LOOKS = {3: 0.01, 5: 0.02, 10: 0.02}  # how many seeds have been run: the probability of error that the look spends
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
        shown: what the arms showed of their mechanisms: of every check the numbers, by seed.
        made: the day of the latest run.
    """

    values: dict[int, float]
    effect: Paired | None
    verdict: Verdict
    untried: str = ""
    shown: Mapping[str, Mapping[int, float | None]] = {}
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
    mean, low, high = (np.asarray(value) for value in (effect.value, *effect.interval))
    holds, fails = map(bool, _rule(mean, low, high, says, margin))
    # With a margin an effect may be both there and too small to matter: then what matters counts.
    if holds == fails:
        return "undecided"
    return "agrees" if holds else "disagrees"


def _rule(mean: Array, low: Array, high: Array, says: Says, margin: float) -> tuple[Flags, Flags]:
    """Whether means with intervals hold up a claim, and whether they refute it."""
    away = (low > 0.0) | (high < 0.0)
    raised = (low > 0.0) & (mean >= margin)
    within = (-margin < low) & (high < margin)
    beyond = away & (np.abs(mean) >= margin)
    return {
        "above": (raised, high < margin),
        "same": (within, beyond),
        "apart": (beyond, within),
        "not above": (high < margin, raised),
    }[says]


def seeds_needed(values: Sequence[float], says: Says, margin: float) -> int | None:
    """How many seeds decide a claim at one look with a probability of 80 %, by the simulation of `strop plan power`.

    The look has the level of the last of `LOOKS`; true mean and deviation are taken to be those of `values`. None where
    `MOST` seeds do not decide.
    """
    from scipy.special import stdtrit

    drawn, n = standard(), np.arange(1, MOST + 1)
    scale = np.std(values, ddof=1)
    means = np.mean(values) + scale * drawn.mean
    half = stdtrit(np.maximum(n - 1, 1), 1.0 - LOOKS[max(LOOKS)] / 2.0) / np.sqrt(n) * scale * drawn.deviation
    holds, fails = _rule(means, means - half, means + half, says, margin)
    return fewest((holds != fails).mean(axis=0))


def false_verdicts(tried: int) -> float:
    """How many verdicts of so many tried claims are false in the mean, at most, however they depend on each other."""
    return ERROR * tried
