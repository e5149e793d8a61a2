"""The figures: every effect with its interval and margin, by unit; and the curves of arms that many claims share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.claims.analysis import Result, Verdict
from bench.claims.claim import Claim
from bench.claims.execute import Curve
from bench.claims.verdicts import finished

from strop.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    add_legend,
    log_axis,
    style_axes,
    write_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS: dict[Verdict, str] = {"agrees": GREEN, "disagrees": RED, "undecided": GREY, "not tried": GREY}
BAND = "#eef1f5"
PANELS = (
    ("Differences of pass rates and shares, points; beyond ±10 the axis is logarithmic", ("pass rate", "share"), 100.0),
    ("Logarithms of ratios", ("log ratio",), 1.0),
    ("Others", ("λ", "nats"), 1.0),
)
NEAR = 10.0  # points: most differences are smaller, and a few are so large that the others would be one dot
POINTS = (-50, -20, -10, -5, 0, 5, 10, 20, 50)
HELD_OUT = (("evaluation/pass_rate", "Held-out pass rate"), ("evaluation/entropy", "Held-out entropy, nats a token"))
SHOWN = (
    ("base", BLUE), ("nsgd4", ORANGE), ("grpo8", GREY), ("opefo", GREEN), ("adaptive", PURPLE), ("bonus_high", RED),
)  # fmt: skip


def draw(claims: Sequence[Claim], results: Mapping[str, Result], target: Path) -> None:
    """A forest plot of what was run, a panel a unit, as PNG."""
    parts = [
        (title, [claim for claim in claims if claim.unit in units and _drawn(results[claim.name])], scale)
        for title, units, scale in PANELS
    ]
    parts = [part for part in parts if part[1]]
    if not parts:
        return

    def fill(figure: Figure) -> None:
        heights = [len(chosen) + 1.5 for _, chosen, _ in parts]
        grid = figure.add_gridspec(len(parts), 1, height_ratios=heights)
        for place, (title, chosen, scale) in enumerate(parts):
            panel(figure.add_subplot(grid[place]), title, chosen, results, scale)

    rows = sum(len(chosen) + 2.5 for _, chosen, _ in parts)
    write_figure(target, (8.6, 0.235 * rows + 0.6), fill, dpi=110)


def _drawn(found: Result) -> bool:
    return found.effect is not None and found.verdict != "not tried"


def panel(axes: Axes, title: str, claims: Sequence[Claim], results: Mapping[str, Result], scale: float) -> None:
    """The claims' effects below one another, with interval, margin and every seed; `scale` 100 for points."""
    axes.axvline(0.0, color=INK, linewidth=0.8)
    for row, claim in enumerate(claims):
        found = results[claim.name]
        assert found.effect is not None
        color = COLORS[found.verdict]
        half = claim.margin * scale
        axes.barh(row, 2 * half, left=-half, height=0.9, color=BAND, zorder=0)
        if found.effect.interval is not None:
            low, high = (value * scale for value in found.effect.interval)
            axes.plot([low, high], [row, row], color=color, linewidth=1.8, solid_capstyle="butt")
        axes.plot([value * scale for value in found.values.values()], [row] * len(found.values), ".", color=color,
                  markersize=3.5, alpha=0.6)  # fmt: skip
        axes.plot(found.effect.value * scale, row, "o", color=color, markersize=5)
    style_axes(axes)
    axes.set_yticks(range(len(claims)), [claim.name for claim in claims], fontsize=8)
    axes.set_ylim(len(claims) - 0.4, -0.6)
    axes.set_title(title, fontsize=9.5, loc="left")
    axes.tick_params(axis="x", labelsize=8)
    if scale > 1:
        axes.set_xscale("symlog", linthresh=NEAR, linscale=1.0)
        axes.set_xticks(POINTS, [f"{points:+d}".replace("-", "−") if points else "0" for points in POINTS])
    _bounded(axes, claims, results, scale)


def _bounded(axes: Axes, claims: Sequence[Claim], results: Mapping[str, Result], scale: float) -> None:
    """Let the values themselves choose the width: an interval of three seeds may be wider than all else."""
    margins = [claim.margin * scale for claim in claims]
    values = [v * scale for claim in claims for v in results[claim.name].values.values()]
    low, high = min([*values, *(-margin for margin in margins)]), max([*values, *margins])
    axes.set_xlim(low - 0.25 * (high - low), high + 0.25 * (high - low))


def draw_curves(out: Path, target: Path) -> None:
    """Held-out pass rate and entropy of the arms that many claims share, mean over seeds with every seed faint.

    Nothing is drawn while one of these arms has no curve.
    """
    curves = {name: list(finished(out, name).values()) for name, _ in SHOWN}
    if not all(curves.values()):
        return

    def fill(figure: Figure) -> None:
        for place, (metric, title) in enumerate(HELD_OUT, 1):
            draw_metric(figure.add_subplot(1, 2, place), curves, metric, title)

    write_figure(target, (8.6, 3.6), fill, dpi=110)


def draw_metric(axes: Axes, curves: Mapping[str, Sequence[Curve]], metric: str, title: str) -> None:
    """One of `HELD_OUT` over the steps. Entropies are compared by their ratio, and one that explodes hides no other."""
    for name, color in SHOWN:
        _mean_curve(axes, curves[name], metric, name, color)
    style_axes(axes)
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
    if metric == "evaluation/entropy":
        log_axis(axes)
    else:
        axes.set_ylim(bottom=0.0)
    add_legend(axes, title, 9.5)


def _mean_curve(axes: Axes, curves: Sequence[Curve], metric: str, label: str, color: str) -> None:
    found = [dict(curve.series(metric)) for curve in curves]
    if not found:
        return
    steps = sorted(found[0])
    for one in found:
        axes.plot(steps, [one[step] for step in steps], color=color, linewidth=0.7, alpha=0.3)
    means = [sum(one[step] for one in found) / len(found) for step in steps]
    axes.plot(steps, means, color=color, linewidth=1.8, label=label)
