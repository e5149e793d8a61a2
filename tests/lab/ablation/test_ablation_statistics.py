"""Means, paired intervals and verdicts, against numbers worked out by hand."""

import pytest

from strop.lab.ablation.collect import Paired, mean, paired, spikes, verdict


def test_mean_and_standard_error() -> None:
    found = mean([1.0, 2.0, 3.0])
    assert found is not None and found.value == 2.0 and found.stderr == pytest.approx(1 / 3**0.5)
    assert mean([5.0]) == (5.0, None, 1) and mean([]) is None


def test_the_paired_interval_is_students() -> None:
    # t of 2 degrees of freedom at 95 % is 2.919986; mean 0.02, s = 0.01.
    found = paired([0.01, 0.02, 0.03], level=0.9)
    assert found is not None and found.interval is not None
    half = 2.919986 * 0.01 / 3**0.5
    assert found.value == pytest.approx(0.02)
    assert found.interval == pytest.approx((0.02 - half, 0.02 + half))
    alone = paired([0.01], 0.9)
    assert alone is not None and alone.interval is None


@pytest.mark.parametrize(
    ("value", "interval", "n", "expected"),
    [
        (-0.05, (-0.08, -0.02), 3, "worse"),
        (0.05, (0.03, 0.07), 3, "better"),
        (-0.05, (-0.11, 0.01), 3, "undecided"),
        (0.005, (-0.01, 0.02), 3, "same"),
        (0.0, (0.0, 0.0), 2, "undecided"),
        (0.015, (0.005, 0.025), 3, "undecided"),
        (0.05, None, 1, "undecided"),
    ],
)
def test_verdicts(value: float, interval: tuple[float, float] | None, n: int, expected: str) -> None:
    assert verdict(Paired(value, interval, n, 0.9), 0.02) == expected


def test_spikes_stand_out_of_the_median() -> None:
    assert spikes([1, 1, 1, 3.0, 3.1, 10]) == 1  # the median is 2
    assert spikes([1, 1, 1, 3.0, 3.1]) == 1 and spikes([]) == 0
