"""Commands before a run: recipes, settings, doctor, smoke, data."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from strop.cli.options import (
    Imports,
    Json,
    Plain,
    Sets,
    Tiny,
    allow,
    print_json,
    print_markdown,
    print_table,
    show,
    viewing,
    waiting,
)

PageOut = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="A Markdown file to write it to.")]

recipes_app = typer.Typer(
    rich_markup_mode=None,
    help="""What can be trained: list the recipes, or show every setting of one.

    \b
    strop recipes
    strop recipes show scalerl
    strop recipes show grpo --set data.source=train.jsonl
    """,
)


@recipes_app.callback(invoke_without_command=True)
def recipes(context: typer.Context, as_json: Json = False) -> None:
    """List the recipes."""
    if context.invoked_subcommand is not None:
        return
    from strop.recipes import catalogue

    found = catalogue()
    value = [{"name": recipe.name, "summary": recipe.summary} for recipe in found]
    show(as_json, value, lambda: print_table(("recipe", ""), [(recipe.name, recipe.summary) for recipe in found]))


@recipes_app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A recipe, or a .toml, .json or .py file.")],
    sets: Sets = [],  # noqa: B006  (typer copies it)
    small: Tiny = False,
    imports: Imports = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Show every setting of a recipe, each as --set would take it.

    With --json it prints a whole configuration, which `strop train FILE.json` accepts.
    """
    from strop.config.edits import flatten
    from strop.recipes.resolve import resolve

    allow(imports, sets)
    config = resolve(name, sets, small).model_dump(mode="json")

    def lines() -> None:
        for key, value in flatten(config):
            print(f"{key}={value}")

    show(as_json, config, lines)


def settings(
    part: Annotated[
        str, typer.Argument(metavar="PART", help="The beginning of a key (sampling, optim.lr), or a piece (Cispo).")
    ] = "",
    out: PageOut = None,
) -> None:
    """Print every setting: its key, what may stand there, its default, what it does; into a file or a pipe as Markdown.

    \b
    strop settings sampling
    strop settings training
    strop settings orchestration.max_lag
    strop settings Cispo
    strop settings Judges
    strop settings --out docs/settings.md
    """
    from strop.report.reference import reference

    _show_page(reference(part), out)


def _show_page(text: str, out: Path | None) -> None:
    if out is None:
        print_markdown(text)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)


pieces_app = typer.Typer(
    rich_markup_mode=None,
    help="""Print every loss, advantage and other piece of an algorithm: equation, paper, recipes, gradient.

    \b
    strop pieces
    strop pieces --out docs/algorithms.md
    strop pieces plot --out docs/losses.png
    """,
)


@pieces_app.callback(invoke_without_command=True)
def pieces(context: typer.Context, out: PageOut = None) -> None:
    """Print every piece of an algorithm."""
    if context.invoked_subcommand is None:
        from strop.report.pieces import page

        _show_page(page(), out)


@pieces_app.command("plot")
def plot_pieces(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The PNG.")] = Path("losses.png"),
) -> None:
    """Draw the gradient of every loss of a recipe by the ratio, for positive and negative advantage."""
    from strop.report.pieces import plot

    print(plot(out))


def doctor(
    target: Annotated[
        str | None, typer.Argument(metavar="RUN|CONFIG", help="A run folder, a recipe or a file, to be looked at.")
    ] = None,
    sets: Sets = [],  # noqa: B006  (typer copies it)
    small: Tiny = False,
    imports: Imports = [],  # noqa: B006
    ask: Annotated[int, typer.Option("--ask", metavar="N", help="Ask the model N problems: how it begins.", min=0)] = 0,
    gpu: Annotated[bool, typer.Option("--gpu", help="Look only at torch, driver, GPUs, NCCL and vLLM.")] = False,
    as_json: Json = False,
) -> None:
    """Say what this machine has and lacks, or run all checks on a run or a configuration.

    The checks are those of a start and of `strop train --dry-run`: whether prompt and verifier fit, budgets against the
    model's context, memory, the data and what is held out of it. Of a run also the pass rate that it began with. The
    exit code is 1 when something will not work, 0 otherwise.

    \b
    strop doctor
    strop doctor --gpu
    strop doctor mine.toml
    strop doctor grpo --set model.path=Qwen/Qwen3-0.6B --set data.source=problems.jsonl
    strop doctor grpo --set model.path=MODEL --set data.source=problems.jsonl --ask 16
    strop doctor runs/grpo
    """
    from strop.run.finding import rows

    allow(imports, sets)
    if target is None:
        from strop.run.doctor import accelerators, examine

        with waiting("looking at the machine"):
            findings = accelerators() if gpu else examine()
    else:
        from strop.recipes.resolve import resolve
        from strop.run.folder import RunFolder, is_run

        RunFolder.open(target) if is_run(Path(target)) else resolve(target, sets, small)  # before what takes seconds
        from strop.run.doctor import review

        with viewing(True, f"strop · doctor · {target}", "stopped", to_stderr=True) as view:
            findings = review(target, sets, small, ask, view)

    def table() -> None:
        print_table(("", "what", "found"), rows(findings))
        for finding in findings:
            if finding.way_out:
                print(f"{finding.subject}: {finding.way_out}")

    show(as_json, [asdict(finding) for finding in findings], table)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


