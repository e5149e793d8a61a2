"""Tables of the command line: whatever the width, no word of a cell is broken or lost."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strop.cli.options import print_table

NUMBER = re.compile(r"\d[\d,.]*")
WORD = st.text("abc019%.,()", min_size=1, max_size=9)
CELL = st.lists(WORD, min_size=1, max_size=4).map(" ".join)
TABLES = st.integers(1, 6).flatmap(
    lambda columns: st.lists(st.lists(CELL, min_size=columns, max_size=columns), min_size=2, max_size=4)
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=TABLES, width=st.integers(20, 120))
def test_no_word_of_a_cell_is_broken_or_lost(
    table: list[list[str]], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Heads and cells are folded at their spaces only."""
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(table[0], table[1:])
    found = Counter(capsys.readouterr().out.split())
    assert not Counter(word for row in table for cell in row for word in cell.split()) - found


def test_a_long_head_takes_nothing_from_the_cells_of_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    cells = ("0", "0 0 0", "0", "0", "0 to 0", "0 0 0.002 0.003 (2,513)")
    print_table(("a", "b", "900,000.0", "a long head", "c", "d"), [cells])
    assert "2,513" in capsys.readouterr().out
