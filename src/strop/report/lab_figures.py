"""The figures of fits, ablations, verifiers and gradients: curves over compute, paired differences, and others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.base.files import write_text
from strop.base.text import number
from strop.base.types import InputError
from strop.lab.ablation import table
from strop.lab.ablation.collect import Ablation, VariantResult
from strop.lab.ablation.table import difference
from strop.lab.scaling.compare import MARGIN, Refit
from strop.lab.scaling.curves import UNITS
from strop.lab.scaling.fitting import Fit
from strop.lab.scaling.study import slope
from strop.report.drawing import (
    DASHES,
    DOTTED,
    GREY,
    INK,
    MUTED,
    ON_COLOR,
    SERIES,
    Dash,
    Draw,
    add_legend,
    log_axis,
    number_axis,
    percent_axis,
    step_axis,
    style_axes,
    write_figure,
    write_panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from strop.lab.what_if import Comparison




def plot_fits(fits: Sequence[Fit], target: Path, predict: Sequence[float] = ()) -> list[Path]:
    """Draw points, curves, bands and asymptotes over a logarithmic compute axis; returns the PNG and the SVG.

    Filled points were fitted, faint ones cut off, hollow ones held back; a curve is solid where it was fitted and
    dashed beyond; the dotted line is its asymptote A; crosses are predictions. A refused curve shows only its points.

    Raises:
        InputError: there is no point to draw.
    """
    if not any(len(found.curve) for found in fits):
        raise InputError("there is no point to draw")
    low, high = _extent(fits, predict)

    def draw(axes: Axes) -> None:
        for place, found in enumerate(fits):
            color = SERIES[place % len(SERIES)]
            _draw_curve(axes, found, color, (low, high))
            _draw_points(axes, found, color)
            for each in found.predict(predict) if found.sigmoid is not None else ():
                axes.plot([each.compute] * 2, each.interval, color=color, linewidth=1.2)
                axes.plot(each.compute, each.pass_rate, "x", color=color, markersize=6, markeredgewidth=1.6)
        if fits[0].settings.fit_until is not None:
            axes.axvline(fits[0].settings.fit_until, color=MUTED, linewidth=0.9)
        _compute_axis(axes, low, high, fits[0].curve.words)
        _rate_axis(axes, fits)
        add_legend(axes)

    return _write(draw, target, (7.2, 4.6))


def plot_linearised(recipes: Mapping[str, Sequence[Refit]], target: Path) -> list[Path]:
    """log F(R_C) against log C with A fixed for all (Figure 5): straight lines whose slopes are B.

    F(R_C) = C_mid^B / ((A − R_0) / (R_C − R_0) − 1) = C^B. Each curve is divided by C_mid^B, so that all cross 1 at
    their midpoints and the scale does not depend on the unit of compute. Points not between R_0 and A have no F. The
    seeds of a recipe have one colour.
    """
    refits = [each for members in recipes.values() for each in members]
    fits = [each.fit for each in refits]
    low = min(float(found.used.compute[0]) for found in fits) / 1.15
    high = max(float(found.used.compute[-1]) for found in fits) * 1.15

    def draw(axes: Axes) -> None:
        for place, (name, members) in enumerate(recipes.items()):
            for seed, each in enumerate(members):
                _draw_line(axes, each, place, None if seed else f"{name}: B = {slope(members)}")
        log_axis(axes)
        axes.set_ylabel("F(R_C) / C_mid^B = (R_C − R_0) / (A − R_C)")
        _compute_axis(axes, low, high, fits[0].curve.words)
        add_legend(axes, _joint_title(refits))

    return _write(draw, target, (6.4, 4.6))


def _draw_line(axes: Axes, each: Refit, place: int, label: str | None) -> None:
    color = SERIES[place % len(SERIES)]
    sigmoid, used = each.sigmoid, each.fit.used
    at = sigmoid.B * np.log(sigmoid.C_mid)
    points = np.exp(sigmoid.linearised(used.compute, used.pass_rate) - at)
    axes.plot(used.compute, points, "o", color=color, markersize=3.5, alpha=0.55, markeredgewidth=0)
    ends = np.array([used.compute[0], used.compute[-1]])
    axes.plot(ends, (ends / sigmoid.C_mid) ** sigmoid.B, color=color, linewidth=1.8, label=label)


def _joint_title(refits: Sequence[Refit]) -> str:
    """The title; it adds a warning if the asymptotes are too far apart for one A."""
    own = [each.fit.sigmoid.A for each in refits if each.fit.sigmoid is not None]
    title = f"A fixed to {refits[0].sigmoid.A:.3f} for all: the slope is B"
    if max(own) - min(own) > 2.0 * MARGIN:
        title += f" (but A ranges from {min(own):.3f} to {max(own):.3f})"
    return title


def linearised_beside(target: Path) -> Path:
    """The path of the linearised picture next to `target`."""
    return target.with_name(f"{target.stem}-linear{target.suffix}")


def _write(draw: Draw, target: Path, size: tuple[float, float]) -> list[Path]:
    def fill(figure: Figure) -> None:
        axes = figure.add_subplot()
        draw(axes)
        style_axes(axes)

    return write_figure(target, size, fill, svg=True, dpi=200)


def _extent(fits: Sequence[Fit], predict: Sequence[float]) -> tuple[float, float]:
    """The range of compute to show: all points and predictions, and some room beyond."""
    lowest = min(found.curve.compute[0] for found in fits if len(found.curve))
    highest = max([*(found.curve.compute[-1] for found in fits if len(found.curve)), *predict])
    return float(lowest) / 1.15, float(highest) * 1.5


def _draw_points(axes: Axes, found: Fit, color: str) -> None:
    """Points that were skipped are faint, those held back are hollow."""
    used, held = found.used, found.held_back
    skipped = found.curve.within(high=np.nextafter(found.settings.skip_until or 0.0, 0.0))
    axes.plot(skipped.compute, skipped.pass_rate, "o", color=color, markersize=4, alpha=0.25, markeredgewidth=0)
    if used.stderr is not None:
        axes.errorbar(
            used.compute, used.pass_rate, yerr=used.stderr, fmt="none", ecolor=color, elinewidth=0.8, alpha=0.5
        )
    refused = None if found.refused is None else f"{found.name}: refused, {found.refused.partition(':')[0]}"
    axes.plot(
        used.compute, used.pass_rate, "o", color=color, markersize=4, alpha=0.8, markeredgewidth=0, label=refused
    )
    axes.plot(
        held.compute, held.pass_rate, "o", color=color, markersize=4, markerfacecolor="white", markeredgewidth=0.9,
        zorder=2.5,
    )  # fmt: skip


def _draw_curve(axes: Axes, found: Fit, color: str, extent: tuple[float, float]) -> None:
    """The fitted curve with its band and asymptote: solid over the fitted points, broken elsewhere."""
    sigmoid = found.sigmoid
    if sigmoid is None:
        return
    first, last = float(found.used.compute[0]), float(found.used.compute[-1])
    inside = np.geomspace(first, last, 200)
    before, after = np.geomspace(min(extent[0], first), first, 60), np.geomspace(last, max(extent[1], last), 100)
    whole = np.concatenate([inside, after])
    axes.fill_between(whole, *found.band(whole), color=color, alpha=0.16, linewidth=0)
    a, b = found.interval("A"), found.interval("B")
    label = (
        f"{found.name}: A = {sigmoid.A:.3f} ({a[0]:.3f} to {a[1]:.3f}), "
        f"B = {sigmoid.B:.2f} ({b[0]:.2f} to {b[1]:.2f}), C_mid = {number(sigmoid.C_mid)}"
    )
    axes.plot(inside, sigmoid.value(inside), color=color, linewidth=1.8, label=label)
    for beyond in (before, after):
        axes.plot(beyond, sigmoid.value(beyond), color=color, linewidth=1.4, linestyle=DOTTED)
    axes.axhline(sigmoid.A, color=color, linewidth=1.0, linestyle=":", alpha=0.9)


def _rate_axis(axes: Axes, fits: Sequence[Fit]) -> None:
    rates = np.concatenate([found.curve.pass_rate for found in fits])
    tops = [found.sigmoid.A for found in fits if found.sigmoid is not None]
    low, high = float(rates.min()), max([float(rates.max()), *tops])
    room = max(high - low, 0.02)
    # The legend has the lower right corner, below curves that rise.
    axes.set_ylim(max(low - (0.1 + 0.05 * len(fits)) * room, -0.02), min(high + 0.12 * room, 1.03))
    percent_axis(axes)
    axes.set_ylabel("held-out pass rate")


def _compute_axis(axes: Axes, low: float, high: float, words: str) -> None:
    axes.set_xlim(low, high)
    log_axis(axes, "x")
    axes.set_xlabel(f"{words} (logarithmic)")


Array = NDArray[np.float64]
MARGIN_FILL = "#eef0f3"
BANDS = 8  # variants beyond which bands would hide the curves


class Averaged(NamedTuple):
    """A variant's mean curve over seeds: compute and pass rate at each evaluation, [n], and the band's half width."""

    compute: Array
    rate: Array
    half: Array
    seeds: int


def averaged(variant: VariantResult) -> Averaged | None:
    """The mean of a variant's seeds, R_0 at compute 0 first; over as many evaluations as every run has.

    The half width is the standard error over seeds; of one seed that of its evaluations. None before there is a curve.
    """
    curves = [run.curve for run in variant.runs if run.curve is not None]
    whole = [run.curve for run in variant.finished if run.curve is not None]
    curves = whole or curves  # a run that failed early would cut the others short
    if not curves:
        return None
    count = min(len(curve) for curve in curves)
    compute = np.array([[0.0, *curve.compute[:count]] for curve in curves])
    rates = np.array([[curve.r0, *curve.pass_rate[:count]] for curve in curves])
    half = np.zeros(count + 1)
    if len(curves) > 1:
        half = rates.std(axis=0, ddof=1) / np.sqrt(len(curves))
    elif curves[0].stderr is not None:
        half = np.array([curves[0].r0_stderr or 0.0, *curves[0].stderr[:count]])
    return Averaged(compute.mean(axis=0), rates.mean(axis=0), half, len(curves))


def plot_ablation(found: Ablation, target: Path) -> list[Path]:
    """Draw both panels; returns the PNG and the SVG next to it.

    Raises:
        InputError: no run has been evaluated after its start yet.
    """
    drawn = [averaged(variant) for variant in found.variants]
    if not any(each is not None for each in drawn):
        raise InputError(f"{found.folder}: no run has an evaluation after its start yet; there is nothing to draw")

    def fill(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1.0))
        style_axes(left)
        style_axes(right, grid="x")
        _curves(left, found, drawn)
        _differences(right, found)

    return write_figure(target, (11.0, max(4.2, 1.5 + 0.36 * len(found.variants))), fill, svg=True, dpi=200)


def _variant_style(place: int) -> tuple[str, Dash]:
    """The base is ink; variants take the colours in turn, then with broken lines."""
    if place == 0:
        return INK, "-"
    return SERIES[(place - 1) % len(SERIES)], DASHES[(place - 1) // len(SERIES) % len(DASHES)]


def _curves(axes: Axes, found: Ablation, drawn: Sequence[Averaged | None]) -> None:
    for place, (variant, curve) in enumerate(zip(found.variants, drawn, strict=True)):
        if curve is None:
            continue
        color, line = _variant_style(place)
        if len(found.variants) <= BANDS or place == 0:
            axes.fill_between(
                curve.compute, curve.rate - curve.half, curve.rate + curve.half, color=color, alpha=0.13, linewidth=0
            )
        axes.plot(
            curve.compute, curve.rate, color=color, linestyle=line, linewidth=2.2 if place == 0 else 1.6, marker="o",
            markersize=3.2 if len(curve.rate) <= 30 else 0.0, markeredgewidth=0, label=variant.name,
            zorder=3 if place == 0 else 2.5,
        )  # fmt: skip
    percent_axis(axes)
    number_axis(axes, "x")
    axes.set_xlim(left=0.0)
    axes.set_ylabel("held-out pass rate")
    axes.set_xlabel(UNITS[found.unit].words)
    band = "band: standard error over seeds" if len(found.manifest.seeds) > 1 else "band: standard error of evaluation"
    if len(found.variants) > BANDS:
        band += ", of the base"
    add_legend(axes, f"Pass rate, {_seeds(found)}; {band}", 9.5)


def _seeds(found: Ablation) -> str:
    count = len(found.manifest.seeds)
    return f"mean of {count} seeds" if count > 1 else "one seed"


def _differences(axes: Axes, found: Ablation) -> None:
    """A dot and its interval for each variant; the shaded band is the margin within which nothing counts."""
    axes.axvspan(-100 * found.margin, 100 * found.margin, color=MARGIN_FILL, linewidth=0, zorder=0)
    axes.axvline(0.0, color=INK, linewidth=1.2)
    labels, ends = ["base"], [-100 * found.margin, 100 * found.margin]
    for place, variant in enumerate(found.variants[1:], start=1):
        color, _ = _variant_style(place)
        labels.append(variant.name)
        paired = variant.difference
        if paired is None:
            axes.annotate(_nothing(variant), (0, place), xytext=(6, 0), textcoords="offset points", va="center",
                          fontsize=8, color="#777d85")  # fmt: skip
            continue
        value = 100 * paired.value
        low, high = (value, value) if paired.interval is None else (100 * end for end in paired.interval)
        each = [100 * pair for pair in variant.pairs]
        ends += [low, high, *each]
        if len(each) > 1:
            axes.plot(each, [place + 0.22] * len(each), "o", color=color, markersize=3.2, alpha=0.55, markeredgewidth=0)
        axes.plot([low, high], [place, place], color=color, linewidth=2.0, solid_capstyle="butt", zorder=2)
        axes.plot(value, place, "o", color=color, markersize=7, markeredgecolor="white", markeredgewidth=1.0, zorder=3)
        axes.annotate(
            difference(paired).replace("-", "−"), (1.0, place), xycoords=("axes fraction", "data"), xytext=(6, 0),
            textcoords="offset points", va="center", fontsize=8, color=INK, annotation_clip=False,
        )  # fmt: skip
    axes.plot(0.0, 0, "D", color=INK, markersize=6)
    axes.set_yticks(range(len(labels)), labels, fontsize=9)
    for place, label in enumerate(axes.get_yticklabels()):
        label.set_color(_variant_style(place)[0])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    room = 0.08 * (max(ends) - min(ends))
    axes.set_xlim(min(ends) - room, max(ends) + room)
    axes.set_xlabel(
        f"final pass rate less the base's (points); shaded: ± {100 * found.margin:g}"
    )
    several = any(v.difference is not None and v.difference.interval is not None for v in found.variants)
    what = (
        f"mean, {table.interval_words(found)}, and each seed (small)" if several else "one seed, so without interval"
    )
    axes.set_title(f"Against the base: {what}", fontsize=9.5, loc="left")


def _nothing(variant: VariantResult) -> str:
    return "failed" if all(run.entry.state == "failed" for run in variant.runs) else "not finished"


MARKDOWN, JSON, FIGURE = "table.md", "results.json", "figure.png"


def write_ablation_report(found: Ablation) -> list[Path]:
    """Write table.md, results.json, figure.png and figure.svg once something was evaluated, and the
    linearised figure next to it once fits of two variants can be compared.

    Returns:
        What was written.
    """
    folder = found.folder
    written: list[Path] = []
    if any(run.curve is not None for variant in found.variants for run in variant.runs):
        written += plot_ablation(found, folder / FIGURE)
    linearised = None
    if found.asymptote is not None:
        target = linearised_beside(folder / FIGURE)
        written += plot_linearised({variant.name: variant.refits for variant in found.variants}, target)
        linearised = target.name
    texts = {
        MARKDOWN: table.as_markdown(found, FIGURE if written else None, linearised),
        JSON: json.dumps(table.as_json(found), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts] + written


# ---------------------------------------------------------------------- verifiers

FEWEST_WRITTEN = 0.05  # the least share of a bar in which its count is written


def plot_agreement(histograms: Mapping[str, Sequence[int]], target: Path) -> Path:
    """Draw how many problems each verifier counts as solved 0, 1, 2 … times (Skywork-OR1, Figure 27); returns the PNG.

    `histograms` are those of `lab.agreement.compare_verifiers`: a bar a verifier, a part of it a number of times.
    """
    from matplotlib import colormaps

    times = len(next(iter(histograms.values())))
    colors = colormaps["viridis"](np.linspace(0.9, 0.2, times))

    def draw(axes: Axes) -> None:
        left = np.zeros(len(histograms))
        for solved in range(times):
            counts = np.array([column[solved] for column in histograms.values()], np.float64)
            width = counts / [sum(column) for column in histograms.values()]
            axes.barh(range(len(histograms)), width, left=left, color=colors[solved], label=str(solved))
            for place in np.flatnonzero(width >= FEWEST_WRITTEN).tolist():
                middle = left[place] + width[place] / 2
                color = ON_COLOR if 2 * solved > times else INK
                axes.text(middle, place, f"{counts[place]:g}", ha="center", va="center", fontsize=8, color=color)
            left += width
        axes.set_yticks(range(len(histograms)), list(histograms))
        axes.set_ylim(len(histograms) - 0.4, -0.6)
        axes.set_xlim(0, 1)
        percent_axis(axes, "x")
        axes.set_xlabel("problems, by how many of their completions are called correct")
        add_legend(axes)

    return _write(draw, target, (6.4, 1.6 + 0.5 * len(histograms)))[0]


# ---------------------------------------------------------------------- gradients under other settings


Value = Callable[["Comparison"], float | None]


def plot_gradients(name: str, found: Sequence[Comparison], target: Path) -> Path:
    """Draw cosine, norms, shares of clipped tokens and effective samples over the steps, as a PNG; returns it.

    Raises:
        InputError: nothing could be compared.
    """
    if not any(one.norm is not None for one in found):
        raise InputError("there is nothing to draw: the effective samples are too small to compare")
    panels = [
        ("cosine with the recorded gradient", _panel(found, lambda one: one.cosine, None, number_axis)),
        ("norm", _panel(found, lambda one: one.norm, lambda one: one.recorded_norm, number_axis)),
        ("tokens clipped", _panel(found, lambda one: one.clipped, lambda one: one.recorded_clipped, _share_axis)),
        ("effective sample", _panel(found, lambda one: one.effective, None, _share_axis)),
    ]
    return write_panels(target, f"{name}: each step under other settings", panels, columns=2)


def _share_axis(axes: Axes) -> None:
    percent_axis(axes)
    axes.set_ylim(bottom=0)


def _panel(found: Sequence[Comparison], value: Value, recorded: Value | None, scale: Callable[[Axes], None]) -> Draw:
    names = list(dict.fromkeys(one.alternative for one in found))
    series = [(name, [one for one in found if one.alternative == name], value) for name in names]
    if recorded is not None:
        series.append(("recorded", series[0][1], recorded))

    def draw(axes: Axes) -> None:
        for place, (label, own, of) in enumerate(series):
            points = [(one.step, y) for one in own if (y := of(one)) is not None]
            color = GREY if label == "recorded" else SERIES[place % len(SERIES)]
            axes.plot([x for x, _ in points], [y for _, y in points], "o-", markersize=3, color=color, label=label)
        scale(axes)
        step_axis(axes)

    return draw
