"""The training curves of one or several runs, each metric a chart against the step.

One run has a colour for each metric; several runs have a colour each, and a dash for each metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from strop.base.types import InputError
from strop.report.curves import GROUPS, Curves, Scale, main_curves
from strop.report.drawing import (
    DASHES,
    MUTED,
    ON_COLOR,
    SERIES,
    Chart,
    Dash,
    Draw,
    log_axis,
    number_axis,
    percent_axis,
    step_axis,
    write_panels,
)
from strop.report.runs import COMBINED, RunData, Series, plain, read_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# A curve with more points than these is smoothed, and thinned.
SMOOTH_FROM, SHOWN_POINTS = 30, 1500
CLEAR = 0.03  # of the height: the distance of a curve at 0 or 100 % from the frame
PARTS = (
    ("rollout", "t_R generation", SERIES[0]),
    ("update", "t_T training", SERIES[1]),
    ("verify", "t_O verification", SERIES[2]),
    ("other", "t_O all else", SERIES[8]),
    ("evaluation", "evaluation", SERIES[3]),
    ("checkpoint", "checkpoints", SERIES[6]),
)
def plot_run(run: Path, target: Path | None = None) -> Path:
    """Draw the most important curves of a run folder as one PNG, `plots/training.png` unless `target` is given.

    Raises:
        InputError: there is no metric to draw yet.
    """
    wanted = {*(curves.key for curves in main_curves()), "benchmarks"}
    charts = [chart for _, group in training_charts(read_runs([run])) for chart in group if chart.key in wanted]
    panels = [(chart.title, chart.draw) for chart in charts]
    if not panels:
        raise InputError(f"{run}: metrics.jsonl holds nothing to draw yet; let the run make a step first")
    return write_panels(target if target is not None else run / "plots" / "training.png", run.name, panels)


def training_charts(runs: Sequence[RunData]) -> list[tuple[str, list[Chart]]]:
    """Every chart for which the runs have metrics, under its heading."""
    special = {"Learning": (_benchmarks, _against_compute, _domains), "Time and compute": (_time,)}
    found = []
    for heading, group in GROUPS.items():
        charts = [curves_chart(each, runs) for each in group if _state(each, runs) == "drawn"]
        charts += [chart for make in special.get(heading, ()) for chart in make(runs)]
        if charts:
            found.append((heading, charts))
    return found


def not_drawn(runs: Sequence[RunData]) -> tuple[list[str], list[str]]:
    """The titles of the charts that no run has a metric for, and of those whose metrics are 0 at every step."""
    every = [(_state(each, runs), each.title) for group in GROUPS.values() for each in group]
    absent, zero = ([title for state, title in every if state == wanted] for wanted in ("absent", "zero"))
    return absent, zero


def _state(curves: Curves, runs: Sequence[RunData]) -> Literal["drawn", "absent", "zero"]:
    """Whether a chart is drawn; pass rates, which have an error, are drawn even if all are 0."""
    values = [value for run in runs for metric in curves.lines for value in run.series(metric)[1]]
    return "drawn" if any(values) or (values and curves.error) else "zero" if values else "absent"


# ---------------------------------------------------------------------- metrics against the step


def curves_chart(curves: Curves, runs: Sequence[RunData]) -> Chart:
    """The chart of metrics against the step."""
    several = len(runs) > 1

    def draw(axes: Axes) -> None:
        for place, run in enumerate(runs):
            for number, (metric, label) in enumerate(curves.lines.items()):
                series = run.series(metric)
                color = SERIES[(place if several else number) % len(SERIES)]
                # Only one of several metrics may be known; the label says which.
                named = label if len(curves.lines) > 1 and not several else ""
                _line(axes, series, color, DASHES[number % len(DASHES)] if several else "-", named)
                errors = {} if number or curves.error is None else run.by_step(curves.error)
                if errors:
                    _band(axes, *series, errors, series[0], color)
        if several:
            _label_runs(axes, curves, runs)
        _scale(axes, curves.scale)
        step_axis(axes)

    return Chart(curves.key, curves.title, curves.caption, draw)


def _band(
    axes: Axes, x: Sequence[float], values: Sequence[float], errors: Mapping[int, float], steps: Sequence[int],
    color: str,
) -> None:  # fmt: skip
    """One standard error either side of the values at `steps`, drawn at `x`."""
    spread, mean = np.array([errors.get(step, 0.0) for step in steps]), np.array(values)
    axes.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.2, linewidth=0)


def _label_runs(axes: Axes, curves: Curves, runs: Sequence[RunData]) -> None:
    """Label the colour of each run, then the dash of each metric where there are several."""
    for place, run in enumerate(runs):
        if any(run.series(metric)[0] for metric in curves.lines):
            axes.plot([], [], color=SERIES[place % len(SERIES)], linewidth=3.0, label=run.short)
    for number, (metric, label) in enumerate(curves.lines.items()):
        if len(curves.lines) > 1 and any(run.series(metric)[0] for run in runs):
            axes.plot([], [], color=MUTED, linewidth=1.4, linestyle=DASHES[number % len(DASHES)], label=label)


def _line(axes: Axes, series: Series, color: str, dash: Dash, label: str) -> None:
    """One curve; a long one is drawn faint with its moving average over it."""
    steps, values = series
    if not steps:
        return
    if len(steps) < SMOOTH_FROM:
        axes.plot(steps, values, color=color, linewidth=1.7, linestyle=dash, marker="o", markersize=2.4, label=label)
        return
    every = max(1, len(steps) // SHOWN_POINTS)
    even = smooth(values, max(5, len(values) // 20))
    axes.plot(steps[::every], values[::every], color=color, linewidth=0.8, alpha=0.3)
    axes.plot(steps[::every], even[::every], color=color, linewidth=1.8, linestyle=dash, label=label)


def smooth(values: Sequence[float], width: int) -> list[float]:
    """A centred moving average over `width` points, narrower at the ends."""
    half = width // 2
    windows = [values[max(0, place - half) : place + half + 1] for place in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def _scale(axes: Axes, scale: Scale) -> None:
    """Limits and ticks of the y axis; a curve at 0 or at 100 % keeps clear of the frame."""
    low, high = axes.get_ylim()
    if scale == "percent":
        top = min(max(high, low + 0.02), 1 + CLEAR)
        axes.set_ylim(max(low, -CLEAR * top), top)
        percent_axis(axes)
        return
    number_axis(axes)
    if scale == "zero":
        top = max(1.03 * high, 1e-12)
        axes.set_ylim(-CLEAR * top, top)
    elif scale == "log":
        values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()])
        if values.min() > 0 and values.max() / values.min() > 20:
            axes.set_ylim(values.min() / 1.3, values.max() * 1.3)
            log_axis(axes)
        elif values.min() > 0.9 and values.max() < 1.1:
            # Strict on-policy ratios differ from 1 by rounding only; a hundredth either side keeps that in proportion.
            axes.set_ylim(min(values.min(), 0.99), max(values.max(), 1.01))


# ---------------------------------------------------------------------- those with their own shape


def _benchmarks(runs: Sequence[RunData]) -> Iterator[Chart]:
    """The pass rate of each benchmark that was measured in training; all of them in one chart."""
    names = sorted({name for run in runs for name in run.benchmarks})
    if names:
        lines = {f"evaluation/{name}/pass_rate": plain(name, 20) for name in names}
        lines |= {COMBINED: "mean"} if any(run.by_step(COMBINED) for run in runs) else {}
        caption = "Mean over problems and samples, measured as the run measures its held-out problems."
        yield curves_chart(Curves("benchmarks", "Benchmarks in training", lines, "percent", caption), runs)


def _against_compute(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Held-out pass rate against device-hours, the x-axis by which recipes are compared."""
    curves: list[tuple[RunData, list[int], list[float], list[float]]] = []
    for run in runs:
        spent = run.by_step("compute/device_seconds") | {0: 0.0}
        kept = [(step, rate) for step, rate in run.by_step("evaluation/pass_rate").items() if step in spent]
        if len(kept) > 1:
            steps = [step for step, _ in kept]
            curves.append((run, steps, [spent[step] / 3600 for step in steps], [rate for _, rate in kept]))
    if not curves:
        return

    def draw(axes: Axes) -> None:
        for run, steps, hours, values in curves:
            color = SERIES[list(runs).index(run) % len(SERIES)]
            _band(axes, hours, values, run.by_step("evaluation/stderr"), steps, color)
            axes.plot(hours, values, color=color, linewidth=1.7, marker="o", markersize=3,
                      label=run.short if len(runs) > 1 else "")  # fmt: skip
        _scale(axes, "percent")
        axes.set_xlabel("device-hours")
        axes.set_xlim(left=0.0)

    caption = "Device-hours of training without evaluations; the band is one standard error."
    yield Chart("pass-rate-by-compute", "Held-out pass rate by compute", caption, draw)


