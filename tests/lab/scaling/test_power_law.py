"""The power law and the curves without an end, held against curves of their own kind."""

import numpy as np
import pytest
from tests.lab.scaling.cases import COMPUTE, R_0, drawn, truth

from strop.lab.scaling import Curve, FitSettings, fit, fit_power_law
from strop.lab.scaling.support import growth_error, line_error

ONES = np.ones(len(COMPUTE))


def curve(rates: np.ndarray) -> Curve:
    return Curve("c", COMPUTE, rates, R_0)


def test_a_power_law_is_recovered() -> None:
    law = fit_power_law(curve(0.7 - 40.0 * COMPUTE**-0.6), ONES)
    assert law.sse < 1e-9 and abs(law.A - 0.7) < 1e-4 and abs(law.D - 40.0) < 0.04 and abs(law.B - 0.6) < 1e-3
    assert law.value([1e4, 1e6]) == pytest.approx(0.7 - 40.0 * np.array([1e4, 1e6]) ** -0.6, rel=1e-3)


def test_the_asymptote_of_a_power_law_stays_a_fraction() -> None:
    law = fit_power_law(curve(0.05 * np.log(COMPUTE)), ONES)  # a line in log C needs an infinite one
    assert law.A == 1.0 and law.D > 0


def test_weights_count() -> None:
    rates = 0.7 - 40.0 * COMPUTE**-0.6
    rates[:4] += 0.1
    weight = np.where(np.arange(len(COMPUTE)) < 4, 1e-9, 1.0)
    assert abs(fit_power_law(curve(rates), weight).B - 0.6) < 0.006


def test_curves_without_an_end_have_no_error_on_their_own_points() -> None:
    assert growth_error(curve(R_0 + 1e-4 * COMPUTE**0.8), ONES) < 1e-9
    assert line_error(curve(0.1 + 0.03 * np.log(COMPUTE)), ONES) < 1e-20
    assert growth_error(curve(truth().value(COMPUTE)), ONES) > 1e-2
    moved = curve(R_0 + 0.05 + 1e-4 * COMPUTE**0.8)
    assert growth_error(moved, ONES) > 1e-3 > growth_error(moved, ONES, r0_weight=1e-3)


def test_the_sigmoid_extrapolates_its_own_kind_better_than_a_power_law() -> None:
    found = fit(drawn(truth("bs2048").value(COMPUTE)), FitSettings(bootstrap=50, fit_until=25000.0))
    error = found.held_back_error()
    assert error is not None and error.mean_absolute_error < 0.5 * error.power_law
