"""The arguments of strop ablate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

XAxis = Literal["compute", "steps", "tokens"]

Target = Annotated[
    str, typer.Argument(metavar="RECIPE|FILE", help="What to vary; or `show`, with the FOLDER of an ablation.")
]
Shown = Annotated[Path | None, typer.Argument(metavar="[FOLDER]", help="Of `show` alone.", show_default=False)]
LeaveOneOut = Annotated[bool, typer.Option("--leave-one-out", help="Take away one part of the recipe at a time.")]
Baseline = Annotated[
    str | None, typer.Option(metavar="RECIPE|FILE", help="With --leave-one-out: what each setting goes back to.")
]
Grid = Annotated[
    list[str],
    typer.Option("--grid", metavar="KEY=A,B,C", help="Values of a setting; again for the product.", show_default=False),
]
Named = Annotated[
    list[str],
    typer.Option(
        "--variant", metavar="NAME:KEY=VALUE,…", help="A variant of your own; may be repeated.", show_default=False
    ),
]
Seeds = Annotated[str, typer.Option(metavar="N,N,N", help="Every variant is run with each.")]
Steps = Annotated[int | None, typer.Option(help="Training steps of every run.", min=1)]
Folder = Annotated[
    Path | None, typer.Option("--out", metavar="FOLDER", help="Where all runs go; by default runs/ablate-RECIPE.")
]
Jobs = Annotated[int, typer.Option(help="Runs side by side; on this machine the cores are shared out.", min=1)]
OnRay = Annotated[bool, typer.Option("--ray", help="Make each run on a node of a Ray cluster.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="With --ray: of a running cluster; else RAY_ADDRESS, else one of its own."),
]
Cpus = Annotated[float, typer.Option(help="With --ray: what each run reserves.", min=0.01)]
Gpus = Annotated[int, typer.Option(help="With --ray: what each run reserves.", min=0)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List what would run, and end.")]
Over = Annotated[XAxis, typer.Option("--x", help="What curves and fits are over.")]
Level = Annotated[float, typer.Option(help="Of the intervals, above 0 and below 1.")]
Margin = Annotated[float, typer.Option(help="What a verdict must exceed, in pass rate.", min=0, max=1)]
