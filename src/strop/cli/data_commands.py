"""Commands on data: prepare, show, mappings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from strop.cli.options import Imports, Json, Plain, allow, print_json, print_table, show, viewing

data_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Prepare problems for training, and look at what came out.

    \b
    strop data prepare --example > prepare.toml        a configuration with every step, to edit
    strop data prepare prepare.toml                    from raw sets to train.parquet and a report
    strop data show prepared/train.parquet             some of the problems
    strop data mappings                                the sets that need no column names
    """,
)


@data_app.command("prepare", short_help="Turn raw problems into training problems.")
def prepare(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG.toml", help="Sources and steps.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Instead of `out` of the file.")] = None,
    example: Annotated[bool, typer.Option("--example", help="Print a commented configuration and end.")] = False,
    imports: Imports = [],  # noqa: B006  (typer copies it)
    plain: Plain = False,
    as_json: Json = False,
) -> None:
    """Filter, deduplicate, decontaminate, rate and split problems, step by step as the file says.

    The folder gets train.parquet, validation.parquet, dropped.parquet (every dropped row with its reason, and the
    question that it repeats) and report.json. A run that was stopped goes on with the same command where it stopped.

    \b
    strop data prepare --example > prepare.toml
    strop data prepare prepare.toml --out prepared
    strop train grpo --set model.path=MODEL --set data.source=prepared/train.parquet
    """
    from strop.base.types import InputError

    if example:
        from strop.prepare.config import example_config

        print(example_config(), end="")
        return
    if config is None:
        raise InputError("name a configuration; `strop data prepare --example > prepare.toml` writes one to begin with")
    allow(imports)
    from strop import prepare as heavy
    from strop.prepare.pipeline import source_table, step_table

    settings = heavy.load_config(config)
    if out is not None:
        settings = settings.model_copy(update={"out": str(out)})
    again = f"stopped; the same command goes on from what is done in {settings.out}"
    with viewing(plain, f"strop · data prepare · {settings.out}", again, to_stderr=True) as view:
        report = heavy.prepare(settings, view)
    if as_json:
        print_json(report)
        return
    print_table(("step", "in", "out", "seconds", "dropped because"), step_table(report))
    print_table(("source", "in", "out", "dropped because"), source_table(report))
    print(f"problems  {settings.out}/train.parquet ({report['problems_out']:,})")
    if report["validation"]:
        print(f"held out  {settings.out}/validation.parquet ({report['validation']:,})")
    print(f"dropped   {settings.out}/dropped.parquet ({report['dropped']:,})")
    print(f"report    {settings.out}/report.json")


@data_app.command("show", short_help="Show some problems of a file.")
def show_problems(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A .parquet, .jsonl, .json or .csv file.")],
    count: Annotated[int, typer.Option("--n", "-n", help="How many.", min=1)] = 5,
    skip: Annotated[int, typer.Option(help="How many to skip first.", min=0)] = 0,
    identity: Annotated[str | None, typer.Option("--id", help="The problem with this id only.")] = None,
    mapping: Annotated[str | None, typer.Option(help="A ready mapping that reads the file.")] = None,
    as_json: Json = False,
) -> None:
    """Show some problems of a file, as a preparation reads them; of dropped.parquet also why they were dropped.

    \b
    strop data show prepared/train.parquet --n 3
    strop data show prepared/dropped.parquet
    strop data show deepscaler.json --mapping deepscaler
    """
    from itertools import islice

    from strop.base.types import InputError
    from strop.prepare.sources import described

    found = islice((row for row in described(file, mapping) if identity in (None, row["id"])), skip, skip + count)
    rows: list[dict[str, Any]] = list(found)
    if not rows and identity is not None:
        raise InputError(f"--id {identity}: {file} has no problem of this id")

    def text() -> None:
        if not rows:
            print(f"{file} has no problems" + (f" beyond the first {skip}" if skip else ""), file=sys.stderr)
        for row in rows:
            print(f"── {row['id']}")
            for name, value in row.items():
                if name != "id" and value not in ("", {}, None):
                    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                    print(f"{name}: {written if name == 'prompt' or len(written) < 400 else written[:400] + '…'}")
            print()

    show(as_json, rows, text)


@data_app.command("mappings", short_help="List the sets whose columns are known.")
def mappings(as_json: Json = False) -> None:
    """List the sets whose columns are known, as `mapping = …` in a configuration names them."""
    from strop.prepare.mappings import MAPPINGS

    rows = [
        {"mapping": name, "hub": ready.hub, "subset": ready.subset, "split": ready.split, "domain": ready.domain}
        for name, ready in MAPPINGS.items()
    ]

    def table() -> None:
        cells = [tuple(str(value or "") for value in row.values()) for row in rows]
        print_table(("mapping", "on the hub", "subset", "split", "domain"), cells)

    show(as_json, rows, table)
