"""The report of an evaluation: report.md, results.json and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from strop.base.files import write_json, write_text
from strop.base.near import nearest
from strop.base.text import markdown_table
from strop.base.types import InputError
from strop.evaluation.grid import (
    AVERAGE,
    Column,
    Grid,
    ModelComparison,
    average,
    compare,
    metric_title,
    value_of,
    values_of,
)
from strop.evaluation.intervals import Array, Interval, rate_interval
from strop.evaluation.result import EvaluationResult, on_common_problems, paired_differences
from strop.report.drawing import (
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


REPORT, RESULTS, PLOTS = "report.md", "results.json", "plots"
DETAILS = (
    "problems", "samples of each, N", "avg@N [95 %]", "pass@N [95 %]", "maj@N [95 %]", "unparsed, %", "undecided, %",
    "truncated, %", "mean tokens", "mean tokens, correct", "verifier failures",
)  # fmt: skip
COMPARED = ("gain", "95 %", "p", "problems")


def write_report(
    grid: Grid,
    out: Path,
    metrics: Sequence[str] = ("avg",),
    baseline: str | None = None,
    pictures: bool = True,
) -> dict[str, Any]:
    """Write report.md, results.json and plots/ into `out`; the results as JSON-able numbers.

    Args:
        grid: the evaluations.
        out: a folder.
        metrics: columns of the table, such as `avg`, `pass`, `maj@8`.
        baseline: the model that others are compared with; the first by default.
        pictures: whether to draw; their paths are then in the result under `pictures`.

    Raises:
        InputError: an unknown baseline or benchmark, or a metric that there are too few samples for.
    """
    first = grid.models[0] if baseline is None else baseline
    if first not in grid.models:
        raise InputError(f"--baseline {first}: no such model; {nearest(first, grid.models)}")
    others = [model for model in grid.models if model != first and grid.shared((first, model))]
    compared = [row for model in others for row in compare(grid, first, model)]
    notes = grid.notes(metrics)
    value: dict[str, Any] = {
        "models": _models(grid, metrics),
        "averages": _averages(grid),
        "comparisons": [{**row._asdict(), "interval": list(row.interval)} for row in compared],
        "sampled": grid.sampled(),
        "notes": notes,
    }
    parts = ["# Evaluation", table(grid, metrics), *value["sampled"], *notes]
    parts += ["## pass@k", *pass_tables(grid), "## In detail", details(grid)]
    if compared:
        note = "Gains in points on the same problems; intervals, and p-values by sign flips, are over problems, paired."
        parts += ["## Compared", comparison_table(compared, grid), note]
    write_text(out / REPORT, "\n\n".join(parts) + "\n")
    write_json(out / RESULTS, value)
    if pictures:
        value["pictures"] = [str(path) for path in draw_all(grid, out / PLOTS, first)]
    return value


# ---------------------------------------------------------------------- numbers


def _averages(grid: Grid) -> dict[str, Any]:
    """The average of each model over the benchmarks that all have; empty for one model."""
    shared = grid.shared(grid.models)
    if len(grid.models) < 2 or not shared:
        return {}
    means = {model: average(grid, model, shared) for model in grid.models}
    return {model: {"value": mean.value, "interval": list(mean.interval)} for model, mean in means.items()}


def _models(grid: Grid, metrics: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The summary and the metrics of each model on each benchmark."""
    models: dict[str, dict[str, Any]] = {model: {} for model in grid.models}
    for (model, name), result in grid.results.items():
        shown = {}
        for metric in metrics:
            with _of(model, name):
                values = values_of(result, metric)
            known = {"value": float(values.mean()), "interval": list(rate_interval(values))} if len(values) else {}
            title = metric_title(metric, result.samples_per_problem)
            shown[title] = {"value": None, "interval": None, "problems": len(values), **known}
        models[model][name] = {**result.summary(), "metrics": shown}
    return models


