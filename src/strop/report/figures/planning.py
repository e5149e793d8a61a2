"""The figure of a plan's alternatives: seconds an update with their bounds, and who stands idle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from strop.lab.planning.simulate import Simulation
from strop.report.figures.writer import BLUE, GREY, ORANGE, percent_axis, style_axes, write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_plans(plans: Sequence[Simulation], bounds: Sequence[float], target: Path) -> Path:
    """Write a PNG: a bar of seconds per update for each plan, a line at its bound, and idle shares next to it."""
    places = range(len(plans))

    def fill(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        left.barh(places, [plan.update_seconds for plan in plans], color=BLUE, height=0.62)
        low, high = [place - 0.42 for place in places], [place + 0.42 for place in places]
        left.vlines(bounds, low, high, color=ORANGE, linewidth=2, label="bound")
        left.set_yticks(list(places), [label(plan) for plan in plans])
        left.invert_yaxis()
        left.set_xlabel("seconds an update")
        trainer, generators = [plan.trainer_idle for plan in plans], [plan.generators_idle for plan in plans]
        right.barh([place - 0.17 for place in places], trainer, 0.32, color=GREY, label="trainer")
        right.barh([place + 0.17 for place in places], generators, 0.32, color=BLUE, label="generators")
        right.set_xlim(0, 1)
        right.set_xlabel("idle share")
        percent_axis(right, "x")
        for axes, columns in ((left, 1), (right, 2)):
            # Above the axes, where there is never a bar.
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, fontsize=8, frameon=False)
            style_axes(axes, "x")

    write_figure(target, (8.4, 1.4 + 0.42 * len(plans)), fill)
    return target


def label(plan: Simulation) -> str:
    """`PipelineRL-8, 60 + 20`: generators and trainers; `(shared)` where they take turns on the same devices."""
    setup = plan.setup
    split = f"{setup.devices} (shared)" if setup.colocated else f"{setup.generators} + {setup.trainers}"
    return f"{setup.name}, {split}"
