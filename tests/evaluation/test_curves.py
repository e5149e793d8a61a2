"""avg@N against the budget, and gains by difficulty, counted by hand."""


import numpy as np
import pytest
from tests.evaluation.results import result

from strop.base.types import InputError
from strop.report.evaluation_report import budgets_up_to, rate_by_budget


def test_a_sample_longer_than_the_budget_is_worth_nothing() -> None:
    found = result([[1, 1], [1, 0]], [[10, 30], [20, 100]], budget=100)
    points = rate_by_budget(found, [9, 10, 20, 30, 100])
    assert [point.rate for point in points] == [0.0, 0.25, 0.5, 0.75, 0.75]
    assert [point.truncated for point in points] == [1.0, 0.75, 0.5, 0.25, 0.25]
    assert points[-1].rate == found.pass_rate and points[-1].truncated == found.truncation_rate
    assert points[1].interval == (0.0, 0.5)


def test_the_curve_never_falls() -> None:
    rng = np.random.default_rng(0)
    found = result(rng.integers(0, 2, (30, 8)).tolist(), rng.integers(1, 101, (30, 8)).tolist())
    rates = [point.rate for point in rate_by_budget(found, range(1, 101))]
    assert rates == sorted(rates) and rates[-1] == pytest.approx(found.pass_rate)


def test_budgets() -> None:
    assert budgets_up_to(32_768)[:2] == (4096, 8192) and budgets_up_to(32_768)[-1] == 32_768
    assert budgets_up_to(3) == (1, 2, 3)
    with pytest.raises(InputError):
        rate_by_budget(result([[1]]), [0])
