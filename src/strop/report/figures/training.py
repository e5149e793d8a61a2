"""The training curves of one or several runs, each metric a chart against the step.

One run has a colour for each metric; several runs have a colour each, and a dash for each metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.base.types import InputError
from strop.report.figures.writer import (
    DASHES,
    MUTED,
    ON_COLOR,
    ORANGE,
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
from strop.report.runs import RunData, Series, read_runs
from strop.report.texts import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Scale = Literal["plain", "percent", "log", "zero"]


class Curves(NamedTuple):
    """A chart of metrics against the step; `lines` are what each metric is called in it."""

    key: str
    title: str
    scale: Scale
    caption: str
    lines: Mapping[str, str]


# fmt: off
GROUPS: dict[str, tuple[Curves, ...]] = {
    "Learning": (
        Curves(
            "training-pass-rate", "Pass rate in training", "percent",
            "Share of the rollouts of each step that are right, a score of 1.",
            {"pass_rate": "all completions", "pass_rate/whole": "not truncated"},
        ),
        Curves("reward", "Reward", "plain", "Mean shaped reward.", {"reward/mean": "reward"}),
        Curves("loss", "Loss", "plain", "A policy-gradient loss says little by its value.", {"loss": "loss"}),
        Curves(
            "gradient", "Gradient norm", "zero", "Before clipping.",
            {"grad_norm": "policy", "critic/grad_norm": "critic"},
        ),
        Curves("learning-rate", "Learning rate", "zero", "", {"lr": "policy", "critic/lr": "critic"}),
    ),
    "Exploration": (
        Curves(
            "entropy", "Entropy", "zero",
            "Nats a token: over the whole vocabulary, its sampled estimate (mean of −log p), the same held out.",
            {"entropy": "full", "entropy/sampled": "sampled", "evaluation/entropy": "held out"},
        ),
        Curves(
            "entropy-flow", "Entropy flow", "plain",
            "Sums of ΔH (OPEFO, Eq. 6) over tokens that raise and that lower the entropy.",
            {"entropy_flow/positive": "raises", "entropy_flow/negative": "lowers",
             "entropy_flow/clipped_high": "clipped above", "entropy_flow/clipped_low": "clipped below"},
        ),
        Curves(
            "entropy-lambda", "Balance λ*", "plain", "What it would take to balance the two (OPEFO, Eq. 9).",
            {"entropy_flow/lambda": "λ*", "opefo/lambda": "applied"},
        ),
        Curves(
            "covariance", "Covariance of advantage and log π", "plain",
            "Positive where what is likely is rewarded: entropy falls.",
            {"covariance": "covariance"},
        ),
        Curves(
            "zero-variance", "Groups without signal", "percent", "Groups whose rollouts all have the same score.",
            {"groups/zero_variance_share": "zero variance"},
        ),
    ),
    "Completions": (
        Curves(
            "length", "Completion length", "zero", "Tokens, of all completions of a step.",
            {"length/mean": "mean", "length/p50": "median", "length/p90": "90 %", "length/max": "longest"},
        ),
        Curves(
            "length-correct", "Length by outcome", "zero", "Mean tokens of correct and of reflective completions.",
            {"length/correct": "correct", "length/reflective": "reflective"},
        ),
        Curves(
            "truncation", "Truncation and form", "percent",
            "Ended by the token budget; without an answer; neither proved right nor wrong; interrupted.",
            {
                "truncation_rate": "truncated",
                "unparsed_rate": "no answer",
                "unknown_rate": "undecided",
                "interruption/share": "interrupted",
            },
        ),
        Curves(
            "reflection", "Reflection", "percent",
            "Completions with one of five patterns (wait, recheck, retry, alternatively, however).",
            {"reflection/share": "reflective"},
        ),
        Curves(
            "repetition", "Repetition", "percent", "Completions in which 20 tokens in a row recur, and repeated text.",
            {"repetition/share": "looping", "repetition/ngram20": "20-grams", "repetition/repeatness": "repeatness"},
        ),
    ),
    "Stability": (
        Curves(
            "ratio", "Importance ratio", "log",
            "Trainer to generator, raw: smallest, mean and largest token of a step.",
            {"ratio/mean": "mean", "ratio/min": "smallest", "ratio/max": "largest"},
        ),
        Curves(
            "clipped", "Clipped tokens", "percent", "Tokens whose gradient was cut or capped.",
            {"ratio/clipped_share": "any", "ratio/clipped_high_share": "above", "ratio/clipped_low_share": "below"},
        ),
        Curves(
            "lag", "Staleness", "zero", "Weight versions between sampling and training, over trained tokens.",
            {"lag/mean": "mean", "lag/max": "largest"},
        ),
        Curves(
            "mismatch", "Generator-trainer mismatch", "log",
            "Absolute difference of log-probs of the same token, nats.",
            {"mismatch/mean": "mean", "mismatch/max": "largest"},
        ),
        Curves(
            "kl", "KL to the reference", "plain", "k3 and k1 estimates, nats a token.",
            {"kl/reference": "k3", "kl/reference_k1": "k1"},
        ),
        Curves(
            "explained-variance", "Critic: explained variance", "plain",
            "1 − Var(return − value) / Var(return); 1 is perfect, 0 is no better than a constant.",
            {"value/explained_variance": "explained variance"},
        ),
        Curves(
            "values", "Critic: values and returns", "plain", "Means over trained tokens.",
            {"value/mean": "value", "value/target": "return"},
        ),
        Curves(
            "credit", "Advantage of repetitive tokens", "plain",
            "As trained, and as GRPO would have given it (Open-Reasoner-Zero, Figure 5).",
            {"repetition/advantage": "as trained", "repetition/advantage_grpo": "GRPO"},
        ),
    ),
    "Time and compute": (
        Curves(
            "speed", "Tokens a second", "zero", "Generated tokens over the seconds of a step without evaluation.",
            {"tokens_per_second": "tokens/s"},
        ),
        Curves(
            "device-seconds", "Device-seconds so far", "zero", "Of GPUs, or of cores where there are none.",
            {"compute/device_seconds": "all", "compute/generator_seconds": "generator",
             "compute/trainer_seconds": "trainer"},
        ),
        Curves(
            "flops", "Estimated FLOPs so far", "zero", "2 a parameter and token generated or injected, 6 packed.",
            {"compute/flops": "FLOPs"},
        ),
        Curves(
            "packing", "Packing efficiency", "percent", "How full micro-batches are.",
            {"packing_efficiency": "efficiency"},
        ),
    ),}
# fmt: on


# Of a curve: the points beyond which it is smoothed, and beyond which it is thinned.
SMOOTH_FROM, SHOWN_POINTS = 30, 1500
CLEAR = 0.03  # of the height, by which a curve at an end of its axis keeps clear of the frame
PARTS = (
    ("rollout", "t_R generation", SERIES[0]),
    ("update", "t_T training", SERIES[1]),
    ("verify", "t_O verification", SERIES[2]),
    ("other", "t_O all else", SERIES[8]),
    ("evaluation", "evaluation", SERIES[3]),
    ("checkpoint", "checkpoints", SERIES[6]),
)
SOLVED = {
    "none": "none", "to_25": "to 25 %", "to_50": "to 50 %", "to_75": "to 75 %", "most": "most", "all": "all",
}  # fmt: skip
SOLVED_COLORS = (SERIES[4], SERIES[6], SERIES[1], SERIES[8], SERIES[5], SERIES[2])
# The charts of `plots/training.png`.
OVERVIEW = (
    "held-out-pass-rate", "training-pass-rate", "benchmarks", "reward", "entropy", "length", "truncation",
    "zero-variance", "ratio", "loss", "gradient", "seconds",
)  # fmt: skip


def plot_run(run: Path, target: Path | None = None) -> Path:
    """Draw the most important curves of a run folder as one PNG, `plots/training.png` unless `target` is given.

    Raises:
        InputError: there is no metric to draw yet.
    """
    found = {chart.key: chart for _, charts in training_charts(read_runs([run])) for chart in charts}
    panels = [(found[key].title, found[key].panels[0]) for key in OVERVIEW if key in found]
    if not panels:
        raise InputError(f"{run}: metrics.jsonl holds nothing to draw yet; let the run make a step first")
    return write_panels(target if target is not None else run / "plots" / "training.png", run.name, panels)


def training_charts(runs: Sequence[RunData]) -> list[tuple[str, list[Chart]]]:
    """Every chart that the runs have the metrics for, under its heading."""
    special = {
        "Learning": (_held_out, _benchmarks, _against_compute, _domains), "Exploration": (_solved,),
        "Time and compute": (_time,),
    }  # fmt: skip
    found = []
    for heading, group in GROUPS.items():
        charts = [chart for make in special.get(heading, ()) for chart in make(runs)]
        charts += [curves_chart(each, runs) for each in group if _values(each, runs).any()]
        if charts:
            found.append((heading, charts))
    return found


def not_drawn(runs: Sequence[RunData]) -> tuple[list[str], list[str]]:
    """The titles of the charts that no run has a metric for, and of those whose metrics are 0 at every step."""
    every = [(each.title, _values(each, runs)) for group in GROUPS.values() for each in group]
    absent = [title for title, values in every if not len(values)]
    return absent, [title for title, values in every if len(values) and not values.any()]


def _values(curves: Curves, runs: Sequence[RunData]) -> NDArray[np.float64]:
    return np.array([value for run in runs for metric in curves.lines for value in run.series(metric)[1]])


# ---------------------------------------------------------------------- metrics against the step


def curves_chart(curves: Curves, runs: Sequence[RunData]) -> Chart:
    """The chart of metrics against the step."""
    several = len(runs) > 1

    def draw(axes: Axes) -> None:
        for place, run in enumerate(runs):
            for number, (metric, label) in enumerate(curves.lines.items()):
                series = run.series(metric)
                color = SERIES[(place if several else number) % len(SERIES)]
                # Of several metrics only one may be known: without a label it would be unclear which.
                named = label if len(curves.lines) > 1 and not several else ""
                _line(axes, series, color, DASHES[number % len(DASHES)] if several else "-", named)
        if several:
            _label_runs(axes, curves, runs)
        _scale(axes, curves.scale)
        step_axis(axes)

    return Chart(curves.key, curves.title, curves.caption, (draw,))


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


def _held_out(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Held-out pass rate with a band of a standard error, against the step."""
    shown = [run for run in runs if run.series("evaluation/pass_rate")[0]]
    if not shown:
        return

    def draw(axes: Axes) -> None:
        for run in shown:
            steps, values = run.series("evaluation/pass_rate")
            _band(axes, runs, run, steps, steps, values)
        if len(runs) == 1:
            axes.plot(*runs[0].series("pass_rate"), color=SERIES[0], linewidth=1.0, alpha=0.55, label="training")
        _scale(axes, "percent")
        step_axis(axes)

    caption = "Mean over problems and samples; the band is a standard error over problems either side."
    yield Chart("held-out-pass-rate", "Held-out pass rate", caption, (draw,))