@contextmanager
def _of(model: str, benchmark: str) -> Iterator[None]:
    """Errors inside name the model and the benchmark."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{model} on {benchmark}: {error}; leave it out of --metric") from error


# ---------------------------------------------------------------------- tables


def table(grid: Grid, metrics: Sequence[str] = ("avg",)) -> str:
    """Models × benchmarks in percent as Markdown, with the highest of a column in bold and the average at the end.

    Raises:
        InputError: an unknown metric, or too few samples of a benchmark for it.
    """
    heads, columns = [], []
    for column in grid.columns:
        for metric in metrics:
            found = [grid.results.get((model, column.name)) for model in grid.models]
            counts = sorted({result.samples_per_problem for result in found if result is not None})
            heads.append(f"{column.title} {'/'.join(metric_title(metric, count) for count in counts)}")
            means: list[float | None] = []
            for model, result in zip(grid.models, found, strict=True):
                with _of(model, column.name):
                    means.append(None if result is None else value_of(result, metric))
            columns.append(_percents(means))
    everywhere = grid.shared(grid.models)
    if len(everywhere) > 1 and everywhere == tuple(column.name for column in grid.columns):
        heads.append(AVERAGE)
        columns.append(_percents([average(grid, model, everywhere).value for model in grid.models]))
    rows = [[model, *cells] for model, *cells in zip(grid.models, *columns, strict=True)]
    return markdown_table(("Model", *heads), rows, heads)


def pass_tables(grid: Grid) -> list[str]:
    """Of each benchmark a Markdown table: pass@k in percent, a model a row, k the powers of two up to N and N."""
    tables = []
    for column in grid.columns:
        of = {model: found for model in grid.models if (found := grid.results.get((model, column.name))) is not None}
        counts = sorted({k for found in of.values() for k in (*found.powers, found.samples_per_problem)})
        heads = [f"pass@{k}" for k in counts]
        columns = [
            _percents([
                float(found.pass_values(k).mean()) if found.judged_at_least(k).any() else None for found in of.values()
            ])
            for k in counts
        ]  # fmt: skip
        rows = [[model, *cells] for model, *cells in zip(of, *columns, strict=True)]
        tables.append(markdown_table((column.title, *heads), rows, heads))
    return tables


def details(grid: Grid) -> str:
    """One Markdown table per benchmark: each model with its intervals, truncation, lengths and verifier failures."""
    tables = []
    for column in grid.columns:
        models = [model for model in grid.models if (model, column.name) in grid.results]
        cells = [_details(grid.results[model, column.name]) for model in models]
        rows = [[name, *row] for name, *row in zip(DETAILS, *cells, strict=True)]
        tables.append(markdown_table((column.title, *models), rows, models))
    return "\n\n".join(tables)


def _details(result: EvaluationResult) -> list[str]:
    """A cell for each of `DETAILS`."""
    correct = result.mean_correct_length
    return [
        str(len(result.problem_ids)), str(result.samples_per_problem),
        *(_with_interval(values_of(result, metric)) for metric in ("avg", "pass", "maj")),
        *map(_percent, (result.unparsed_rate, result.undecided_rate, result.truncation_rate)),
        f"{result.mean_length:.0f}", "–" if correct is None else f"{correct:.0f}", str(result.failures),
    ]  # fmt: skip


def comparison_table(rows: Sequence[ModelComparison], grid: Grid) -> str:
    """Paired comparisons as Markdown; gains in points."""
    titles = {column.name: column.title for column in grid.columns}
    lines = [
        [
            f"{row.after} − {row.before}", titles.get(row.benchmark, row.benchmark), f"{100 * row.gain:+.1f}",
            f"[{100 * row.interval.low:+.1f}, {100 * row.interval.high:+.1f}]",
            "" if row.p_value is None else f"{row.p_value:.4f}", str(row.problems),
        ]
        for row in rows
    ]  # fmt: skip
    return markdown_table(("Models", "Benchmark", *COMPARED), lines, COMPARED)


def _percents(values: Sequence[float | None]) -> list[str]:
    """A column with one decimal: the highest of several values in bold, a dash for a missing one."""
    written = [None if value is None else _percent(value) for value in values]
    known = [text for text in written if text is not None]
    top = max(known, key=float) if len(known) > 1 else None
    return ["–" if text is None else f"**{text}**" if text == top else text for text in written]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _with_interval(values: Array) -> str:
    if not len(values):
        return "–"
    low, high = rate_interval(values)
    return f"{_percent(float(values.mean()))} [{_percent(low)}, {_percent(high)}]"


COLORS = (GREY, BLUE, ORANGE, GREEN, PURPLE, RED)
MOST_TICKS = 12


def draw_all(grid: Grid, folder: Path, baseline: str) -> list[Path]:
    """Draw every picture that the grid has data for, budget.png, transfer.png and problems.png; returns their paths."""
    written = [draw_budgets(grid, folder / "budget.png")]
    if len(grid.models) > 1 and grid.shared(grid.models):
        written.append(draw_transfer(grid, folder / "transfer.png"))
    panels = [
        _problems(grid, column, baseline, model)
        for model in grid.models if model != baseline
        for column in grid.columns if column.name in grid.shared((baseline, model))
    ]  # fmt: skip
    if panels:
        written.append(write_panels(folder / "problems.png", f"against {baseline}, problem by problem", panels))
    return written


def _problems(grid: Grid, column: Column, before: str, after: str) -> tuple[str, Draw]:
    """The pass rate of each problem before and after (Archer, Figures 9 and 10); above the diagonal it became easier.

    A point is larger where several problems coincide.
    """
    pair = on_common_problems(grid.results[before, column.name], grid.results[after, column.name])
    gains = paired_differences(*pair)
    known = pair[0].judged & pair[1].judged
    rates = np.stack([each.pass_rates[known] for each in pair], axis=1)
    points, counts = np.unique(rates, axis=0, return_counts=True)

    def draw(axes: Axes) -> None:
        colors = [GREEN if new > old else RED if new < old else GREY for old, new in points]
        axes.axline((0.0, 0.0), slope=1.0, color=GREY, linewidth=0.8)
        axes.scatter(points[:, 0], points[:, 1], s=14 + 26 * np.sqrt(counts), c=colors, alpha=0.7, linewidths=0)
        axes.set_xlabel(before)
        axes.set_ylabel(after)
        percent_axis(axes, "x")
        percent_axis(axes)

    up, down = int((gains > 0).sum()), int((gains < 0).sum())
    return f"{column.title}: {up} up, {down} down, {len(gains) - up - down} same", draw


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
        figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)  # inside it would hide bars

    write_figure(target, (max(5.0, 1.2 + 0.45 * len(columns) * (len(grid.models) + 1)), 3.8), fill)
    return target


def _token_ticks(axes: Axes, budgets: set[int]) -> None:
    """Ticks at the budgets, such as 8k for 8,192."""
    written = [f"{tokens // 1024}k" if tokens % 1024 == 0 else f"{tokens:,}" for tokens in sorted(budgets)]
    axes.set_xticks(sorted(budgets), written)
    axes.set_xlim(left=0)


BUDGET_POINTS = 8


class BudgetPoint(NamedTuple):
    """avg@N under a budget of `tokens`, with its interval over problems, and the share of samples it cuts off."""

    tokens: int
    rate: float
    interval: Interval
    truncated: float


def budgets_up_to(most: int) -> tuple[int, ...]:
    """Up to eight budgets at equal steps that end at `most`: 4k, 8k … 32k for 32,768."""
    return tuple(sorted({max(1, most * step // BUDGET_POINTS) for step in range(1, BUDGET_POINTS + 1)}))


def rate_by_budget(result: EvaluationResult, budgets: Sequence[int]) -> list[BudgetPoint]:
    """avg@N had the response been cut off after b tokens, for every b of `budgets` (Skywork-OR1, Figure 8).

    Sampling does not depend on the budget, so a kept sample of length l is the sample under any budget b ≥ l. One that
    is longer would have been cut off before its answer: truncated, and worth nothing.

    Raises:
        InputError: a budget is below 1, or the verifier failed on every sample.
    """
    if any(budget < 1 for budget in budgets):
        raise InputError("a response budget has at least one token")
    usable = result.usable.sum(axis=1)
    judged = usable > 0
    if not judged.any():
        raise InputError(f"{result.dataset}: the verifier failed on every sample, so there is no pass rate")
    points = []
    for budget in budgets:
        within = result.lengths <= budget
        cut = ~within | (result.truncated & (result.lengths >= budget))
        rates = (result.correct & result.usable & within).sum(axis=1)[judged] / usable[judged]
        points.append(BudgetPoint(budget, float(rates.mean()), rate_interval(rates), float(cut.mean())))
    return points
