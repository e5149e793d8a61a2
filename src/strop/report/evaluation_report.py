"""What an evaluation leaves behind for people: report.md, results.json and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.base.files import replacing
from strop.base.near import nearest
from strop.base.types import InputError
from strop.evaluation.grid import (
    AVERAGE,
    CHOSEN_ON_TEST,
    Grid,
    as_json,
    compare,
    comparison_table,
    details,
    table,
)
from strop.evaluation.sample_store import write_json

REPORT, RESULTS, PLOTS = "report.md", "results.json", "plots"


def write_report(
    grid: Grid,
    out: Path,
    metrics: Sequence[str] = ("avg",),
    baseline: str | None = None,
    averages: Mapping[str, Sequence[str]] | None = None,
    pictures: bool = True,
    budgets: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Write report.md, results.json and plots/ into `out`; the results as JSON-able numbers.

    Args:
        grid: the evaluations.
        out: a folder.
        metrics: columns of the table, such as `avg`, `pass`, `maj@8`.
        baseline: the model that others are compared with; the first by default.
        averages: benchmarks of each named average; by default one over all benchmarks that every model has.
        pictures: whether to draw; their paths are then in the result under `pictures`.
        budgets: response budgets of the curves, in tokens; by default eight up to the one sampled with.

    Raises:
        InputError: an unknown baseline or benchmark, or a metric that there are too few samples for.
    """
    first = grid.models[0] if baseline is None else baseline
    if first not in grid.models:
        raise InputError(f"--baseline {first}: no such model; {nearest(first, grid.models)}")
    chosen = averages if averages else _default_averages(grid)
    value = as_json(grid, metrics, first if len(grid.models) > 1 else None, chosen)
    text = _markdown(grid, metrics, first, value)
    with replacing(out / REPORT) as temporary:
        temporary.write_text(text, "utf-8")
    write_json(out / RESULTS, value)
    if pictures:
        from strop.report.figures.evaluation import draw_all

        value["pictures"] = [str(path) for path in draw_all(grid, out / PLOTS, first, budgets)]
    return value


def parse_average(text: str) -> tuple[str, tuple[str, ...]]:
    """`math=aime24,aime25` as its name and its benchmarks.

    Raises:
        InputError: it is not written so.
    """
    name, equals, names = text.partition("=")
    benchmarks = tuple(part.strip() for part in names.split(",") if part.strip())
    if not equals or not name.strip() or not benchmarks:
        raise InputError(f"--average {text}: write NAME=BENCHMARK,BENCHMARK, such as math=aime24,aime25")
    return name.strip(), benchmarks


def best_lines(value: Mapping[str, Any]) -> list[str]:
    """A line for the best model of each average, with the warning that it was chosen on the test sets."""
    lines = []
    for name, average in value["averages"].items():
        best = average["best"]
        found = average["values"][best]
        low, high = found["interval"]
        lines.append(
            f"best by {name} of {', '.join(average['benchmarks'])}: {best}, {100 * found['value']:.1f} "
            f"[{100 * low:.1f}, {100 * high:.1f}]; {CHOSEN_ON_TEST}"
        )
    return lines


def _default_averages(grid: Grid) -> dict[str, tuple[str, ...]]:
    shared = grid.shared(grid.models)
    return {AVERAGE: shared} if len(grid.models) > 1 and shared else {}


def _markdown(grid: Grid, metrics: Sequence[str], baseline: str, value: Mapping[str, Any]) -> str:
    parts = ["# Evaluation", table(grid, metrics), *grid.notes(), "## In detail", details(grid)]
    others = [model for model in grid.models if model != baseline and grid.shared((baseline, model))]
    if others:
        rows = [row for model in others for row in compare(grid, baseline, model)]
        note = "Gains in points on the same problems; intervals and p-values are over problems, paired."
        parts += ["## Compared", comparison_table(rows, grid), note]
    lines = best_lines(value)
    if lines:
        parts += ["## Best", *lines]
    return "\n\n".join(parts) + "\n"