def _benchmarks(runs: Sequence[RunData]) -> Iterator[Chart]:
    """The pass rate of each benchmark that was measured in training; all of them in one chart."""
    names = sorted({name for run in runs for name in run.benchmarks})
    if names:
        lines = {f"evaluation/{name}/pass_rate": plain(name, 20) for name in names}
        caption = "Mean over problems and samples, measured as the run measures its held-out problems."
        yield curves_chart(Curves("benchmarks", "Benchmarks in training", "percent", caption, lines), runs)


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
            _band(axes, runs, run, steps, hours, values)
        _scale(axes, "percent")
        axes.set_xlabel("device-hours")
        axes.set_xlim(left=0.0)

    caption = "Device-hours of training, evaluations left out; the band is a standard error."
    yield Chart("pass-rate-by-compute", "Held-out pass rate by compute", caption, (draw,))


def _band(
    axes: Axes, runs: Sequence[RunData], run: RunData, steps: Sequence[int], x: Sequence[float],
    values: Sequence[float],
) -> None:  # fmt: skip
    """Held-out pass rates `values` of a run at `steps`, drawn at `x`, with a standard error either side."""
    several = len(runs) > 1
    color = SERIES[list(runs).index(run) % len(SERIES)] if several else ORANGE
    errors = run.by_step("evaluation/stderr")
    spread, mean = np.array([errors.get(step, 0.0) for step in steps]), np.array(values)
    axes.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.2, linewidth=0)
    label = run.short if several else "held out"
    axes.plot(x, values, color=color, linewidth=1.7, marker="D", markersize=4.2, label=label)


