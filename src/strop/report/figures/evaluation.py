"""The figures of a grid of evaluations, one PNG each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from strop.base.types import InputError
from strop.evaluation.grid import Column, Grid
from strop.evaluation.result import budgets_up_to, gains_by_difficulty, paired_rates, rate_by_budget
from strop.report.figures.writer import (
    BLUE,
    DASHES,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    Draw,
    percent_axis,
    style_axes,
    write_figure,
    write_panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = (GREY, BLUE, ORANGE, GREEN, PURPLE, RED)
MOST_TICKS = 12


def draw_all(grid: Grid, folder: Path, baseline: str | None = None) -> list[Path]:
    """Every picture the grid has data for: budget.png, transfer.png, problems-MODEL.png; their paths.

    Args:
        grid: the evaluations.
        folder: where to write.
        baseline: what models are compared with, problem by problem; by default the first.
    """
    first = grid.models[0] if baseline is None else baseline
    written = [draw_budgets(grid, folder / "budget.png")]
    if len(grid.models) > 1:
        if grid.shared(grid.models):
            written.append(draw_transfer(grid, folder / "transfer.png"))
        for model in grid.models:
            if model != first and grid.shared((first, model)):
                name = "".join(letter if letter.isalnum() or letter in "-.@" else "-" for letter in model)
                written.append(draw_problems(grid, first, model, folder / f"problems-{name}.png"))
    return written


def draw_budgets(grid: Grid, target: Path) -> Path:
    """avg@N against the response budget, a panel a benchmark, a curve a model (Skywork-OR1, Figure 8).

    Bands are 95 % bootstrap intervals over problems. Up to eight budgets end at the sampled one.
    """
    panels = [(column.title, _budget_panel(grid, column)) for column in grid.columns]
    return write_panels(target, "avg@N against the response budget", panels)


def _budget_panel(grid: Grid, column: Column) -> Draw:
    def draw(axes: Axes) -> None:
        shown: set[int] = set()
        for place, model in enumerate(grid.models):
            result = grid.results.get((model, column.name))
            if result is None:
                continue
            color, dash = COLORS[place % len(COLORS)], DASHES[place % 3]  # equal curves stay in sight
            most = int(grid.sampling[model, column.name]["max_new_tokens"])
            points = rate_by_budget(result, budgets_up_to(most))
            tokens = [point.tokens for point in points]
            shown.update(tokens if len(shown) <= MOST_TICKS else ())
            low, high = zip(*(point.interval for point in points), strict=True)
            axes.fill_between(tokens, low, high, color=color, alpha=0.15, linewidth=0)
            rates = [point.rate for point in points]
            axes.plot(tokens, rates, color=color, linestyle=dash, marker="o", markersize=3, label=model)
        axes.set_xlabel("response budget (tokens)")
        axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])  # a curve at 0 keeps clear of the frame
        percent_axis(axes)
        _token_ticks(axes, shown)

    return draw


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

    def fill(figure: Figure) -> None:
        axes = figure.add_subplot()
        width = 0.8 / len(grid.models)
        places = np.arange(len(columns), dtype=np.float64)
        highest = 0.01
        for offset, model in enumerate(grid.models):
            found = [grid.results[model, column.name] for column in columns]
            rates = np.array([result.pass_rate for result in found])
            ends = np.array([result.interval() for result in found])
            highest = max(highest, float(ends.max()))
            shifts = places + (offset - (len(grid.models) - 1) / 2) * width
            axes.bar(shifts, rates, width * 0.92, color=COLORS[offset % len(COLORS)], label=model)
            errors = np.abs(ends.T - rates)
            axes.errorbar(shifts, rates, yerr=errors, fmt="none", ecolor=INK, elinewidth=0.8, capsize=2)
        axes.set_xticks(places, [f"{column.title}\n{column.domain}" for column in columns])
        axes.set_ylim(0.0, highest * 1.05)
        percent_axis(axes)
        style_axes(axes)
        axes.set_title("avg@N by benchmark (95 % over problems)", fontsize=10.5, loc="left")
        figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)  # on the axes it would hide bars

    write_figure(target, (max(5.0, 1.2 + 0.45 * len(columns) * (len(grid.models) + 1)), 3.8), fill)
    return target


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
    above, below = [], []
    for column in columns:
        first, second = paired_rates(grid.results[before, column.name], grid.results[after, column.name])
        better, worse = int((second > first).sum()), int((second < first).sum())
        title = f"{column.title}: {better} up, {worse} down, {len(first) - better - worse} same"
        above.append((title, _scatter(first, second, before, after)))
        below.append(("mean pass rate by difficulty", _difficulty(first, second, before, after)))
    return write_panels(target, f"{after} against {before}, problem by problem", [*above, *below], len(columns))


def _scatter(first: np.ndarray, second: np.ndarray, before: str, after: str) -> Draw:
    pairs, counts = np.unique(np.stack([first, second], axis=1), axis=0, return_counts=True)
    colors = [GREEN if gain > 0 else RED if gain < 0 else GREY for gain in pairs[:, 1] - pairs[:, 0]]

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, zorder=1)
        axes.scatter(pairs[:, 0], pairs[:, 1], s=14 + 26 * np.sqrt(counts), c=colors, alpha=0.7, linewidths=0, zorder=2)
        axes.set_xlim(-0.05, 1.05)
        axes.set_ylim(-0.05, 1.05)
        axes.set_xlabel(before)
        axes.set_ylabel(after)
        percent_axis(axes, "x")
        percent_axis(axes, "y")

    return draw


def _difficulty(first: np.ndarray, second: np.ndarray, before: str, after: str) -> Draw:
    bins = gains_by_difficulty(first, second)

    def draw(axes: Axes) -> None:
        places = np.arange(len(bins), dtype=np.float64)
        axes.bar(places - 0.2, [found.before for found in bins], 0.38, color=GREY, label=before)
        axes.bar(places + 0.2, [found.after for found in bins], 0.38, color=BLUE, label=after)
        axes.set_xticks(places, [f"{found.label}\nn={found.problems}" for found in bins])
        axes.set_ylim(0.0, 1.05)
        axes.set_xlabel(f"pass rate of {before} (%)")
        percent_axis(axes)

    return draw


def _token_ticks(axes: Axes, budgets: set[int]) -> None:
    """Ticks at the budgets themselves, written as people write them: 8,192 is 8k."""
    written = [f"{tokens // 1024}k" if tokens % 1024 == 0 else f"{tokens:,}" for tokens in sorted(budgets)]
    axes.set_xticks(sorted(budgets), written)
    axes.set_xlim(left=0)
