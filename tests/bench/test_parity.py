"""bench/parity.py: its judgement of a difference, and docs/parity.md, which is what it last found."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bench() -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        return runpy.run_path(str(ROOT / "bench" / "parity.py"))
    finally:
        sys.path.remove(str(ROOT / "bench"))


def test_the_page_has_every_case_and_explains_what_differs(bench: dict[str, Any]):
    rows = [line.split(" | ") for line in (ROOT / "docs" / "parity.md").read_text().splitlines() if "`" in line]
    rows = [row for row in rows if len(row) == 3]
    assert [(row[0][2:], row[1]) for row in rows] == [
        (case.name, f"{case.peer} `{case.theirs}`") for case in bench["CASES"]
    ]
    assert len(rows) >= 25
    for row, case in zip(rows, bench["CASES"], strict=True):
        assert float(row[2].split()[0]) <= bench["TOLERANCE"]
        assert (case.converted is None) == (case.why == "") == ("once converted" not in row[2])


@pytest.mark.parametrize("place", range(3))
def test_a_planted_difference_is_unexplained(bench: dict[str, Any], place: int):
    """One element of the peer's gradient is off by 2e-6."""
    batch, case = bench["Batch"].drawn(), bench["CASES"][place]
    theirs = {name: np.array(value).tolist() for name, value in case.ours(batch).items()}
    assert not bench["compared"](case, batch, theirs).unexplained
    theirs["gradient"][0][place] += 2e-6
    assert bench["compared"](case, batch, theirs).unexplained


def test_every_case_has_a_gradient_or_a_value_to_compare(bench: dict[str, Any]):
    batch = bench["Batch"].drawn()
    for case in bench["CASES"]:
        for name, value in case.ours(batch).items():
            assert np.isfinite(value).all() and np.any(value != 0), f"{case.name}: {name}"


def test_a_conversion_that_is_not_needed_is_a_fault(bench: dict[str, Any]):
    batch = bench["Batch"].drawn()
    case = next(case for case in bench["CASES"] if case.converted is not None)
    ours = {name: value.tolist() for name, value in case.ours(batch).items()}
    assert bench["compared"](case, batch, ours).unexplained
