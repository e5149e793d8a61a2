"""A picture of alternatives: seconds an update with their bounds, and who stands idle. Drawn by matplotlib, lazily."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strop.base.files import replacing
from strop.lab.planning.simulate import Simulation
from strop.report.plots import BLUE, GREY, ORANGE


def plot_plans(plans: Sequence[Simulation], bounds: Sequence[float], target: Path) -> Path:
    """Write a PNG: a bar of seconds per update for each plan, a line at its bound, and idle shares beside it."""
    # The canvas is made directly: pyplot would keep global state and might look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 1.4 + 0.42 * len(plans)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    places = range(len(plans))
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
    for axes, columns in ((left, 1), (right, 2)):
        # Above the axes, where there is never a bar.
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    with replacing(target) as temporary:
        figure.savefig(temporary, format="png")
    return target


def label(plan: Simulation) -> str:
    """`PipelineRL-8, 60 + 20`: generators and trainers; `(shared)` where they take turns on the same devices."""
    setup = plan.setup
    split = f"{setup.devices} (shared)" if setup.colocated else f"{setup.generators} + {setup.trainers}"
    return f"{setup.name}, {split}"