def _domains(runs: Sequence[RunData]) -> Iterator[Chart]:
    """The pass rate of each domain, where there are several."""
    for prefix, key, title in (
        ("evaluation/pass_rate/", "held-out-domains", "Held-out pass rate by domain"),
        ("pass_rate/", "training-domains", "Training pass rate by domain"),
    ):
        names = sorted({name for run in runs for row in run.rows for name in row if name.startswith(prefix)})
        lines = {name: plain(name.removeprefix(prefix), 20) for name in names if name != "pass_rate/whole"}
        if len(lines) > 1:
            yield curves_chart(Curves(key, title, "percent", "", lines), runs)


def _solved(runs: Sequence[RunData]) -> Iterator[Chart]:
    """How many of a group's rollouts are correct, as layers over the steps; for a single run."""
    names = [f"groups/solved_{key}_share" for key in SOLVED]
    if len(runs) != 1 or not runs[0].series(names[0])[0]:
        return

    def draw(axes: Axes) -> None:
        _stack(axes, runs[0], names, list(SOLVED.values()), SOLVED_COLORS)
        axes.set_ylim(0, 1)
        percent_axis(axes)

    yield Chart("solved", "Groups by correct rollouts", "Share of the groups of a step.", (draw,))


def _stack(
    axes: Axes, run: RunData, metrics: Sequence[str], labels: Sequence[str], colors: Sequence[str]
) -> None:  # fmt: skip
    """Metrics as layers over the steps."""
    columns = [run.by_step(name) for name in metrics]
    steps = sorted(set[int]().union(*columns))
    layers = [[column.get(step, 0.0) for step in steps] for column in columns]
    axes.stackplot(steps, *layers, labels=labels, colors=colors, alpha=0.85)
    axes.margins(x=0)
    step_axis(axes)


def _time(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Where the time of a step went: as bars of every run, and over the steps of a single one."""
    shown = [run for run in runs if run.series("seconds/step")[0]]
    if shown:
        said = "Shares of all steps and evaluations together."
        yield Chart("time-shares", "Where the time goes", said, (_time_bars(shown),))
    parts = [part for part in PARTS if runs[0].series(f"seconds/{part[0]}")[0]] if len(runs) == 1 else []
    if not parts:
        return

    def draw(axes: Axes) -> None:
        names, labels, colors = zip(*parts, strict=True)
        _stack(axes, runs[0], [f"seconds/{name}" for name in names], labels, colors)
        axes.set_ylim(bottom=0)

    yield Chart("seconds", "Seconds of a step", "", (draw,))


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
