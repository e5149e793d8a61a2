"""The verdict on a claim: the paired interval by value, the rule, and what is measured of curves."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from bench.claims.analysis import (
    ERROR,
    LOOKS,
    Says,
    Verdict,
    false_verdicts,
    judge,
    seeds_needed,
)
from bench.claims.catalogue import CLAIMS
from bench.claims.execute import Curve
from hypothesis import given
from hypothesis import strategies as st

from bench.claims import measures as m
from bench.claims import timing

T_FIRST = 9.924843  # Student's t with 2 degrees of freedom at 99.5 %
T_SECOND = 3.746947  # with 4 at 99 %


def test_the_interval_is_students_t_of_the_paired_differences() -> None:
    """Mean 0.2, s = 0.1, and at three seeds a level of 99 %."""
    found = judge({2: 0.3, 0: 0.1, 1: 0.2}, "above", 0.02)
    assert found.effect is not None and found.effect.interval is not None
    assert list(found.values) == [0, 1, 2] and found.effect.level == 0.99
    assert found.effect.value == pytest.approx(0.2)
    half = T_FIRST * 0.1 / math.sqrt(3)
    assert found.effect.interval == pytest.approx((0.2 - half, 0.2 + half), abs=1e-6)
    assert found.verdict == "undecided"


def test_what_three_seeds_leave_undecided_five_may_decide() -> None:
    values = {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.2, 4: 0.2}
    found = judge(values, "above", 0.02)
    assert found.effect is not None and found.effect.interval is not None
    half = T_SECOND * math.sqrt(0.005) / math.sqrt(5)
    assert found.effect.interval == pytest.approx((0.2 - half, 0.2 + half), abs=1e-6)
    assert found.verdict == "agrees" and found.effect.n == 5
    four = judge({seed: value for seed, value in values.items() if seed < 4}, "above", 0.02)
    assert four.effect is not None and four.effect.n == 3 and len(four.values) == 4  # no look at four was planned


def test_the_first_look_that_decides_counts() -> None:
    """Three seeds that agree are not undone by two that do not."""
    found = judge({0: 0.2, 1: 0.2001, 2: 0.1999, 3: -9.0, 4: -9.0}, "above", 0.02)
    assert found.verdict == "agrees" and found.effect is not None and found.effect.n == 3


def told_apart(effect: float, looks: dict[int, float], says: Says = "apart", margin: float = 0.0) -> float:
    """The share of 3,000 claims that agree, of ten normal differences each with this mean and a deviation of 1."""
    draws = effect + np.random.default_rng(5).normal(size=(3_000, max(LOOKS)))
    verdicts = [judge(dict(enumerate(row)), says, margin, looks).verdict for row in draws.tolist()]
    return sum(verdict == "agrees" for verdict in verdicts) / len(verdicts)


def test_adding_seeds_keeps_false_verdicts_within_the_error() -> None:
    """Where there is no effect at most 5 % are told apart from 0; the same 95 % interval at each look tells more."""
    assert pytest.approx(0.05) == ERROR
    rate = told_apart(0.0, LOOKS)
    assert 0.035 < rate <= 0.05
    assert told_apart(0.0, dict.fromkeys(LOOKS, 0.05)) > 0.065
    # Worst cases of the other verdicts: an effect as large as the margin is said to be within it or below it.
    assert told_apart(3.0, LOOKS, "not above", 3.0) <= ERROR / 2 + 0.005
    assert told_apart(3.0, LOOKS, "same", 3.0) <= ERROR / 2 + 0.005
    assert told_apart(0.0, LOOKS, "above") <= ERROR / 2 + 0.005
    assert false_verdicts(80) == pytest.approx(4.0)


def around(mean: float, half: float) -> dict[int, float]:
    """Three values whose interval at the first look is mean ± half."""
    spread = half * math.sqrt(3) / T_FIRST  # s of (mean − s, mean, mean + s)
    return {0: mean - spread, 1: mean, 2: mean + spread}


@pytest.mark.parametrize(
    ("mean", "half", "verdicts"),
    [  # above, same, apart, not above; with a margin of 2
        (5.0, 1.0, ("agrees", "disagrees", "agrees", "disagrees")),
        (5.0, 4.9, ("agrees", "disagrees", "agrees", "disagrees")),
        (5.0, 5.1, ("undecided", "undecided", "undecided", "undecided")),
        (-5.0, 1.0, ("disagrees", "disagrees", "agrees", "agrees")),
        (0.0, 1.0, ("disagrees", "agrees", "disagrees", "agrees")),
        (0.0, 3.0, ("undecided", "undecided", "undecided", "undecided")),
        (-1.5, 3.0, ("disagrees", "undecided", "undecided", "agrees")),  # no gain of 2, perhaps a loss of it
        (1.0, 0.5, ("disagrees", "agrees", "disagrees", "agrees")),  # there, and smaller than what matters
        (1.5, 1.0, ("undecided", "undecided", "undecided", "undecided")),
    ],
)
def test_the_verdict_goes_by_the_interval_and_the_margin(mean: float, half: float, verdicts: tuple[Verdict]) -> None:
    kinds: tuple[Says, ...] = ("above", "same", "apart", "not above")
    assert tuple(judge(around(mean, half), says, 2.0).verdict for says in kinds) == verdicts


def test_the_seeds_that_a_claim_needs() -> None:
    """A gain of two deviations: t_{n−1} at 99 % over √n is below it by enough at 6; one just at the margin never is."""
    centred = np.array((-1.0, 0.0, 1.0))
    gain = seeds_needed(list(centred + 2.0), "above", 0.1)
    assert gain is not None
    draws = 2.0 + np.random.default_rng(7).normal(size=(2_000, gain))
    shares = [np.mean([judge(dict(enumerate(row[:n])), "above", 0.1, {n: 0.02}).verdict == "agrees" for row in
                       draws.tolist()]) for n in (gain - 1, gain)]  # fmt: skip
    assert shares[0] < 0.82 and shares[1] > 0.78 and shares[0] < shares[1]
    assert seeds_needed(list(0.01 * centred + 1.0), "same", 1.0) is None
    assert seeds_needed(list(0.3 * centred), "same", 1.0) == seeds_needed(list(0.3 * centred), "apart", 1.0)


@pytest.mark.parametrize("values", [{}, {0: 9.0}, {0: 9.0, 1: 9.1}])
def test_fewer_than_three_seeds_decide_nothing(values: dict[int, float]) -> None:
    assert judge(values, "above", 0.0).verdict == "undecided"


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=6), st.floats(0, 0.5))
def test_what_agrees_with_a_claim_disagrees_with_its_contrary(values: list[float], margin: float) -> None:
    seeds = dict(enumerate(values))
    other = {"agrees": "disagrees", "disagrees": "agrees", "undecided": "undecided"}
    for says, contrary in (("above", "not above"), ("same", "apart")):
        verdict = judge(seeds, says, margin).verdict  # type: ignore[arg-type]
        assert judge(seeds, contrary, margin).verdict == other[verdict]  # type: ignore[arg-type]


# ---------------------------------------------------------------------- measures


def curve(arm: str = "a", **columns: list[float | None]) -> Curve:
    """A curve whose columns are given from step 0 on; `__` in a name stands for a slash."""
    length = max(len(values) for values in columns.values())
    rows: list[dict[str, float | None]] = [{"step": float(step)} for step in range(length)]
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            row[name.replace("__", "/")] = value
    return Curve(arm, 0, None, 1.0, tuple(rows))


def test_late_course_and_last_leave_out_what_was_before_training() -> None:
    made = curve(evaluation__pass_rate=[0.1, None, 0.2, 0.4, None, 0.6, 0.8])
    assert m.late(m.PASS)(made) == pytest.approx(0.7)
    assert m.course(m.PASS)(made) == pytest.approx(0.5)
    assert m.last(m.PASS)(made) == 0.8
    assert m.late("missing")(made) is None


def test_measures_of_steps() -> None:
    made = curve(x=[None, 8.0, 4.0, 2.0, 6.0, 1.0, 3.0, 5.0, 7.0])
    assert m.last_quarter("x")(made) == 6.0 and m.first("x", 2)(made) == 6.0
    assert m.smallest("x")(made) == 1.0 and m.mean("x")(made) == 4.5 and m.total("x")(made) == 36.0
    assert m.largest("x")(made) == 8.0 and m.at("x", 3)(made) == 2.0 and m.at("x", 0)(made) is None
    assert m.falls("x")(made) == 3.0 and m.falls("y")(made) is None


def test_a_penalty_is_what_rewards_lack_to_right_and_wrong() -> None:
    made = curve(reward__mean=[None, 0.4, -0.1], pass_rate=[None, 0.75, 0.5])  # 0.5 and 0 without a penalty
    assert m.mean_penalty(made) == pytest.approx(0.1)


def test_unsteadiness_counts_rise_and_fall_alike() -> None:
    falls, rises = ([0.2, 0.2 * factor, 0.2 * factor**2] for factor in (0.5, 2.0))
    expected = (math.log(2) + math.log(4)) / 2
    for column in (falls, rises):
        assert m.unsteadiness(curve(evaluation__entropy=list(column))) == pytest.approx(expected)


def test_effects_between_arms() -> None:
    arms = {"a": curve(x=[4.0]), "b": curve(x=[2.0]), "c": curve(y=[1.0])}
    measure = m.last("x")
    assert m.minus(measure, "a", "b")(arms) == 2.0
    assert m.log_ratio(measure, "a", "b")(arms) == pytest.approx(math.log(2))
    assert m.of(measure, "a", 1.0)(arms) == 3.0
    assert m.minus(measure, "a", "c")(arms) is None and m.log_ratio(measure, "a", "c")(arms) is None
    assert m.ratio_log(m.first("x"), measure)(curve(x=[2.0, 8.0])) == pytest.approx(-math.log(4))
    assert m.log_over(8.0, measure, "b")(arms) == pytest.approx(math.log(4))


def test_every_claim_says_what_can_be_judged() -> None:
    assert len(CLAIMS) >= 12
    for name, claim in CLAIMS.items():
        assert claim.name == name and claim.says in get_args(Says) and claim.margin >= 0 and claim.quote
        assert claim.says in ("above", "not above") or claim.margin > 0


def test_a_gap_is_of_the_steps_that_have_both() -> None:
    made = curve(one=[None, 1.0, 2.0, 5.0], other=[9.0, 0.5, None, 3.0])
    assert m.gap("one", "other")(made) == pytest.approx((0.5 + 2.0) / 2)
    assert m.gap("one", "none")(made) is None


def test_the_updates_until_a_pass_rate() -> None:
    made = curve(evaluation__pass_rate=[0.2, None, 0.4, 0.6], updates=[None, 8.0, 8.0, 8.0])
    assert timing.updates_until(made, 0.5) == pytest.approx(16 + 0.5 * 8)
    assert timing.updates_until(made, 0.3) == pytest.approx(8.0)
    assert timing.updates_until(made, 0.1) == 0.0 and timing.updates_until(made, 0.7) is None


def test_pipelining_is_as_much_faster_as_its_schedule_says() -> None:
    off, pipelined = timing.update_seconds(20, 0)
    tokens = 16 * 8 * 20 * (0.95 + 0.05 * 30)
    update = tokens * timing.DECODE / (timing.GENERATORS * timing.SLOTS)  # with all slots busy
    longest = 20 * 30 * timing.DECODE
    # Pipelined: a group is admitted at most nine updates before its own ends. Alternating: eight updates, and before
    # them their tokens' generation, which ends with a straggler.
    assert 1.0 <= pipelined / ((longest + update) / 9) < 1.1
    assert 1.0 <= off / (2 * update) < (2 * update + longest / 8) / (2 * update)
    curves = {
        name: curve(name, length__mean=[None, 20.0], evaluation__pass_rate=[0.2, 0.6], updates=[None, n])
        for name, n in (("fast", 16.0), ("slow", 8.0))
    }
    assert timing.schedule_gain("fast")(curves) == pytest.approx(math.log(off / pipelined))
    # The pipelined arm needs twice the updates here, of its own seconds each.
    assert timing.sooner("fast", "slow", 0.5)(curves) == pytest.approx(math.log(off / (2 * pipelined)))
