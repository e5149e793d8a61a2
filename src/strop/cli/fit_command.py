"""`strop fit`: curves fitted, compared, predicted, drawn."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.options import Json, print_table, show

if TYPE_CHECKING:
    from strop.lab.scaling.curves import Curve
    from strop.lab.scaling.fitting import Fit, FitSettings
    from strop.lab.scaling.study import Study


Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|CURVE.csv...",
        help="Run folders and CSV files; NAME=PATH gives a name, and a name given to several makes them its seeds.",
    ),
]
OutFile = Annotated[Path | None, typer.Option("--out", metavar="FIT.json", help="Write everything as JSON.")]
Predict = Annotated[str, typer.Option("--predict", metavar="C1,C2", help="Predict the pass rate at these computes.")]
Before = Annotated[
    float | None, typer.Option("--r0", help="Pass rate before training; also instead of a row at compute 0.")
]
ExactBefore = Annotated[
    bool, typer.Option("--exact-r0", help="Take a measured R_0 as exact instead of letting it move within its noise.")
]
Axis = Annotated[str, typer.Option("--x", metavar="compute|steps|tokens", help="The x-axis.")]
Method = Annotated[
    str,
    typer.Option("--method", metavar="refined|paper", help="Weighted least squares, or the grid of ScaleRL A.5."),
]
Until = Annotated[
    float | None, typer.Option("--fit-until", metavar="C", help="Hold later points back; say how they were met.")
]
Skip = Annotated[
    float, typer.Option("--skip-until", metavar="C", help="Leave out earlier points (ScaleRL: 1500 GPU-hours).")
]
Windows = Annotated[
    str, typer.Option("--windows", metavar="LOW:HIGH,...|auto", help="Fit over windows too, to see what stays.")
]
Bootstrap = Annotated[int, typer.Option("--bootstrap", metavar="N", help="Samples behind the intervals.")]
Level = Annotated[float, typer.Option("--level", help="Level of the intervals.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the bootstrap.", min=0)]
Margin = Annotated[float, typer.Option("--margin", help="By how much A must differ to count.", min=0.0)]
Metric = Annotated[str, typer.Option("--metric", metavar="NAME", help="Of a run: the evaluation metric to fit.")]
AGrid = Annotated[str, typer.Option("--a-grid", metavar="FROM:TO:COUNT", help="With --method paper: the grid of A.")]
MidGrid = Annotated[
    str, typer.Option("--c-mid-grid", metavar="FROM:TO:COUNT,...", help="With --method paper: the grid of C_mid.")
]
Picture = Annotated[
    Path | None, typer.Option("--plot", metavar="PATH.png", help="Draw the curves; PNG and SVG are both written.")
]


def fit(
    sources: Sources,
    out: OutFile = None,
    predict: Predict = "",
    r0: Before = None,
    exact_r0: ExactBefore = False,
    x: Axis = "compute",
    method: Method = "refined",
    fit_until: Until = None,
    skip_until: Skip = 0.0,
    windows: Windows = "",
    bootstrap: Bootstrap = 500,
    level: Level = 0.9,
    seed: Seed = 0,
    margin: Margin = 0.02,
    metric: Metric = "evaluation/pass_rate",
    a_grid: AGrid = "",
    c_mid_grid: MidGrid = "",
    plot: Picture = None,
    as_json: Json = False,
) -> None:
    """Fit compute-performance curves, predict from them, and say which recipe is better.

    A curve is the held-out pass rate of a run, or a CSV with columns compute and pass_rate (stderr, steps and tokens if
    known). The row at compute 0 is R_0, unless --r0 gives it. What is fitted is ScaleRL's Eq. 1:

    \b
    R_C = R_0 + (A - R_0) / (1 + (C_mid / C)^B)

    A is the pass rate that more compute approaches, C_mid the compute of half the gain, B the steepness. Points that do
    not support a fit (flat, falling, no curvature yet, too few) are refused, and the reason is said; the exit code is 1
    where every curve is.

    \b
    strop fit runs/scalerl
    strop fit scalerl.csv dapo.csv --skip-until 1500 --fit-until 8000 --predict 16000,100000 --plot curves.png
    strop fit scalerl=runs/s0 scalerl=runs/s1 scalerl=runs/s2 dapo=runs/d0     seeds of two recipes
    strop fit runs/scalerl --windows auto --out fit.json
    """
    from strop.lab.scaling.study import as_json as plain_values
    from strop.lab.scaling.study import study

    settings = _settings(method, skip_until, fit_until, level, bootstrap, seed, exact_r0, a_grid, c_mid_grid)
    computes, ranges = _numbers("--predict", predict), _windows(windows)
    recipes = _read(sources, x, r0, metric)
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise _refusal(f"--plot {plot}: name a .png (the .svg is written beside it)")
    fitted, over = _fit_all(recipes, settings, ranges)
    found = study(fitted, computes, over, margin)
    value = plain_values(found)
    if out is not None:
        _write(out, value)
    pictures = _draw(plot, found) if plot is not None else []
    show(as_json, value, lambda: _tables(found))
    if not as_json:
        for picture in [*pictures, *([out] if out is not None else [])]:
            print(picture)
    if all(each.refused is not None for each in found.fits):
        print("strop: nothing was fitted, every curve is refused", file=sys.stderr)
        raise typer.Exit(1)


def _refusal(message: str) -> Exception:
    from strop.base.types import InputError

    return InputError(message)


# ---------------------------------------------------------------------- arguments


def _settings(
    method: str,
    skip_until: float,
    fit_until: float | None,
    level: float,
    bootstrap: int,
    seed: int,
    exact_r0: bool,
    a_grid: str,
    c_mid_grid: str,
) -> FitSettings:
    from pydantic import ValidationError

    from strop.base.pieces import refused_flag
    from strop.lab.scaling.fitting import FitSettings

    given: dict[str, object] = {
        "method": method, "skip_until": skip_until, "fit_until": fit_until, "level": level, "bootstrap": bootstrap,
        "seed": seed, "exact_r0": exact_r0,
    }  # fmt: skip
    if (a_grid or c_mid_grid) and method != "paper":
        raise _refusal("--a-grid and --c-mid-grid are those of --method paper; the refined method has no grid")
    if a_grid:
        given["a_grid"] = _grid("--a-grid", a_grid)
    if c_mid_grid:
        given["c_mid_grids"] = tuple(_grid("--c-mid-grid", part) for part in c_mid_grid.split(","))
    if fit_until is not None and fit_until <= skip_until:
        raise _refusal(f"--fit-until {fit_until:g} does not lie beyond --skip-until {skip_until:g}")
    try:
        return FitSettings.model_validate(given)
    except ValidationError as error:
        raise refused_flag(error, FitSettings) from error


def _grid(flag: str, text: str) -> tuple[float, float, int]:
    parts = text.split(":")
    try:
        low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
    except (ValueError, IndexError) as error:
        raise _refusal(f"{flag} {text}: write FROM:TO:COUNT, such as 0.45:0.8:71") from error
    if len(parts) != 3 or not 0 < low < high < float("inf") or not 2 <= count <= 2000:
        raise _refusal(f"{flag} {text}: write FROM:TO:COUNT with 0 < FROM < TO and 2 to 2000 values")
    return low, high, count


def _numbers(flag: str, text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise _refusal(f"{flag} {text}: write numbers with commas between, such as 16000,100000") from error
    if not all(0 < value < float("inf") for value in found):
        raise _refusal(f"{flag} {text}: computes are positive numbers")
    return found


def _windows(text: str) -> list[tuple[float, float]] | None:
    """The windows; None for `auto`, empty where none are asked for."""
    if text == "auto":
        return None
    found = []
    for part in text.split(",") if text else ():
        low, _, high = part.partition(":")
        try:
            window = float(low), float(high)
        except ValueError as error:
            raise _refusal(f"--windows {part}: write LOW:HIGH, such as 1500:50000, or auto") from error
        if not 0 <= window[0] < window[1] < float("inf"):
            raise _refusal(f"--windows {part}: LOW must be 0 or more and below HIGH")
        found.append(window)
    return found


def _read(sources: Sequence[str], x: str, r0: float | None, metric: str) -> dict[str, list[Curve]]:
    """Curves by recipe, each with a name of its own."""
    from strop.lab.scaling.sources import read_sources

    if x not in ("compute", "steps", "tokens"):
        raise _refusal(f"--x {x}: the x-axis is compute, steps or tokens")
    return read_sources(sources, x, r0, metric)  # type: ignore[arg-type]


def _fit_all(
    recipes: Mapping[str, Sequence[Curve]], settings: FitSettings, windows: list[tuple[float, float]] | None
) -> tuple[dict[str, list[Fit]], dict[str, Mapping[str, Fit]]]:
    from rich.console import Console
    from rich.progress import Progress

    from strop.lab.scaling.compare import auto_windows, fit_windows
    from strop.lab.scaling.fitting import fit as fit_one

    fitted: dict[str, list[Fit]] = {}
    over: dict[str, Mapping[str, Fit]] = {}
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("fitting", total=sum(len(curves) for curves in recipes.values()))
        for recipe, curves in recipes.items():
            for curve in curves:
                fitted.setdefault(recipe, []).append(fit_one(curve, settings))
                chosen = auto_windows(curve, settings) if windows is None else windows
                if chosen:
                    over[curve.name] = fit_windows(curve, chosen, settings)
                progress.advance(task)
    return fitted, over


# ---------------------------------------------------------------------- what comes out


def _write(out: Path, value: object) -> None:
    import json

    from strop.base.files import replacing

    with replacing(out) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _draw(plot: Path, found: Study) -> list[Path]:
    from strop.report.figures.scaling import linearised_beside, plot_fits, plot_linearised

    pictures = [*plot_fits(found.fits, plot, found.predict)]
    if len(found.joint) > 1:
        pictures += plot_linearised(found.joint, linearised_beside(plot))
    return pictures


def _tables(found: Study) -> None:
    _fit_table(found)
    for each in found.fits:
        if each.refused is not None:
            print(f"{each.name}: refused, {each.refused}")
        for note in each.notes:
            print(f"{each.name}: {note}")
    _prediction_table(found)
    _window_table(found)
    if len(found.joint) > 1:
        rows = [
            (each.fit.name, _with_interval(each.sigmoid.B, each.b_interval, ".2f"),
             _with_interval(each.sigmoid.C_mid, each.c_mid_interval), f"{each.sse:.3g}")
            for each in found.joint
        ]  # fmt: skip
        print_table((f"A fixed to {found.joint[0].sigmoid.A:.3f}", "B", "C_mid", "sse"), rows)
    for spread in found.seeds:
        if spread.asymptotes:
            few = "" if spread.enough else "; three seeds at least make a margin"
            print(
                f"{spread.recipe}: A of {len(spread.asymptotes)} seeds {spread.mean:.3f} ± {spread.deviation:.3f} "
                f"(mean and largest deviation){few}"
            )
    for comparison in found.comparisons:
        print(f"{comparison.first} and {comparison.second}: {comparison}")


def _fit_table(found: Study) -> None:
    rows = [
        (
            each.name,
            _with_interval(each.sigmoid.A, each.interval("A"), ".3f"),
            _with_interval(each.sigmoid.B, each.interval("B"), ".2f"),
            _with_interval(each.sigmoid.C_mid, each.interval("C_mid")),
        )
        if each.sigmoid is not None
        else (each.name, "refused", "", "")
        for each in found.fits
    ]
    level = f"{100 * found.fits[0].settings.level:g} % intervals"
    print_table((level, "A", "B", "C_mid"), rows)
    columns = ("", "R_0", "points", "sse", "power law sse", "power law A")
    print_table(columns, [_points_row(each) for each in found.fits])


def _points_row(each: Fit) -> tuple[str, ...]:
    points = str(len(each.used)) if len(each.used) == len(each.curve) else f"{len(each.used)} of {len(each.curve)}"
    if each.sse is None:
        return each.name, f"{each.curve.r0:.3f}", points, "", "", ""
    law = each.power_law()
    return each.name, f"{each.curve.r0:.3f}", points, f"{each.sse:.3g}", f"{law.sse:.3g}", f"{law.A:.3f}"


def _prediction_table(found: Study) -> None:
    rows = [
        (each.name, f"{p.compute:,.6g}", _with_interval(p.pass_rate, p.interval, ".3f"),
         f"{p.measured[0]:.3f} to {p.measured[1]:.3f}", f"{float(each.power_law().value(p.compute)):.3f}")
        for each in found.fits if each.sigmoid is not None for p in each.predict(found.predict)
    ]  # fmt: skip
    if rows:
        print_table(("prediction", "at", "pass rate", "of a measurement", "power law"), rows)
    held = [(each.name, each.held_back_error()) for each in found.fits]
    lines = [
        (name, str(e.points), f"{e.mean_error:+.4f}", f"{e.mean_absolute_error:.4f}", f"{e.largest_error:+.4f}",
         f"{100 * e.covered:.0f} %", f"{e.power_law:.4f}")
        for name, e in held if e is not None
    ]  # fmt: skip
    if lines:
        columns = ("held back", "points", "mean error", "mean |error|", "largest", "in interval", "power law |error|")
        print_table(columns, lines)


def _window_table(found: Study) -> None:
    rows = []
    for name, fits in found.windows.items():
        for window, each in fits.items():
            if each.sigmoid is None:
                rows.append((name, window, str(len(each.used)), "refused", (each.refused or "").partition(":")[0], ""))
                continue
            rows.append(
                (
                    name,
                    window,
                    str(len(each.used)),
                    _with_interval(each.sigmoid.A, each.interval("A"), ".3f"),
                    _with_interval(each.sigmoid.B, each.interval("B"), ".2f"),
                    _with_interval(each.sigmoid.C_mid, each.interval("C_mid")),
                )
            )
    if rows:
        print_table(("windows", "compute", "points", "A", "B", "C_mid"), rows)


def _with_interval(value: float, interval: tuple[float, float], form: str | None = None) -> str:
    """`0.609 (0.607 to 0.610)`, by default with four significant digits and without exponents."""
    from strop.base.view import number

    parts = (interval[0], value, interval[1])
    low, middle, high = (number(part) if form is None else f"{part:{form}}" for part in parts)
    return f"{middle} ({low} to {high})"
