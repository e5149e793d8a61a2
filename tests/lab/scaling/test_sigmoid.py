"""The curve of Eq. 1, held against numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.lab.scaling import Sigmoid

SCALERL = Sigmoid(A=0.61, B=1.92, C_mid=2542.0, R_0=0.0)


@pytest.mark.parametrize(("compute", "expected"), [(8000, 0.5492), (16000, 0.5927), (100000, 0.6095)])
def test_values_of_the_published_curve(compute: float, expected: float) -> None:
    assert float(SCALERL.value(compute)) == pytest.approx(expected, abs=5e-5)


def test_half_of_the_gain_is_reached_at_the_midpoint_and_none_at_zero() -> None:
    curve = Sigmoid(0.6, 1.7, 3000.0, 0.2)
    assert float(curve.value(3000.0)) == pytest.approx(0.4)
    assert float(curve.value(0.0)) == 0.2
    assert curve.value([[1.0, 2.0]]).shape == (1, 2)


@given(
    a=st.floats(0.4, 1.0), b=st.floats(0.3, 6.0), mid=st.floats(10, 1e6), r0=st.floats(0.0, 0.3), at=st.floats(0.05, 20)
)
def test_the_linearised_curve_is_b_log_c(a: float, b: float, mid: float, r0: float, at: float) -> None:
    curve = Sigmoid(a, b, mid, r0)
    compute = mid * at ** (1.0 / b)
    assert float(curve.linearised(compute, curve.value(compute))) == pytest.approx(b * np.log(compute), abs=1e-6)


def test_points_outside_r0_and_a_have_no_linearised_value() -> None:
    curve = Sigmoid(0.6, 1.7, 3000.0, 0.2)
    assert np.isnan(curve.linearised([1e3, 1e3, 1e3], [0.2, 0.6, 0.7])).all()
