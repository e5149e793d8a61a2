"""docs/models.md: its table has the families that the code supports, and a row says what the command finds."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from tests.kit.bring import FAMILIES

from strop.model.attention_kinds import KNOWN

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "models.md"


def rows() -> dict[str, list[str]]:
    """The cells of the table by family."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 8 and cells[0] not in ("family", "---"):
            found[cells[0]] = cells[1:]
    return found


def test_the_table_has_every_family_and_no_gap_beyond_the_bounds() -> None:
    found = rows()
    assert list(found) == list(FAMILIES)
    assert {name: cells[0] for name, cells in found.items()} == {n: f"`{kind}`" for n, (kind, _) in FAMILIES.items()}
    windowed = {cells[0].strip("`") for cells in found.values() if "windows" in cells[1] or "chunks" in cells[1]}
    assert windowed == KNOWN
    assert not [name for name, cells in found.items() if any("**" in cell for cell in cells)]


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "llama4_text"])
def test_the_command_finds_what_the_table_says(family: str, tmp_path: Path) -> None:
    bench = runpy.run_path(str(ROOT / "bench" / "models.py"))
    found = bench["attempt"](family, tmp_path)
    assert found.holds
    cells = rows()[family]
    assert [f"`{found.model_type}`", found.attention] == cells[:2] and cells[4] == "trained" and cells[6] == "equal"


def test_a_gap_beyond_the_bounds_is_bold() -> None:
    bench = runpy.run_path(str(ROOT / "bench" / "models.py"))
    found = bench["Tried"]("a", "b", "full", 2e-4, 1e-5, float("nan"), 1e-6, False)
    assert not found.holds
    assert bench["row"](found) == "| a | `b` | full | **2e-04** | 1e-05 | **not finite** | 1e-06 | **differs** |"
