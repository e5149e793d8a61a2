"""The output of `strop fit` on a terminal: tables and lines, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from strop.base.text import number
from strop.lab.ablation.collect import SeedMean, mean
from strop.lab.scaling.compare import Refit
from strop.lab.scaling.fitting import Fit
from strop.lab.scaling.study import Study


class TextTable(NamedTuple):
    """Columns, and rows of as many cells."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(found: Study) -> Iterator[TextTable | str]:
    """The fits, refusals and notes, predictions, windows, the joint refit, seeds and comparisons."""
    if any(each.refused is None for each in found.fits):
        yield from _fitted(found)
    for each in found.fits:
        if each.refused is not None:
            yield f"{each.name}: refused, {each.refused}"
        yield from (f"{each.name}: {note}" for note in each.notes)
    yield from _predictions(found)
    windows = [
        (name, window, str(len(each.used)), *_parameters(each, "refused", (each.refused or "").partition(":")[0]))
        for name, fits in found.windows.items()
        for window, each in fits.items()
    ]
    if windows:
        yield TextTable(("windows", "compute", "points", "A", "B", "C_mid"), windows)
    if len(found.joint) > 1:
        rows = [
            (each.fit.name, with_interval(each.sigmoid.B, each.b_interval, ".2f"),
             with_interval(each.sigmoid.C_mid, each.c_mid_interval), f"{each.sse:.3g}")
            for each in found.joint
        ]  # fmt: skip
        yield TextTable((f"A fixed to {found.joint[0].sigmoid.A:.3f}", "B", "C_mid", "sse"), rows)
    for spread in found.seeds:
        if spread.asymptotes:
            few = "" if spread.enough else "; three seeds at least make a margin"
            yield (
                f"{spread.recipe}: A of {len(spread.asymptotes)} seeds {spread.mean:.3f} ± {spread.deviation:.3f} "
                f"(mean and largest deviation){few}"
            )
    yield from (f"{each.first} and {each.second}: {each}" for each in found.comparisons)


def _fitted(found: Study) -> Iterator[TextTable]:
    """The parameters of the fits, and the points and errors behind them."""
    level = f"{100 * found.fits[0].settings.level:g} % intervals"
    yield TextTable((level, "A", "B", "C_mid"), [(each.name, *_parameters(each, "refused")) for each in found.fits])
    columns = ("", "R_0", "points", "sse", "power law sse", "power law A")
    yield TextTable(columns, [_points_row(each) for each in found.fits])


def _parameters(each: Fit, *refused: str) -> tuple[str, str, str]:
    """A, B and C_mid with their intervals, or in their place what `refused` says."""
    sigmoid = each.sigmoid
    if sigmoid is None:
        first, second, third = (*refused, "", "")[:3]
        return first, second, third
    return (
        with_interval(sigmoid.A, each.interval("A"), ".3f"),
        with_interval(sigmoid.B, each.interval("B"), ".2f"),
        with_interval(sigmoid.C_mid, each.interval("C_mid")),
    )


def _points_row(each: Fit) -> tuple[str, ...]:
    points = str(len(each.used)) if len(each.used) == len(each.curve) else f"{len(each.used)} of {len(each.curve)}"
    if each.sse is None:
        return each.name, f"{each.curve.r0:.3f}", points, "", "", ""
    law = each.power_law()
    return each.name, f"{each.curve.r0:.3f}", points, f"{each.sse:.3g}", f"{law.sse:.3g}", f"{law.A:.3f}"


def _predictions(found: Study) -> Iterator[TextTable]:
    rows = [
        (each.name, f"{p.compute:,.6g}", with_interval(p.pass_rate, p.interval, ".3f"),
         f"{p.measured[0]:.3f} to {p.measured[1]:.3f}", f"{float(each.power_law().value(p.compute)):.3f}")
        for each in found.fits if each.sigmoid is not None for p in each.predict(found.predict)
    ]  # fmt: skip
    if rows:
        yield TextTable(("prediction", "at", "pass rate", "of a measurement", "power law"), rows)
    held = [(each.name, each.held_back_error()) for each in found.fits]
    lines = [
        (name, str(e.points), f"{e.mean_error:+.4f}", f"{e.mean_absolute_error:.4f}", f"{e.largest_error:+.4f}",
         f"{100 * e.covered:.0f} %", f"{e.power_law:.4f}")
        for name, e in held if e is not None
    ]  # fmt: skip
    if lines:
        columns = ("held back", "points", "mean error", "mean |error|", "largest", "in interval", "power law |error|")
        yield TextTable(columns, lines)


def slope(refits: Sequence[Refit]) -> str:
    """B of a recipe with A fixed: mean ± standard error over its seeds; of one fit with its bootstrap interval."""
    found = slope_mean(refits)
    if found is None:
        return ""
    if found.stderr is None:
        return with_interval(found.value, refits[0].b_interval, ".2f")
    return f"{found.value:.2f} ± {found.stderr:.2f}"


def slope_mean(refits: Sequence[Refit]) -> SeedMean | None:
    """B over the seeds of a recipe; None without any."""
    return mean([each.sigmoid.B for each in refits])


def with_interval(value: float, interval: tuple[float, float], form: str | None = None) -> str:
    """`0.609 (0.607 to 0.610)`, by default with four significant digits and without exponents."""
    low, middle, high = (
        number(part) if form is None else f"{part:{form}}" for part in (interval[0], value, interval[1])
    )
    return f"{middle} ({low} to {high})"
