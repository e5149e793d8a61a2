"""Token weights by value."""

from __future__ import annotations

import numpy as np
import pytest

from strop.algorithms.aggregation import Aggregation, ConstantDenominator, PromptMean, SampleMean, TokenMean

TRAINED = np.array([2, 6, 4], dtype=np.int32)
GROUP = np.array([7, 7, 3], dtype=np.int32)


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        (TokenMean(), [1 / 12, 1 / 12, 1 / 12]),
        (SampleMean(), [1 / 6, 1 / 18, 1 / 12]),
        (PromptMean(), [1 / 16, 1 / 16, 1 / 8]),
        (ConstantDenominator(tokens=10), [1 / 30, 1 / 30, 1 / 30]),
    ],
)
def test_weights(piece: Aggregation, expected: list[float]) -> None:
    np.testing.assert_allclose(piece(TRAINED, GROUP), expected, rtol=1e-6)


@pytest.mark.parametrize("piece", [TokenMean(), SampleMean(), PromptMean()])
def test_means_sum_to_one(piece: Aggregation) -> None:
    assert float((piece(TRAINED, GROUP) * TRAINED).sum()) == pytest.approx(1.0)
