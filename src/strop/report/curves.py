"""The curves of a report: which metrics make a picture, and how one or several runs are drawn into it.

One run has a colour for each metric; several runs have a colour each, and a dash for each metric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from strop.report.catalogue import GROUPS, Curves, Line, Scale
from strop.report.pictures import (
    DASHES,
    MUTED,
    ON_COLOR,
    SERIES,
    Dash,
    Picture,
    Studio,
    as_percent,
    by_step,
    legend,
    logarithmic,
    plainly,
)
from strop.report.plots import SMOOTH_FROM, Series, benchmarks, points, smooth
from strop.report.runs import RunData
from strop.report.texts import plain

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

SHOWN_POINTS = 1500  # of a curve; a longer one is thinned
PARTS = (
    ("rollout", "t_R generation", SERIES[0]),
    ("update", "t_T training", SERIES[1]),
    ("verify", "t_O verification", SERIES[2]),
    ("other", "t_O all else", SERIES[8]),
    ("evaluation", "evaluation", SERIES[3]),
    ("checkpoint", "checkpoints", SERIES[6]),
)
SOLVED = (
    ("none", "none"),
    ("to_25", "to 25 %"),
    ("to_50", "to 50 %"),
    ("to_75", "to 75 %"),
    ("most", "most"),
    ("all", "all"),
)
SOLVED_COLORS = (SERIES[4], SERIES[6], SERIES[1], SERIES[8], SERIES[5], SERIES[2])


# ---------------------------------------------------------------------- all of them


def draw_groups(runs: Sequence[RunData], studio: Studio) -> list[tuple[str, list[Picture]]]:
    """Every picture that the runs have the metrics for, under its heading."""
    found: list[tuple[str, list[Picture]]] = []
    for heading, group in GROUPS:
        pictures = [draw_curves(each, runs, studio) for each in group if _values(each, runs).any()]
        extra = {
            "Learning": [_held_out, _benchmarks, _against_compute, _domains], "Exploration": [_solved],
            "Time and compute": [_time],
        }.get(heading, [])  # fmt: skip
        special = [picture for draw in extra for picture in draw(runs, studio)]
        if pictures or special:
            found.append((heading, [*special, *pictures]))
    return found


def not_drawn(runs: Sequence[RunData]) -> tuple[list[str], list[str]]:
    """The titles of the pictures that no run has a metric for, and of those whose metrics are 0 at every step."""
    every = [(each.title, _values(each, runs)) for _, group in GROUPS for each in group]
    absent = [title for title, values in every if not len(values)]
    return absent, [title for title, values in every if len(values) and not values.any()]


def _values(curves: Curves, runs: Sequence[RunData]) -> NDArray[np.float64]:
    found = [points(run.rows, line.metric)[1] for run in runs for line in curves.lines]
    return np.array([value for values in found for value in values])


def draw_curves(curves: Curves, runs: Sequence[RunData], studio: Studio) -> Picture:
    """One picture of metrics against the step."""

    several = len(runs) > 1

    def draw(axes: Axes) -> None:
        for place, run in enumerate(runs):
            for number, line in enumerate(curves.lines):
                series = points(run.rows, line.metric)
                if series[0]:
                    color = SERIES[(place if several else number) % len(SERIES)]
                    _line(axes, series, color, DASHES[number % len(DASHES)] if several else "-", line.label)
        _scale(axes, curves.scale)
        by_step(axes)
        # Of several metrics one alone may be known: without a legend nobody could tell which.
        alone = axes.get_legend_handles_labels()[0] if len(curves.lines) > 1 else None
        legend(axes, _entries(curves, runs) if several else alone)

    return studio.picture(curves.key, curves.title, curves.caption, draw)


def _entries(curves: Curves, runs: Sequence[RunData]) -> list[Artist]:
    """What the legend of several runs says: the colour of each run, then the dash of each metric."""
    from matplotlib.lines import Line2D

    found: list[Artist] = [
        Line2D([], [], color=SERIES[place % len(SERIES)], linewidth=3.0, label=run.short)
        for place, run in enumerate(runs)
        if any(points(run.rows, line.metric)[0] for line in curves.lines)
    ]
    dashes: list[Artist] = [
        Line2D([], [], color=MUTED, linewidth=1.4, linestyle=DASHES[number % len(DASHES)], label=line.label)
        for number, line in enumerate(curves.lines)
        if any(points(run.rows, line.metric)[0] for run in runs)
    ]
    return found + (dashes if len(curves.lines) > 1 else [])


def _line(axes: Axes, series: Series, color: str, dash: Dash, label: str) -> None:
    """One curve; a long one is drawn faint with its moving average over it."""
    steps, values = series
    if len(steps) < SMOOTH_FROM:
        axes.plot(steps, values, color=color, linewidth=1.7, linestyle=dash, marker="o", markersize=2.4, label=label)
        return
    every = max(1, len(steps) // SHOWN_POINTS)
    even = smooth(values, max(5, len(values) // 20))
    axes.plot(steps[::every], values[::every], color=color, linewidth=0.8, alpha=0.3)
    axes.plot(steps[::every], even[::every], color=color, linewidth=1.8, linestyle=dash, label=label)


def _scale(axes: Axes, scale: Scale) -> None:
    low, high = axes.get_ylim()
    if scale == "percent":
        axes.set_ylim(max(low, -0.01 * high), min(max(high, low + 0.02), 1.02))
        as_percent(axes)
        return
    plainly(axes)
    if scale == "zero":
        axes.set_ylim(0.0, max(high, 1e-12))
    elif scale == "log":
        values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()])
        if values.min() > 0 and values.max() / values.min() > 20:
            axes.set_ylim(values.min() / 1.3, values.max() * 1.3)
            logarithmic(axes)
        elif values.min() > 0.9 and values.max() < 1.1:
            # Strict on-policy ratios differ from 1 by rounding alone; a hundredth either side keeps that in proportion.
            axes.set_ylim(min(values.min(), 0.99), max(values.max(), 1.01))


# ---------------------------------------------------------------------- those with a shape of their own


def _held_out(runs: Sequence[RunData], studio: Studio) -> list[Picture]:
    """Held-out pass rate with a band of a standard error, against the step."""
    shown = [run for run in runs if points(run.rows, "evaluation/pass_rate")[0]]
    if not shown:
        return []

    def draw(axes: Axes) -> None:
        for run in shown:
            steps, values = points(run.rows, "evaluation/pass_rate")
            _band(axes, run, steps, steps, values, runs)
        if len(runs) == 1:
            steps, values = points(shown[0].rows, "pass_rate")
            axes.plot(steps, values, color=SERIES[0], linewidth=1.0, alpha=0.55, label="training")
        _scale(axes, "percent")
        by_step(axes)
        legend(axes)

    caption = "Mean over problems and samples; the band is a standard error over problems either side."
    return [studio.picture("held-out-pass-rate", "Held-out pass rate", caption, draw)]


def _benchmarks(runs: Sequence[RunData], studio: Studio) -> list[Picture]:
    """The pass rate of each benchmark that was measured in training; all of them in one picture."""
    names = sorted({name for run in runs for name in benchmarks(run.rows)})
    if not names:
        return []
    lines = tuple(Line(f"evaluation/{name}/pass_rate", plain(name, 20)) for name in names)
    caption = "Mean over problems and samples, measured as the run measures its held-out problems."
    return [draw_curves(Curves("benchmarks", "Benchmarks in training", lines, caption, "percent"), runs, studio)]


def _band(
    axes: Axes,
    run: RunData,
    steps: Sequence[float],
    x: Sequence[float],
    values: Sequence[float],
    runs: Sequence[RunData],
) -> None:
    place = list(runs).index(run)
    color = SERIES[place % len(SERIES)] if len(runs) > 1 else SERIES[1]
    errors = dict(zip(*points(run.rows, "evaluation/stderr"), strict=True))
    spread = np.array([errors.get(step, 0.0) for step in steps])
    mean = np.array(values)
    axes.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.2, linewidth=0)
    label = run.short if len(runs) > 1 else "held out"
    axes.plot(x, values, color=color, linewidth=1.7, marker="D", markersize=4.2, label=label)


def _against_compute(runs: Sequence[RunData], studio: Studio) -> list[Picture]:
    """Held-out pass rate against device-hours, the x-axis by which recipes are compared."""
    curves: list[tuple[RunData, list[float], list[float], list[float]]] = []
    for run in runs:
        steps, values = points(run.rows, "evaluation/pass_rate")
        spent = dict(zip(*points(run.rows, "compute/device_seconds"), strict=True)) | {0.0: 0.0}
        kept = [(step, spent[step] / 3600, value) for step, value in zip(steps, values, strict=True) if step in spent]
        if len(kept) > 1:
            columns = [list(column) for column in zip(*kept, strict=True)]
            curves.append((run, columns[0], columns[1], columns[2]))
    if not curves:
        return []

    def draw(axes: Axes) -> None:
        for run, steps, hours, values in curves:
            _band(axes, run, steps, hours, values, runs)
        _scale(axes, "percent")
        axes.set_xlabel("device-hours", fontsize=9)
        axes.set_xlim(left=0.0)
        legend(axes)

    caption = "Device-hours of training, evaluations left out; the band is a standard error."
    return [studio.picture("pass-rate-by-compute", "Held-out pass rate by compute", caption, draw)]


def _domains(runs: Sequence[RunData], studio: Studio) -> list[Picture]:
    """The pass rate of each domain, where there are several."""
    found: list[Picture] = []
    for prefix, key, title in (
        ("evaluation/pass_rate/", "held-out-domains", "Held-out pass rate by domain"),
        ("pass_rate/", "training-domains", "Training pass rate by domain"),
    ):
        names = sorted({name for run in runs for row in run.rows for name in row if name.startswith(prefix)})
        domains = [name for name in names if name != "pass_rate/whole"]
        if len(domains) > 1:
            lines = tuple(Line(name, plain(name.removeprefix(prefix), 20)) for name in domains)
            found.append(draw_curves(Curves(key, title, lines, "", "percent"), runs, studio))
    return found


def _solved(runs: Sequence[RunData], studio: Studio) -> list[Picture]:
    """How many of a group's rollouts are correct, as layers over the steps; for a single run."""
    names = [f"groups/solved_{key}_share" for key, _ in SOLVED]
    if len(runs) != 1 or not points(runs[0].rows, names[0])[0]:
        return []
    steps, layers = _layers(runs[0], names)

    def draw(axes: Axes) -> None:
        axes.stackplot(steps, *layers, labels=[label for _, label in SOLVED], colors=SOLVED_COLORS, alpha=0.85)
        axes.set_ylim(0, 1)
        axes.margins(x=0)
        as_percent(axes)
        by_step(axes)
        legend(axes)

    return [studio.picture("solved", "Groups by correct rollouts", "Share of the groups of a step.", draw)]