def smoke(
    device: Annotated[str, typer.Option(metavar="auto|cuda|cpu", help="Where to compute.")] = "auto",
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A model folder or a hub name, instead of a new small model.")
    ] = None,
    vllm: Annotated[
        str | None,
        typer.Option(metavar="PYTHON", help="The interpreter of an environment with vLLM, else STROP_VLLM_PYTHON."),
    ] = None,
    only: Annotated[
        list[str], typer.Option(metavar="GROUP", help="only update, engine, ranks or vllm; may be repeated.")
    ] = [],  # noqa: B006
    limit: Annotated[float, typer.Option(metavar="SECONDS", help="For all of it.", min=1)] = 120.0,
    as_json: Json = False,
) -> None:
    """Try in two minutes what training on this machine rests on: pass or fail, and why.

    Each check is a run of two steps in bfloat16: in one process, with a generator in another process, with two ranks
    (NCCL with two GPUs, else gloo), and with vLLM's server if a vLLM is named. The log-probs of generator and trainer
    must agree. The table is Markdown, for an issue. The exit code is 1 when something failed, 0 otherwise.

    \b
    strop smoke
    strop smoke --model Qwen/Qwen3-0.6B --limit 300
    strop smoke --vllm /opt/vllm/bin/python
    """
    from strop.base.text import markdown_table
    from strop.base.types import InputError
    from strop.run.doctor import accelerators
    from strop.run.doctor import smoke as outcomes_of
    from strop.run.finding import rows

    if device not in ("auto", "cuda", "cpu"):
        raise InputError(f"--device {device}: it is auto, cuda or cpu")
    with waiting("looking at the machine"):
        findings = accelerators(vllm)
    with waiting("training"):
        outcomes = list(outcomes_of(device, model, vllm, limit, only))
    value = {"machine": [asdict(one) for one in findings], "checks": [asdict(one) for one in outcomes]}
    table = markdown_table(("", "check", "found"), rows([*findings, *outcomes]))
    show(as_json, value, lambda: print_markdown(f"{table}\n"))
    if any(one.level == "error" for one in outcomes):
        raise typer.Exit(1)


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
    config: Annotated[
        str | None, typer.Argument(metavar="CONFIG.toml|PIPELINE", help="Sources and steps; or a paper's pipeline.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Instead of `out` of the file.")] = None,
    example: Annotated[bool, typer.Option("--example", help="Print a configuration, or PIPELINE's, and end.")] = False,
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
    strop data prepare archer_math
    strop train grpo --set model.path=MODEL --set data.source=prepared/train.parquet
    """
    from strop.base.types import InputError

    if example:
        from strop.prepare.config import example_config

        print(example_config(config), end="")
        return
    if config is None:
        raise InputError("name a configuration; `strop data prepare --example > prepare.toml` writes one to begin with")
    allow(imports)
    from strop import prepare as heavy
    from strop.prepare.pipeline import source_table, step_table

    asked = heavy.load_config(config)
    if out is not None:
        asked = asked.model_copy(update={"out": str(out)})
    again = f"stopped; the same command goes on from what is done in {asked.out}"
    with viewing(plain, f"strop · data prepare · {asked.out}", again, to_stderr=True) as view:
        report = heavy.prepare(asked, view)
    if as_json:
        print_json(report)
        return
    print_table(("step", "in", "out", "seconds", "dropped because"), step_table(report))
    print_table(("source", "in", "out", "dropped because"), source_table(report))
    print(f"problems  {asked.out}/train.parquet ({report['problems_out']:,})")
    if report["validation"]:
        print(f"held out  {asked.out}/validation.parquet ({report['validation']:,})")
    print(f"dropped   {asked.out}/dropped.parquet ({report['dropped']:,})")
    print(f"report    {asked.out}/report.json")


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
