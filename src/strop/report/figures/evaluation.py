"""Pictures of a grid of evaluations, one PNG each. matplotlib is imported only when a picture is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from strop.base.files import replacing
from strop.base.types import InputError
from strop.evaluation.curves import budgets_up_to, gains_by_difficulty, paired_rates, rate_by_budget
from strop.evaluation.grid import Column, Grid
from strop.report.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = (GREY, BLUE, ORANGE, GREEN, PURPLE, RED)
STYLES = ("-", "--", ":")
COLUMNS = 3
MOST_TICKS = 12


def draw_all(grid: Grid, folder: Path, baseline: str | None = None, budgets: Sequence[int] | None = None) -> list[Path]:
    """Every picture the grid has data for: budget.png, transfer.png, problems-MODEL.png; their paths.

    Args:
        grid: the evaluations.
        folder: where to write.
        baseline: what models are compared with, problem by problem; by default the first.
        budgets: as in `draw_budgets`.
    """
    first = grid.models[0] if baseline is None else baseline
    written = [draw_budgets(grid, folder / "budget.png", budgets)]
    if len(grid.models) > 1:
        if grid.shared(grid.models):
            written.append(draw_transfer(grid, folder / "transfer.png"))
        for model in grid.models:
            if model != first and grid.shared((first, model)):
                name = "".join(letter if letter.isalnum() or letter in "-.@" else "-" for letter in model)
                written.append(draw_problems(grid, first, model, folder / f"problems-{name}.png"))
    return written


def draw_budgets(grid: Grid, target: Path, budgets: Sequence[int] | None = None) -> Path:
    """avg@N against the response budget, a panel a benchmark, a curve a model (Skywork-OR1, Figure 8).

    Bands are 95 % bootstrap intervals over problems. `budgets` are tokens; by default eight up to the sampled one.
    """
    figure = _figure(len(grid.columns), "avg@N against the response budget")
    for axes, column in _panels(figure, grid.columns):
        shown: set[int] = set()
        for place, (color, model) in enumerate(_colored(grid.models)):
            result = grid.results.get((model, column.name))
            if result is None:
                continue
            most = int(grid.sampling[model, column.name]["max_new_tokens"])
            points = rate_by_budget(result, budgets if budgets is not None else budgets_up_to(most))
            tokens = [point.tokens for point in points]
            shown.update(tokens if len(shown) <= MOST_TICKS else ())
            low, high = zip(*(point.interval for point in points), strict=True)
            axes.fill_between(tokens, low, high, color=color, alpha=0.15, linewidth=0)
            rates, style = [point.rate for point in points], STYLES[place % len(STYLES)]  # equal curves stay in sight
            axes.plot(tokens, rates, color=color, linestyle=style, marker="o", markersize=3, label=model)
        axes.set_xlabel("response budget (tokens)", fontsize=9)
        axes.set_ylim(bottom=0.0)
        _percent_axis(axes, "y")
        _token_ticks(axes, shown)
        _finish(axes, column.title)
    return _save(figure, target)


def draw_transfer(grid: Grid, target: Path) -> Path:
    """avg@N of every model on every benchmark that all have, benchmarks of a domain side by side (Archer, Figure 8).

    With a base model and its mathematical and code RL variants it shows what each gains outside its own domain.

    Raises:
        InputError: the models have no benchmark in common.
    """
    names = grid.shared(grid.models)
    if not names:
        raise InputError("the models have no benchmark in common to draw")
    columns = sorted((c for c in grid.columns if c.name in names), key=lambda c: (c.domain != "math", c.domain))
    figure = _figure(1, "", width=max(5.0, 1.2 + 0.45 * len(columns) * (len(grid.models) + 1)))
    axes = figure.add_subplot(1, 1, 1)
    width = 0.8 / len(grid.models)
    places = np.arange(len(columns), dtype=np.float64)
    for offset, (color, model) in enumerate(_colored(grid.models)):
        found = [grid.results[model, column.name] for column in columns]
        rates = np.array([result.pass_rate for result in found])
        ends = np.array([result.interval() for result in found])
        shifts = places + (offset - (len(grid.models) - 1) / 2) * width
        errors = np.abs(ends.T - rates)
        axes.bar(shifts, rates, width * 0.92, color=color, label=model)
        axes.errorbar(shifts, rates, yerr=errors, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=2)
    axes.set_xticks(places, [f"{column.title}\n{column.domain}" for column in columns])
    highest = max(grid.results[model, column.name].interval().high for model in grid.models for column in columns)
    axes.set_ylim(0.0, max(highest, 0.01) * 1.05)
    _percent_axis(axes, "y")
    _finish(axes, "avg@N by benchmark (95 % over problems)", legend=False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)  # on the axes it would hide bars
    return _save(figure, target)


def draw_problems(grid: Grid, before: str, after: str, target: Path) -> Path:
    """Pass rates problem by problem, before and after, and the gain by difficulty (Archer, Figures 9 and 10).

    Above, a point a problem (larger where several coincide): over the diagonal it became easier. Below, mean rates of
    the problems by how often the model solved them before.

    Raises:
        InputError: the models have no benchmark in common, or measured other problems.
    """
    names = grid.shared((before, after))
    if not names:
        raise InputError(f"{before} and {after} have no benchmark in common to draw")
    columns = [column for column in grid.columns if column.name in names]
    figure = _figure(2 * len(columns), f"{after} against {before}, problem by problem", columns=len(columns))
    for place, column in enumerate(columns, start=1):
        rates = paired_rates(grid.results[before, column.name], grid.results[after, column.name])
        _scatter(figure.add_subplot(2, len(columns), place), *rates, before, after, column.title)
        _difficulty(figure.add_subplot(2, len(columns), len(columns) + place), *rates, before, after)
    return _save(figure, target)


def _scatter(axes: Axes, first: np.ndarray, second: np.ndarray, before: str, after: str, title: str) -> None:
    pairs, counts = np.unique(np.stack([first, second], axis=1), axis=0, return_counts=True)
    gained = pairs[:, 1] - pairs[:, 0]
    colors = [GREEN if gain > 0 else RED if gain < 0 else GREY for gain in gained]
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, zorder=1)
    axes.scatter(pairs[:, 0], pairs[:, 1], s=14 + 26 * np.sqrt(counts), c=colors, alpha=0.7, linewidths=0, zorder=2)
    better, worse = int(counts[gained > 0].sum()), int(counts[gained < 0].sum())
    axes.set_xlim(-0.05, 1.05)
    axes.set_ylim(-0.05, 1.05)
    axes.set_xlabel(before, fontsize=9)
    axes.set_ylabel(after, fontsize=9)
    _percent_axis(axes, "x")
    _percent_axis(axes, "y")
    _finish(axes, f"{title}: {better} up, {worse} down, {len(first) - better - worse} same")


def _difficulty(axes: Axes, first: np.ndarray, second: np.ndarray, before: str, after: str) -> None:
    bins = gains_by_difficulty(first, second)
    places = np.arange(len(bins), dtype=np.float64)
    axes.bar(places - 0.2, [found.before for found in bins], 0.38, color=GREY, label=before)
    axes.bar(places + 0.2, [found.after for found in bins], 0.38, color=BLUE, label=after)
    axes.set_xticks(places, [f"{found.label}\nn={found.problems}" for found in bins])
    axes.set_ylim(0.0, 1.05)
    axes.set_xlabel(f"pass rate of {before} (%)", fontsize=9)
    _percent_axis(axes, "y")
    _finish(axes, "mean pass rate by difficulty")


def _figure(panels: int, title: str, columns: int = COLUMNS, width: float | None = None) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(columns, panels)
    size = (4.6 * across if width is None else width, 3.3 * math.ceil(panels / columns) + 0.5)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # directly: pyplot would keep global state and might look for a display
    if title:
        figure.suptitle(title, fontsize=13, fontweight="bold")
    return figure


def _panels(figure: Figure, columns: Sequence[Column]) -> Iterator[tuple[Axes, Column]]:
    across = min(COLUMNS, len(columns))
    for place, column in enumerate(columns, start=1):
        yield figure.add_subplot(math.ceil(len(columns) / across), across, place), column


def _colored(models: Sequence[str]) -> list[tuple[str, str]]:
    return [(COLORS[place % len(COLORS)], model) for place, model in enumerate(models)]


def _percent_axis(axes: Axes, which: str) -> None:
    from matplotlib.ticker import PercentFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))


def _token_ticks(axes: Axes, budgets: set[int]) -> None:
    """Ticks at the budgets themselves, written as people write them: 8,192 is 8k."""
    written = [f"{tokens // 1024}k" if tokens % 1024 == 0 else f"{tokens:,}" for tokens in sorted(budgets)]
    axes.set_xticks(sorted(budgets), written)
    axes.set_xlim(left=0)


def _finish(axes: Axes, title: str, legend: bool = True) -> None:
    axes.set_title(title, fontsize=10.5, loc="left")
    axes.tick_params(labelsize=9)
    axes.grid(True, color="#e3e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if legend and len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize=8, frameon=False, loc="best")


def _save(figure: Figure, target: Path) -> Path:
    with replacing(target) as temporary:
        figure.savefig(temporary, format="png")
    return target
