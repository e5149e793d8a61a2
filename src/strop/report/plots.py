"""Pictures of a run, drawn from metrics.jsonl alone. matplotlib is imported only when a picture is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from strop.base.files import replacing
from strop.base.metrics_file import read_metrics
from strop.base.types import InputError
from strop.base.view import benchmark_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[dict[str, float | None]]
Series = tuple[list[float], list[float]]
Panel = tuple[Callable[["Axes", Rows], None], tuple[str, ...]]

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#2864a8", "#d9822b", "#3a8f5c", "#c0392b", "#7d5ba6", "#8a8f98"
COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE, GREY)
SMOOTH_FROM = 30
SECONDS = (("rollout", BLUE), ("verify", PURPLE), ("update", GREEN), ("evaluation", ORANGE), ("other", GREY))


def plot_run(run: Path, target: Path | None = None) -> Path:
    """Draw the training curves of a run folder as one PNG, `plots/training.png` unless `target` is given.

    Panels whose metrics the run does not have are left out.

    Raises:
        InputError: there is no metric to draw yet.
    """
    rows = read_metrics(run / "metrics.jsonl")
    panels = [draw for draw, names in PANELS if any(points(rows, name)[0] for name in names)]
    if benchmarks(rows):
        panels.insert(1, _draw_benchmarks)
    if not panels:
        raise InputError(f"{run}: metrics.jsonl holds nothing to draw yet; let the run make a step first")
    return _save(panels, rows, run.name, target if target is not None else run / "plots" / "training.png")


def points(rows: Rows, name: str) -> Series:
    """The finite values of a metric against the step; of several lines of one step the last counts."""
    found: dict[float, float] = {}
    for row in rows:
        step, value = row.get("step"), row.get(name)
        if step is not None and value is not None and math.isfinite(value):
            found[step] = value
    steps = sorted(found)
    return steps, [found[step] for step in steps]


def smooth(values: Sequence[float], width: int) -> list[float]:
    """A centred moving average over `width` points, narrower at the ends."""
    half = width // 2
    return [
        sum(values[max(0, i - half) : i + half + 1]) / len(values[max(0, i - half) : i + half + 1])
        for i in range(len(values))
    ]


# ---------------------------------------------------------------------- what all pictures share

INK, GRID = "#30343a", "#e3e6ea"


def canvas(width: float, height: float, dpi: int = 200) -> Figure:
    """An empty figure of so many inches, without pyplot, which would keep global state and might look for a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def bare(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """A faint grid behind what is drawn, and no frame at the top and at the right."""
    axes.grid(True, which="major", axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def save_both(figure: Figure, target: Path) -> tuple[Path, Path]:
    """Write `target` as PNG and as SVG, whatever its ending; what was drawn alike gives the same files."""
    from matplotlib import rc_context

    png, svg = target.with_suffix(".png"), target.with_suffix(".svg")
    with rc_context({"svg.hashsalt": "strop", "svg.fonttype": "none"}):
        with replacing(png) as temporary:
            figure.savefig(temporary, format="png")
        with replacing(svg) as temporary:
            figure.savefig(temporary, format="svg", metadata={"Date": None})
    return png, svg


def tick(value: float, place: object = None) -> str:
    """A number beside an axis: `500`, `2k`, `50k`, `1.5M`."""
    for limit, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{sign}"
    return f"{value:g}"


# ---------------------------------------------------------------------- the training curves


def _save(panels: Sequence[Callable[[Axes, Rows], None]], rows: Rows, title: str, target: Path) -> Path:
    columns = min(3, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = canvas(4.6 * columns, 3.3 * lines + 0.4, dpi=150)
    figure.suptitle(title, fontsize=13, fontweight="bold")
    for place, draw in enumerate(panels, start=1):
        axes = figure.add_subplot(lines, columns, place)
        draw(axes, rows)
        _tidy(axes)
    with replacing(target) as temporary:
        figure.savefig(temporary, format="png")
    return target


def _tidy(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    axes.set_xlabel("step", fontsize=9)
    bare(axes)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize=8, frameon=False, loc="best")


def _line(axes: Axes, rows: Rows, name: str, label: str, color: str) -> None:
    """One curve; a long one is drawn faint with its moving average over it."""
    steps, values = points(rows, name)
    if not steps:
        return
    if len(steps) < SMOOTH_FROM:
        axes.plot(steps, values, color=color, linewidth=1.8, marker="o", markersize=2.5, label=label)
        return
    axes.plot(steps, values, color=color, linewidth=0.8, alpha=0.3)
    axes.plot(steps, smooth(values, max(5, len(values) // 20)), color=color, linewidth=1.8, label=label)


def percent_tick(share: float, place: object = None) -> str:
    """A share as its percentage, with the decimals that it has: ticks lie at 42.5 % too."""
    return f"{round(100 * share, 6) + 0.0:g}%"


def _as_percent(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(percent_tick)


def _logarithmic(axes: Axes) -> None:
    """A logarithmic axis whose ticks read 0.5, 1, 2 instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=10.5, loc="left")


def _draw_pass_rate(axes: Axes, rows: Rows) -> None:
    _line(axes, rows, "pass_rate", "training", BLUE)
    steps, values = points(rows, "evaluation/pass_rate")
    if steps:
        errors = dict(zip(*points(rows, "evaluation/stderr"), strict=True))
        bars = [1.96 * errors.get(step, 0.0) for step in steps]
        axes.errorbar(
            steps, values, yerr=bars, color=ORANGE, linewidth=1.2, marker="D", markersize=5, capsize=3,
            label="held-out (95 %)",
        )  # fmt: skip
    axes.set_ylim(-0.02, 1.02)
    _as_percent(axes)
    _title(axes, "Pass rate")


def benchmarks(rows: Rows) -> list[str]:
    """The names of the benchmarks that were measured in training."""
    return sorted({name for row in rows for name in benchmark_rates(row)})


def _draw_benchmarks(axes: Axes, rows: Rows) -> None:
    for place, name in enumerate(benchmarks(rows)):
        _line(axes, rows, f"evaluation/{name}/pass_rate", name, COLORS[place % len(COLORS)])
    axes.set_ylim(-0.02, 1.02)
    _as_percent(axes)
    _title(axes, "Benchmarks")


def _draw_reward(axes: Axes, rows: Rows) -> None:
    _line(axes, rows, "reward/mean", "reward", BLUE)
    _title(axes, "Mean reward")


def _draw_loss(axes: Axes, rows: Rows) -> None:
    _line(axes, rows, "loss", "loss", BLUE)
    _title(axes, "Loss")


def _draw_entropy(axes: Axes, rows: Rows) -> None:
    _line(axes, rows, "entropy", "training", PURPLE)
    _line(axes, rows, "evaluation/entropy", "held-out", ORANGE)
    axes.set_ylim(bottom=0)
    _title(axes, "Entropy (nats a token)")


def _draw_length(axes: Axes, rows: Rows) -> None:
    _line(axes, rows, "length/mean", "length", GREEN)
    _title(axes, "Completion length (tokens)")


def _draw_shares(axes: Axes, rows: Rows) -> None:
    _line(axes, rows, "truncation_rate", "truncated completions", RED)
    _line(axes, rows, "groups/zero_variance_share", "zero-variance groups", GREY)
    axes.set_ylim(-0.02, 1.02)
    _as_percent(axes)
    _title(axes, "Truncation and groups without signal")


def _draw_ratio(axes: Axes, rows: Rows) -> None:
    """Extremes and mean of the importance ratio; a logarithmic axis once they lie far apart."""
    _line(axes, rows, "ratio/max", "largest", RED)
    _line(axes, rows, "ratio/mean", "mean", BLUE)
    _line(axes, rows, "ratio/min", "smallest", GREEN)
    lowest, highest = points(rows, "ratio/min")[1], points(rows, "ratio/max")[1]
    if lowest and highest and min(lowest) > 0 and max(highest) / min(lowest) > 20:
        _logarithmic(axes)
    elif lowest and highest:
        # Strict on-policy ratios differ from 1 by rounding alone; a hundredth either side keeps that in proportion.
        axes.set_ylim(min(*lowest, 0.99), max(*highest, 1.01))
    _title(axes, "Importance ratio")


def _draw_seconds(axes: Axes, rows: Rows) -> None:
    """Seconds of a step, stacked by part."""
    found = [(label, color, points(rows, f"seconds/{label}")) for label, color in SECONDS]
    found = [(label, color, series) for label, color, series in found if series[0]]
    steps = sorted(set[float]().union(*(series[0] for _, _, series in found)))
    layers = []
    for _, _, series in found:
        by_step = dict(zip(*series, strict=True))
        layers.append([by_step.get(step, 0.0) for step in steps])
    axes.stackplot(
        steps, *layers, labels=[label for label, _, _ in found], colors=[color for _, color, _ in found], alpha=0.85
    )
    axes.set_ylim(bottom=0)
    _title(axes, "Seconds a step")


def _draw_gradient(axes: Axes, rows: Rows) -> None:
    _line(axes, rows, "grad_norm", "gradient norm", BLUE)
    axes.set_ylim(bottom=0)
    _title(axes, "Gradient norm")


# Each panel with the metrics of which it needs one at least.
PANELS: tuple[Panel, ...] = (
    (_draw_pass_rate, ("pass_rate", "evaluation/pass_rate")),
    (_draw_reward, ("reward/mean",)),
    (_draw_entropy, ("entropy",)),
    (_draw_length, ("length/mean",)),
    (_draw_shares, ("truncation_rate", "groups/zero_variance_share")),
    (_draw_ratio, ("ratio/mean", "ratio/max")),
    (_draw_loss, ("loss",)),
    (_draw_gradient, ("grad_norm",)),
    (_draw_seconds, tuple(f"seconds/{label}" for label, _ in SECONDS)),
)
