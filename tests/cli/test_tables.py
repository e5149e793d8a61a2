"""Tables of the command line: whatever the width, no word of a cell is broken or lost."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from strop.cli import app
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


@pytest.mark.parametrize("columns", ["40", "60"])
def test_no_number_of_fit_and_plan_is_broken(
    columns: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    compute = [250.0 * 2**step for step in range(7)]
    rates = [(c, 0.1 + 0.5 / (1 + (1500 / c) ** 1.2)) for c in compute]
    curve = tmp_path / "scalerl.csv"
    curve.write_text("compute,pass_rate\n0,0.1\n" + "".join(f"{c},{rate}\n" for c, rate in rates))
    fit = ["fit", str(curve), "--bootstrap", "20", "--predict", "1600000", "--fit-until", "8000"]
    for command in (fit, ["plan", "scalerl", "--compare", "0,8", "--steps", "2"]):
        shown, wide = (CliRunner().invoke(app, command, env={"COLUMNS": each}) for each in (columns, "300"))
        assert shown.exit_code == wide.exit_code == 0
        told = [set(NUMBER.findall(each.stdout)) for each in (shown, wide)]
        assert len(told[1]) > 12 and told[0] == told[1]


def test_a_long_head_takes_nothing_from_the_cells_of_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    cells = ("0", "0 0 0", "0", "0", "0 to 0", "0 0 0.002 0.003 (2,513)")
    print_table(("a", "b", "900,000.0", "a long head", "c", "d"), [cells])
    assert "2,513" in capsys.readouterr().out
