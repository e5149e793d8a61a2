"""Gradients under other settings (`strop replay --set`): a line a step, a table, and a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from strop.base.text import number, percent
from strop.base.types import InputError
from strop.lab.what_if import LEAST, Comparison
from strop.report.drawing import GREY, SERIES, Draw, number_axis, percent_axis, step_axis, write_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("settings", "steps", "cosine", "least", "norm", "recorded", "clipped", "recorded", "effective, least")
REFUSED = f"not compared: the effective sample is below {percent(LEAST)} of the sequences"


def said(one: Comparison) -> str:
    """A comparison as a line."""
    begin = f"step {one.step}, {one.alternative}: "
    if one.norm is None:
        return f"{begin}{REFUSED} ({percent(one.effective)})"
    cosine = "one gradient is 0" if one.cosine is None else f"cosine {one.cosine:.3f}"
    return (
        f"{begin}{cosine}, norm {number(one.norm)} for {number(one.recorded_norm or 0.0)}, clipped "
        f"{_share(one.clipped)} for {_share(one.recorded_clipped)}, effective sample {percent(one.effective)}"
    )


def table(found: Sequence[Comparison]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and a row for each alternative: means over the steps that could be compared, of how many."""
    rows = []
    for name in dict.fromkeys(one.alternative for one in found):
        own = [one for one in found if one.alternative == name]
        cosines = _known(own, lambda one: one.cosine)
        means = [_mean(own, lambda one: one.norm), _mean(own, lambda one: one.recorded_norm)]
        shares = [_mean(own, lambda one: one.clipped), _mean(own, lambda one: one.recorded_clipped)]
        rows.append((
            name, f"{sum(one.norm is not None for one in own)} of {len(own)}",
            *((f"{fmean(cosines):.3f}", f"{min(cosines):.3f}") if cosines else ("-", "-")),
            *("-" if mean is None else number(mean) for mean in means), *map(_share, shares),
            percent(min(one.effective for one in own)),
        ))  # fmt: skip
    return COLUMNS, rows


def plot(name: str, found: Sequence[Comparison], target: Path) -> Path:
    """Draw cosine, norms, shares of clipped tokens and effective samples over the steps, as a PNG; returns it.

    Raises:
        InputError: nothing could be compared.
    """
    if not any(one.norm is not None for one in found):
        raise InputError(f"there is nothing to draw: {REFUSED}")
    panels = [
        ("cosine with the recorded gradient", _panel(found, lambda one: one.cosine, None, number_axis)),
        ("norm", _panel(found, lambda one: one.norm, lambda one: one.recorded_norm, number_axis)),
        ("tokens clipped", _panel(found, lambda one: one.clipped, lambda one: one.recorded_clipped, percent_axis)),
        ("effective sample", _panel(found, lambda one: one.effective, None, percent_axis)),
    ]
    return write_panels(target, f"{name}: each step under other settings", panels, columns=2)


Value = Callable[[Comparison], float | None]


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


def _known(found: Sequence[Comparison], value: Value) -> list[float]:
    return [known for one in found if (known := value(one)) is not None]


def _mean(found: Sequence[Comparison], value: Value) -> float | None:
    known = _known(found, value)
    return fmean(known) if known else None


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)