def _domains(runs: Sequence[RunData]) -> Iterator[Chart]:
    """The pass rate of each domain, where there are several."""
    for prefix, key, title in (
        ("evaluation/pass_rate/", "held-out-domains", "Held-out pass rate by domain"),
        ("pass_rate/", "training-domains", "Training pass rate by domain"),
    ):
        names = sorted({name for run in runs for row in run.rows for name in row if name.startswith(prefix)})
        lines = {name: plain(name.removeprefix(prefix), 20) for name in names if name != "pass_rate/whole"}
        if len(lines) > 1:
            yield curves_chart(Curves(key, title, lines, "percent"), runs)


def _time(runs: Sequence[RunData]) -> Iterator[Chart]:
    """The share of each part of a step, as one bar per run."""
    shown = [run for run in runs if run.series("seconds/step")[0]]
    if shown:
        caption = "Shares of all steps and evaluations together."
        yield Chart("time-shares", "Where the time goes", caption, _time_bars(shown))


def time_shares(run: RunData) -> dict[str, float]:
    """The share of each part in the seconds of all steps and evaluations."""
    total = run.seconds or 1.0
    return {name: sum(run.series(f"seconds/{name}")[1]) / total for name, _, _ in PARTS}


def _time_bars(runs: Sequence[RunData]) -> Draw:
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
        percent_axis(axes, "x")

    return draw