def _layers(run: RunData, names: Sequence[str]) -> tuple[list[float], list[list[float]]]:
    series = [points(run.rows, name) for name in names]
    steps = sorted({step for found, _ in series for step in found})
    by_step_ = [dict(zip(*one, strict=True)) for one in series]
    return steps, [[values.get(step, 0.0) for step in steps] for values in by_step_]


def _time(runs: Sequence[RunData], studio: Studio) -> list[Picture]:
    """Where the time of a step went: as bars of every run, and over the steps of a single one."""
    shown = [run for run in runs if points(run.rows, "seconds/step")[0]]
    if not shown:
        return []
    found = [studio.picture("time-shares", "Where the time goes", "Shares of all steps together.", _time_bars(shown))]
    if len(runs) == 1:
        parts = [part for part in PARTS if points(runs[0].rows, f"seconds/{part[0]}")[0]]
        steps, layers = _layers(runs[0], [f"seconds/{name}" for name, _, _ in parts])

        def draw(axes: Axes) -> None:
            colors, labels = [color for _, _, color in parts], [label for _, label, _ in parts]
            axes.stackplot(steps, *layers, labels=labels, colors=colors, alpha=0.85)
            axes.set_ylim(bottom=0)
            axes.margins(x=0)
            by_step(axes)
            legend(axes)

        found.append(studio.picture("seconds", "Seconds of a step", "", draw))
    return found


def time_shares(run: RunData) -> dict[str, float]:
    """The share of each part in the seconds of all steps."""
    total = sum(points(run.rows, "seconds/step")[1]) or 1.0
    return {name: sum(points(run.rows, f"seconds/{name}")[1]) / total for name, _, _ in PARTS}


def _time_bars(runs: Sequence[RunData]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        shares = [time_shares(run) for run in runs]
        left = np.zeros(len(runs))
        for name, label, color in PARTS:
            width = np.array([share[name] for share in shares])
            if width.max() <= 0:
                continue
            axes.barh(range(len(runs)), width, left=left, color=color, alpha=0.9, label=label, height=0.55)
            for place, share in enumerate(width):
                if share > 0.08:
                    axes.text(left[place] + share / 2, place, f"{100 * share:.0f} %", ha="center", va="center",
                              fontsize=9, color=ON_COLOR)  # fmt: skip
            left += width
        axes.set_yticks(range(len(runs)), [run.short if len(runs) > 1 else "" for run in runs])
        axes.set_ylim(len(runs) - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        legend(axes)

    return draw
