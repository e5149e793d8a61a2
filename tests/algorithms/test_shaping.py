"""Rewards shaped by length, by value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.made import completion

from strop.algorithms.rewards import LengthPenalty, LengthShaping, OverlongShaping
from strop.base.types import Verdict
from strop_verify.verdict import Status

RIGHT, WRONG = Verdict(1.0, Status.CORRECT), Verdict(0.0, Status.WRONG)


@pytest.mark.parametrize(
    ("length", "expected"),
    [(100, 0.0), (12_288, 0.0), (12_289, -1 / 2048), (13_312, -0.5), (14_336, -1.0), (20_000, -1.0)],
)
def test_scalerls_penalty_is_for_correct_completions(length: int, expected: float) -> None:
    assert LengthPenalty()(completion(length), RIGHT) == pytest.approx(expected)
    assert LengthPenalty()(completion(length), WRONG) == 0


@pytest.mark.parametrize(("length", "expected"), [(6, 0.0), (7, -0.125), (8, -0.25), (10, -0.5), (12, -0.5)])
def test_dapos_shaping_is_for_all(length: int, expected: float) -> None:
    piece = OverlongShaping(max_tokens=10, buffer_tokens=4, factor=0.5)
    for verdict in (RIGHT, WRONG):
        assert piece(completion(length), verdict) == pytest.approx(expected)


def test_the_defaults_are_dapos() -> None:
    assert OverlongShaping()(completion(20_480), WRONG) == -1
    assert OverlongShaping()(completion(16_384), WRONG) == 0


@given(st.integers(1, 40))
def test_both_are_one_curve_up_to_the_limit(length: int) -> None:
    """Eq. 9 follows DAPO: for a correct completion within the limit they agree."""
    penalty, shaping = LengthPenalty(max_tokens=40, cache_tokens=8), OverlongShaping(max_tokens=40, buffer_tokens=8)
    assert penalty(completion(length), RIGHT) == pytest.approx(shaping(completion(length), RIGHT))


def test_they_are_found_by_name() -> None:
    assert LengthShaping.model_validate({"piece": "LengthPenalty", "cache_tokens": 100}) == LengthPenalty(
        cache_tokens=100
    )


@pytest.mark.parametrize(
    "wrong",
    [lambda: LengthPenalty(max_tokens=5, cache_tokens=6), lambda: OverlongShaping(max_tokens=5, buffer_tokens=6)],
)
def test_a_buffer_beyond_the_limit_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match="max_tokens=5"):
        wrong()


def test_a_buffer_of_the_whole_limit_is_right() -> None:
    assert OverlongShaping(max_tokens=8, buffer_tokens=8)(completion(4), WRONG) == -0.5
    assert LengthPenalty(max_tokens=8, cache_tokens=8)(completion(4), RIGHT) == -0.5


def test_what_an_environment_said_does_not_count() -> None:
    injected = np.arange(14_336) % 2 == 0
    said = replace(completion(14_336), injected=injected)
    assert LengthPenalty()(said, RIGHT) == 0 and LengthPenalty()(completion(14_336), RIGHT) == -1
    shaping = OverlongShaping(max_tokens=7_168, buffer_tokens=4_096)
    assert shaping(said, WRONG) == -1 == shaping(completion(7_168), WRONG)
