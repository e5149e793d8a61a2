"""strop ablate: variants of a recipe with paired seeds, one table and one figure for all."""

from __future__ import annotations

import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from strop.cli.options import Imports, Json, Plain, Sets, Tiny, allow, bar, print_json, print_table, show, viewing

if TYPE_CHECKING:
    from strop.lab.ablation.collect import Ablation
    from strop.lab.ablation.manifest import Manifest
    from strop.lab.ablation.runners import Runner


XAxis = Literal["compute", "steps", "tokens"]

Target = Annotated[
    str, typer.Argument(metavar="RECIPE|FILE", help="What to vary; or `show`, with the FOLDER of an ablation.")
]
Shown = Annotated[Path | None, typer.Argument(metavar="[FOLDER]", help="Only of `show`.", show_default=False)]
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
    typer.Option(metavar="HOST:PORT", help="With --ray: of a running cluster; else RAY_ADDRESS, else it starts one."),
]
Cpus = Annotated[float, typer.Option(help="With --ray: what each run reserves.", min=0.01)]
Gpus = Annotated[int, typer.Option(help="With --ray: what each run reserves.", min=0)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List what would run, and end.")]
Over = Annotated[XAxis, typer.Option("--x", help="What curves and fits are over.")]
Level = Annotated[float, typer.Option(help="Of the intervals, above 0 and below 1.")]
Margin = Annotated[float, typer.Option(help="What a verdict must exceed, in pass rate.", min=0, max=1)]


SHOW = "show"


def ablate(
    target: Target,
    folder: Shown = None,
    leave_one_out: LeaveOneOut = False,
    baseline: Baseline = None,
    grid: Grid = [],  # noqa: B006  (typer copies it)
    named: Named = [],  # noqa: B006
    seeds: Seeds = "0",
    steps: Steps = None,
    sets: Sets = [],  # noqa: B006
    small: Tiny = False,
    out: Folder = None,
    jobs: Jobs = 1,
    ray: OnRay = False,
    address: Address = None,
    cpus: Cpus = 1.0,
    gpus: Gpus = 0,
    dry_run: DryRun = False,
    x: Over = "compute",
    level: Level = 0.9,
    margin: Margin = 0.02,
    imports: Imports = [],  # noqa: B006
    plain: Plain = False,
    as_json: Json = False,
) -> None:
    """Run variants of a recipe with paired seeds: one table and one figure for all.

    Of each seed every variant starts from the same model and sees the same problems in the same order, and is compared
    with the recipe as it is (the base) seed by seed. The same command goes on where it stopped, and takes more seeds
    and variants; what fails is recorded, and the others go on. `show` makes table and figure from what is there, also
    while it runs.

    \b
    strop ablate scalerl --leave-one-out --tiny --seeds 0,1,2
    strop ablate dapo --leave-one-out --baseline grpo --tiny --jobs 2
    strop ablate grpo --set model.path=MODEL --set evaluation.every=10 --grid optim.lr=1e-6,2e-6
    strop ablate quickstart --variant tokens:algorithm.aggregation=TokenMean --variant hot:sampling.temperature=1.2
    strop ablate scalerl --leave-one-out --seeds 0,1,2 --ray --jobs 12 --gpus 1
    strop ablate scalerl --leave-one-out --dry-run
    strop ablate show runs/ablate-scalerl
    """
    from strop.base.types import InputError
    from strop.lab.ablation.manifest import merged, parse_seeds, plan
    from strop.lab.ablation.variants import VariantRequest, short_name, variants

    if not 0 < level < 1:
        raise InputError(f"--level {level:g}: must lie between 0 and 1, such as 0.9")
    if target == SHOW:
        if folder is None or any((leave_one_out, baseline, grid, named, steps, sets, small, out, dry_run, ray)):
            raise InputError(
                "strop ablate show takes the FOLDER of an ablation, and of the options --x, --level, --margin"
            )
        allow(imports, sets)
        _show(folder, x, level, margin, as_json)
        return
    if folder is not None:
        raise InputError(f"{folder}: name one recipe; the folder for the runs is given by --out {folder}")
    if not ray and (address is not None or cpus != 1.0 or gpus):
        raise InputError("--address, --cpus and --gpus are of a Ray cluster; add --ray")
    allow(imports, sets)
    changed = [*sets, *([f"steps={steps}"] if steps is not None else [])]
    wanted = VariantRequest(tuple(grid), tuple(named), leave_one_out, baseline)
    manifest = plan(target, variants(target, wanted, changed, small), parse_seeds(seeds))
    where = out if out is not None else Path("runs") / f"ablate-{short_name(target)}{'-tiny' if small else ''}"
    if dry_run:
        _list(where, merged(where, manifest), as_json)
        return
    stopped = f"stopped at once; the same command goes on with {where}"
    with viewing(plain, f"strop · ablate · {where}", stopped, to_stderr=True) as view:
        from strop.lab.ablation.scheduler import execute

        with closing(_runner(ray, address, jobs, cpus, gpus)) as runner:
            execute(where, manifest, view, jobs, imports, runner)
    found = _show(where, x, level, margin, as_json)
    if found.failures:
        count = len(found.failures)
        print(
            f"strop: {count} of {len(found.manifest.runs)} runs failed; the same command tries again", file=sys.stderr
        )
        raise typer.Exit(1)


def _runner(ray: bool, address: str | None, jobs: int, cpus: float, gpus: int) -> Runner:
    if ray:
        from strop.lab.ablation.ray_runner import Needs, RayRunner

        return RayRunner(address, jobs, Needs(cpus, gpus))
    from strop.lab.ablation.runners import LocalRunner

    return LocalRunner(jobs)


def _list(folder: Path, manifest: Manifest, as_json: bool) -> None:
    """List what would run."""
    from strop.lab.ablation.manifest import outline

    value = outline(folder, manifest)

    def lines() -> None:
        rows = [
            (entry["name"], "\n".join(f"{key}: {old} → {new}" for key, (old, new) in entry["changes"].items()))
            for entry in value["variants"]
        ]
        print_table(("variant", "what changes"), [(name, text or "the recipe as it is") for name, text in rows])
        left = [run for run in value["runs"] if not run["finished"]]
        seeds = ", ".join(map(str, manifest.seeds))
        done = len(value["runs"]) - len(left)
        print(f"{len(value['runs'])} runs ({len(rows)} variants, seeds {seeds}), {done} of them finished")
        print(f"{sum(run['steps'] for run in left):,} training steps to do, in {folder}")
        for note in value["notes"]:
            print(note)

    show(as_json, value, lines)


def _show(folder: Path, x: XAxis, level: float, margin: float, as_json: bool) -> Ablation:
    """Write table and figure, print the table."""
    from strop.lab.ablation import table
    from strop.lab.ablation.collect import collect
    from strop.report.figures.ablation import write_report

    with bar("reading and fitting") as tell:
        found = collect(folder, x, level, margin, tell)
    written = write_report(found)
    if as_json:
        print_json(table.as_json(found))
        return found
    for columns, rows in table.pieces(found, shutil.get_terminal_size().columns):
        print_table(columns, rows)
    print(table.explanation(found))
    for note in table.notes(found):
        print(f"- {note}")
    for path in written:
        print(path)
    return found
