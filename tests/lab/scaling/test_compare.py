"""Verdicts between recipes, seeds, joint refits and windows."""

import numpy as np
import pytest
from tests.lab.scaling.cases import COMPUTE, R_0, drawn, truth

from strop.lab.scaling import Curve, Fit, FitSettings, Sigmoid, compare, fit, joint_refit, refit
from strop.lab.scaling.compare import seeds

SETTINGS = FitSettings(bootstrap=100)


def fitted(a: float, b: float = 1.92, mid: float = 2542.0, seed: int = 0, scale: float = 1.0) -> Fit:
    found = fit(drawn(Sigmoid(a, b, mid, R_0).value(COMPUTE), seed, scale=scale), SETTINGS)
    assert found.refused is None
    return found


def test_a_higher_asymptote_decides_even_against_a_lower_b() -> None:
    found = compare("new", [fitted(0.65, 1.5)], "old", [fitted(0.60, 2.5, seed=1)])
    assert found is not None and (found.verdict, found.by, found.better) == ("differ", "A", "new")
    assert found.difference == pytest.approx(0.05, abs=0.005) and found.interval[0] > 0.02
    assert str(found).startswith("new reaches the higher A, by 0.0")
    other = compare("old", [fitted(0.60, 2.5, seed=1)], "new", [fitted(0.65, 1.5)])
    assert other is not None and other.better == "new" and other.difference < 0


def test_within_the_margin_b_decides_at_a_common_asymptote() -> None:
    found = compare("slow", [fitted(0.610, 1.5)], "quick", [fitted(0.605, 2.4, seed=1)])
    assert found is not None and (found.verdict, found.by, found.better) == ("differ", "B", "quick")
    assert found.asymptote == pytest.approx(0.6075, abs=0.003) and "fixed to 0.60" in str(found)


def test_with_equal_a_and_b_the_midpoint_decides() -> None:
    found = compare("late", [fitted(0.61, mid=4000.0, scale=0.3)], "early", [fitted(0.61, seed=1, scale=0.3)])
    assert found is not None and (found.verdict, found.by, found.better) == ("differ", "C_mid", "early")
    assert np.exp(found.difference) == pytest.approx(4000 / 2542, rel=0.05) and "by a factor of 1.5" in str(found)


def test_two_draws_of_one_curve_do_not_differ() -> None:
    found = compare("one", [fitted(0.61)], "two", [fitted(0.61, seed=5)])
    assert found is not None and (found.verdict, found.by, found.better) == ("no difference", None, None)
    assert "no difference was found" in str(found)


def test_what_noise_leaves_open_is_undecided() -> None:
    vague = FitSettings(bootstrap=100, fit_until=20000.0)
    one, two = (fit(drawn(truth("bs2048").value(COMPUTE), seed, scale=1.5), vague) for seed in (3, 4))
    assert one.refused is None and two.refused is None
    found = compare("one", [one], "two", [two])
    assert found is not None and found.verdict == "undecided" and str(found).startswith("undecided, A differs by")


def test_a_refused_fit_is_compared_with_nothing() -> None:
    flat = fit(Curve("flat", COMPUTE, np.full(len(COMPUTE), 0.3), R_0), SETTINGS)
    assert compare("flat", [flat], "good", [fitted(0.61)]) is None
    assert joint_refit([flat]) == []
    with pytest.raises(ValueError):
        refit(flat, 0.6)


def test_seeds_that_scatter_widen_margin_and_interval() -> None:
    spread = [fitted(a, seed=i) for i, a in enumerate((0.57, 0.61, 0.65))]
    scatter = seeds("spread", spread)
    assert scatter.enough and scatter.mean == pytest.approx(0.61, abs=0.003)
    assert scatter.deviation == pytest.approx(0.04, abs=0.004)
    found = compare("spread", spread, "one", [fitted(0.64, seed=9)])
    assert found is not None and found.margin == pytest.approx(scatter.deviation) and found.by != "A"
    low, high = compare("spread", spread, "far", [fitted(0.70, seed=9)]).interval  # type: ignore[union-attr]
    assert high - low == pytest.approx(2 * 1.645 * 0.04 / np.sqrt(3), rel=0.3)  # of a mean of three
    alone = compare("middle", [spread[1]], "one", [fitted(0.64, seed=9)])
    assert alone is not None and alone.by == "A"


def test_a_joint_refit_fixes_a_to_the_average_and_slopes_compare() -> None:
    fits = [fitted(0.60, 1.6), fitted(0.62, 2.3, seed=1)]
    joint = joint_refit(fits)
    assert [each.sigmoid.A for each in joint] == [pytest.approx(0.61, abs=0.003)] * 2
    assert joint[0].sigmoid.B < fits[0].sigmoid.B and joint[1].sigmoid.B > fits[1].sigmoid.B  # type: ignore[union-attr]
    low, high = joint[1].b_interval
    assert low < joint[1].sigmoid.B < high and joint[0].sse > (fits[0].sse or 0.0)
    with pytest.raises(ValueError, match="R_0"):
        refit(fits[0], 0.1)


def test_refitting_with_the_true_a_keeps_the_curve() -> None:
    sigmoid = truth("scout")
    found = fit(Curve("c", COMPUTE, sigmoid.value(COMPUTE), R_0, None, 0.0), SETTINGS)
    again = refit(found, sigmoid.A).sigmoid
    assert (again.B, again.C_mid) == pytest.approx((sigmoid.B, sigmoid.C_mid), rel=1e-6)
