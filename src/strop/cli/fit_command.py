"""`strop fit`: curves fitted, compared, predicted, drawn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.options import Json, bar, print_table, show

if TYPE_CHECKING:
    from strop.lab.scaling.study import Study

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|CURVE.csv|ABLATION...",
        help="Run folders, CSV files and folders of ablations, whose variants are recipes with their seeds; NAME=PATH "
        "gives a name, and a name given to several makes them its seeds.",
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
    strop fit runs/ablate-scalerl --fit-until 8000 --plot leave-one-out.png     every variant and seed of an ablation
    """
    from strop.base.files import write_json
    from strop.base.types import InputError
    from strop.lab.scaling import study
    from strop.lab.scaling.curves import read_sources
    from strop.lab.scaling.study import as_json as plain_values
    from strop.lab.scaling.study import fit_study

    settings = {
        "method": method, "skip_until": skip_until, "fit_until": fit_until, "level": level, "bootstrap": bootstrap,
        "seed": seed, "exact_r0": exact_r0,
    }  # fmt: skip
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise InputError(f"--plot {plot}: name a .png (the .svg is written next to it)")
    chosen = study.fit_settings(settings, a_grid, c_mid_grid)
    computes, ranges = study.computes("--predict", predict), study.windows(windows)
    recipes = read_sources(sources, x, r0, metric)
    with bar("fitting", sum(map(len, recipes.values()))) as tell:
        found = fit_study(recipes, chosen, computes, ranges, margin, tell)
    value = plain_values(found)
    if out is not None:
        write_json(out, value)
    pictures = _draw(plot, found) if plot is not None else []
    show(as_json, value, lambda: _print(found, [*pictures, *([out] if out is not None else [])]))
    if all(each.refused is not None for each in found.fits):
        print("strop: nothing was fitted, every curve is refused", file=sys.stderr)
        raise typer.Exit(1)


def _draw(plot: Path, found: Study) -> list[Path]:
    from strop.report.figures.scaling import linearised_beside, plot_fits, plot_linearised

    pictures = plot_fits(found.fits, plot, found.predict)
    if len(found.joint) > 1:
        pictures += plot_linearised({each.fit.name: [each] for each in found.joint}, linearised_beside(plot))
    return pictures


def _print(found: Study, written: list[Path]) -> None:
    from strop.lab.scaling.tables import tables

    for part in tables(found):
        if isinstance(part, str):
            print(part)
        else:
            print_table(*part)
    for path in written:
        print(path)
