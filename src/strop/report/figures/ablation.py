"""The one figure of an ablation: pass rate over compute for all variants, and their paired differences to the base."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.base.files import write_text
from strop.base.types import InputError
from strop.lab.ablation import table
from strop.lab.ablation.collect import Ablation, VariantResult
from strop.lab.ablation.table import difference
from strop.report.figures.writer import (
    DASHES,
    INK,
    SERIES,
    Dash,
    add_legend,
    number_axis,
    percent_axis,
    style_axes,
    write_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def _style(place: int) -> tuple[str, Dash]:
    """The base is ink; variants take the colours in turn, then with broken lines."""
    if place == 0:
        return INK, "-"
    return SERIES[(place - 1) % len(SERIES)], DASHES[(place - 1) // len(SERIES) % len(DASHES)]


def _curves(axes: Axes, found: Ablation, drawn: Sequence[Averaged | None]) -> None:
    for place, (variant, curve) in enumerate(zip(found.variants, drawn, strict=True)):
        if curve is None:
            continue
        color, line = _style(place)
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
    axes.set_xlabel(_unit(found))
    band = "band: standard error over seeds" if len(found.manifest.seeds) > 1 else "band: standard error of evaluation"
    if len(found.variants) > BANDS:
        band += ", of the base"
    add_legend(axes, f"Pass rate, {_seeds(found)}; {band}", 9.5)


def _seeds(found: Ablation) -> str:
    count = len(found.manifest.seeds)
    return f"mean of {count} seeds" if count > 1 else "one seed"


def _unit(found: Ablation) -> str:
    units = [run.curve.unit for variant in found.variants for run in variant.runs if run.curve is not None]
    return units[0]


def _differences(axes: Axes, found: Ablation) -> None:
    """A dot and its interval for each variant; the shaded band is the margin within which nothing counts."""
    axes.axvspan(-100 * found.margin, 100 * found.margin, color=MARGIN_FILL, linewidth=0, zorder=0)
    axes.axvline(0.0, color=INK, linewidth=1.2)
    labels, ends = ["base"], [-100 * found.margin, 100 * found.margin]
    for place, variant in enumerate(found.variants[1:], start=1):
        color, _ = _style(place)
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
        label.set_color(_style(place)[0])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    room = 0.08 * (max(ends) - min(ends))
    axes.set_xlim(min(ends) - room, max(ends) + room)
    axes.set_xlabel(
        f"final pass rate less the base's (points); shaded: ± {100 * found.margin:g}"
    )
    several = any(v.difference is not None and v.difference.interval is not None for v in found.variants)
    what = (
        f"mean, {100 * found.level:g} % interval and each seed (small)" if several else "one seed, so without interval"
    )
    axes.set_title(f"Against the base: {what}", fontsize=9.5, loc="left")


def _nothing(variant: VariantResult) -> str:
    return "failed" if all(run.entry.state == "failed" for run in variant.runs) else "not finished"


MARKDOWN, JSON, FIGURE = "table.md", "results.json", "figure.png"


def write_report(found: Ablation) -> list[Path]:
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
        from strop.report.figures.scaling import linearised_beside, plot_linearised

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
