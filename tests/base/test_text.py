"""Numbers as people read them."""

from __future__ import annotations

import pytest

from strop.base.text import amount


@pytest.mark.parametrize(
    ("count", "read"),
    [
        (0, "0"), (980, "980"), (999, "999"), (1_000, "1 thousand"), (38_688, "38.7 thousand"),
        (804_672, "805 thousand"), (999_400, "999 thousand"), (999_600, "1 million"), (1_500_000, "1.5 million"),
        (595_776_512, "596 million"), (7_615_616_512, "7.62 billion"), (1_026_408_232_448, "1030 billion"),
    ],
)  # fmt: skip
def test_a_large_count_has_three_digits_and_a_word(count: int, read: str) -> None:
    assert amount(count) == read
