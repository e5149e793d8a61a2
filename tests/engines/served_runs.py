"""What tests of whole runs with servers of vLLM hold a run against."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from tests.runs import metrics

from strop.run.folder import RunFolder


def check_record(run: Path, max_lag: int, steps: int) -> list[dict[str, Any]]:
    """Every step was trained, each group once, none older than it may be; the rows of the metrics."""
    rows = [row for row in metrics(run) if "version" in row]
    assert [row["version"] for row in rows] == [float(step) for step in range(1, steps + 1)]
    assert max(row["lag/max"] for row in rows) <= max_lag
    folder = RunFolder.open(run)
    assert folder.rollout_steps() == list(range(1, steps + 1))
    taken = [{row["ticket"] for row in folder.read_rollouts(step)} for step in folder.rollout_steps()]
    assert sum(map(len, taken)) == len(set(itertools.chain(*taken)))
    return rows
