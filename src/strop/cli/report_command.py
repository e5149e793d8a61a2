"""`strop report`: one page on one or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strop.cli.options import Imports, Json, allow, bar, show

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several are laid over one another.")]
Target = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FOLDER|FILE.html",
        help="Where to write; by default RUN/report, or report in the present folder for several runs.",
    ),
]  # fmt: skip
Samples = Annotated[
    int, typer.Option("--samples", metavar="N", help="Completions to show token by token, 0 for none.", min=0, max=200)
]


def report(
    runs: Runs,
    out: Target = None,
    samples: Samples = 8,
    imports: Imports = [],  # noqa: B006  (typer copies it)
    as_json: Json = False,
) -> None:
    """Write one HTML page on a run, or on several compared, with its pictures as PNG files too.

    The page needs nothing but itself: no network, no server. It has the curves, the evaluations, what differs from the
    recipe, the tokens the model was sure and unsure of, and what it wrote at the beginning and at the end. All of it is
    read from what the run recorded; what is not there is left out, and the page says so. PNG files lie in the folder of
    the report; those of a page that --out names (compared.html) in compared-pictures.

    \b
    strop report runs/first
    strop report runs/grpo runs/dapo --out compared.html
    strop report runs/first --samples 4
    """
    from strop.run.folder import RunFolder

    allow(imports)
    for run in runs:
        RunFolder.open(run)  # says what is wrong before torch takes its seconds to load
    from strop.report.build import write_report

    with bar("reading") as tell:
        written = write_report(runs, out, samples, lambda what: tell(what=what))
    value = {
        "report": str(written.page),
        "pictures": [str(picture) for picture in written.pictures],
        "left_out": list(written.left_out),
    }

    def lines() -> None:
        for line in written.left_out:
            print(f"left out   {line}")
        if written.pictures:
            print(f"pictures   {len(written.pictures)} PNG files in {written.pictures[0].parent}")
        print(f"report     {written.page}")

    show(as_json, value, lines)
