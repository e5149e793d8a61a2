"""The report of a preparation in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.base.view import counted, markdown_table
from strop.prepare.config import PrepareConfig

NUMBERS = ("in", "out", "seconds")


def step_table(report: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """One row a step: name, in, out, seconds, and why problems were dropped."""
    rows = []
    for step in report["steps"]:
        seconds = "done before" if step["resumed"] else f"{step['seconds']:.1f}"
        reasons = _reasons(step["held_out"], step["reasons"])
        rows.append((step["step"], f"{step['in']:,}", f"{step['out']:,}", seconds, reasons))
    return rows


def unread(report: Mapping[str, Any]) -> list[str]:
    """A line for every source of which rows, or all of them, could not be read, and for one that gave nothing."""
    lines = []
    for source in report["steps"][0]["counts"]["sources"]:
        name, broken, count = source["source"], source["broken"], source["broken"] + source["problems"]
        if broken:
            read = f"{'none' if broken == count else f'only {count - broken:,}'} of {counted(count, 'rows')}"
            first = report["by_source"][name]["first_broken"]
            lines.append(f"source {name}: {read} could be read; the first broken one is {first}")
        elif not count:
            lines.append(f"source {name}: it has no row, or none that its `where` wants")
    return lines


def _source_rows(report: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """One row a source: name, in, out, and why rows were dropped; where one could not be read, the first such row."""
    rows = []
    for name, counts in report["by_source"].items():
        reasons = _reasons(counts["held_out"], counts["dropped"])
        first = f"; the first that cannot be read is {counts['first_broken']}" if "first_broken" in counts else ""
        rows.append((name, f"{counts['in']:,}", f"{counts['out']:,}", reasons + first))
    return rows


def _reasons(held_out: int, dropped: Mapping[str, int]) -> str:
    reasons = {**({"held out": held_out} if held_out else {}), **dropped}
    return ", ".join(f"{reason}: {count:,}" for reason, count in reasons.items())


def markdown(report: Mapping[str, Any], config: PrepareConfig) -> str:
    """The whole report."""
    parts = [
        "# The preparation of the problems",
        f"{report['problems_in']:,} came in, {report['problems_out']:,} are in train.parquet, {report['validation']:,} "
        f"in validation.parquet, {report['dropped']:,} were dropped (dropped.parquet has each with its reason).",
        markdown_table(("step", "in", "out", "seconds", "dropped because"), step_table(report), NUMBERS),
        "## By source, in the order of priority",
        markdown_table(("source", "in", "out", "dropped because"), _source_rows(report), NUMBERS),
    ]
    figures = [
        (step["step"], name.replace("_", " "), _written(value))
        for step in report["steps"]
        for name, value in step["counts"].items()
        if name != "sources"
    ]
    if figures:
        parts += ["## Figures of the steps", markdown_table(("step", "", ""), figures)]
    parts += [
        "## How",
        f"seed {config.seed}, broken rows: {config.broken_rows}. config.json holds every setting; the same "
        "configuration gives the same files.",
    ]
    return "\n\n".join(parts) + "\n"


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_written(entry)}" for name, entry in value.items()) or "none"
    if isinstance(value, list):
        return " ".join(_written(entry) for entry in value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
