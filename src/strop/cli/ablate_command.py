"""strop ablate: variants of a recipe with paired seeds, one table and one figure for all."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from strop.cli import ablate_options as options
from strop.cli.ablate_options import XAxis
from strop.cli.options import Imports, Json, Plain, Sets, Tiny, allow, print_json, print_table, show, viewing

if TYPE_CHECKING:
    from strop.lab.ablation.collect import Ablation
    from strop.lab.ablation.manifest import Manifest

SHOW = "show"


def ablate(
    target: options.Target,
    folder: options.Shown = None,
    leave_one_out: options.LeaveOneOut = False,
    baseline: options.Baseline = None,
    grid: options.Grid = [],  # noqa: B006  (typer copies it)
    named: options.Named = [],  # noqa: B006
    seeds: options.Seeds = "0",
    steps: options.Steps = None,
    sets: Sets = [],  # noqa: B006
    small: Tiny = False,
    out: options.Folder = None,
    jobs: options.Jobs = 1,
    ray: options.OnRay = False,
    address: options.Address = None,
    cpus: options.Cpus = 1.0,
    gpus: options.Gpus = 0,
    dry_run: options.DryRun = False,
    x: options.Over = "compute",
    level: options.Level = 0.9,
    margin: options.Margin = 0.02,
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
    strop ablate grpo --grid optim.lr=1e-6,2e-6 --grid batch.samples_per_prompt=8,16
    strop ablate quickstart --variant ppo:algorithm.loss=PpoClip --variant hot:sampling.temperature=1.2
    strop ablate scalerl --leave-one-out --seeds 0,1,2 --ray --jobs 12 --gpus 1
    strop ablate scalerl --leave-one-out --dry-run
    strop ablate show runs/ablate-scalerl
    """
    _check(level)
    if target == SHOW:
        if folder is None or any((leave_one_out, baseline, grid, named, steps, sets, small, out, dry_run, ray)):
            raise _refusal(
                "strop ablate show takes the FOLDER of an ablation, and of the options --x, --level, --margin"
            )
        allow(imports)
        _show(folder, x, level, margin, as_json)
        return
    if folder is not None:
        raise _refusal(f"{folder}: name one recipe; the folder for the runs is given by --out {folder}")
    if not ray and (address is not None or cpus != 1.0 or gpus):
        raise _refusal("--address, --cpus and --gpus are of a Ray cluster; add --ray")
    from strop.lab.ablation.variants import Wanted

    allow(imports)
    changed = [*sets, *([f"steps={steps}"] if steps is not None else [])]
    manifest = _plan(target, Wanted(tuple(grid), tuple(named), leave_one_out, baseline), changed, small, _seeds(seeds))
    where = out if out is not None else _folder(target, small)
    if dry_run:
        _list(where, manifest, as_json)
        return
    _run(where, manifest, jobs, _Ray(address, cpus, gpus) if ray else None, imports, plain)
    _end(_show(where, x, level, margin, as_json))


class _Ray(NamedTuple):
    """What --ray was given with."""

    address: str | None
    cpus: float
    gpus: int


def _folder(target: str, small: bool) -> Path:
    from strop.lab.ablation.variants import short_name

    return Path("runs") / f"ablate-{short_name(target)}{'-tiny' if small else ''}"


def _end(found: Ablation) -> None:
    if found.failures:
        count = len(found.failures)
        print(
            f"strop: {count} of {len(found.manifest.runs)} runs failed; the same command tries again", file=sys.stderr
        )
        raise typer.Exit(1)


def _refusal(message: str) -> Exception:
    from strop.base.types import InputError

    return InputError(message)


def _check(level: float) -> None:
    if not 0 < level < 1:
        raise _refusal(f"--level {level:g}: must lie between 0 and 1, such as 0.9")


def _seeds(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise _refusal(f"--seeds {text}: write whole numbers with commas between, such as 0,1,2")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _plan(target: str, wanted: Any, sets: Sequence[str], small: bool, seeds: tuple[int, ...]) -> Manifest:
    from strop.lab.ablation.manifest import plan
    from strop.lab.ablation.variants import variants

    found = variants(target, wanted, sets, small)
    if found.all[0].config.evaluation.every is None:
        raise _refusal(f"{target} is never evaluated, so nothing could be compared; add --set evaluation.every=10")
    return plan(target, found, seeds)


def _list(folder: Path, wanted: Manifest, as_json: bool) -> None:
    """What would run."""
    from strop.lab.ablation.manifest import is_finished, merged

    manifest = merged(folder, wanted)
    steps = {entry.name: int(entry.config["steps"]) for entry in manifest.variants}
    runs = [(run, is_finished(manifest.path(folder, run))) for run in manifest.runs]
    done = sum(finished for _, finished in runs)
    value = {
        "folder": str(folder),
        "runs": [
            {
                "variant": run.variant,
                "seed": run.seed,
                "folder": str(manifest.path(folder, run)),
                "steps": steps[run.variant],
                "finished": finished,
            }
            for run, finished in runs
        ],
        "variants": [
            {"name": entry.name, "changes": {key: list(pair) for key, pair in entry.changes.items()}}
            for entry in manifest.variants
        ],
        "notes": list(manifest.notes),
    }

    def lines() -> None:
        changes = [
            (entry.name, "\n".join(f"{key}: {old} → {new}" for key, (old, new) in entry.changes.items()))
            for entry in manifest.variants
        ]
        print_table(("variant", "what changes"), [(name, text or "the recipe as it is") for name, text in changes])
        seeds = ", ".join(map(str, manifest.seeds))
        print(f"{len(runs)} runs ({len(steps)} variants, seeds {seeds}), {done} of them finished")
        left = sum(steps[run.variant] for run, finished in runs if not finished)
        print(f"{left:,} training steps to do, in {folder}")
        for note in manifest.notes:
            print(note)

    show(as_json, value, lines)


def _run(
    folder: Path, manifest: Manifest, jobs: int, ray: _Ray | None, imports: Sequence[str], plain: bool
) -> None:
    from strop.lab.ablation.scheduler import execute

    stopped = f"stopped at once; the same command goes on with {folder}"
    with viewing(plain, f"strop · ablate · {folder}", stopped, to_stderr=True) as view:
        if ray is None:
            execute(folder, manifest, view, jobs, imports)
            return
        from strop.lab.ablation.ray_runner import Needs, RayRunner

        runner = RayRunner(ray.address, jobs, Needs(ray.cpus, ray.gpus))
        try:
            execute(folder, manifest, view, jobs, imports, runner)
        finally:
            runner.close()


def _show(folder: Path, x: XAxis, level: float, margin: float, as_json: bool) -> Ablation:
    """Write table and figure, print the table."""
    from rich.console import Console
    from rich.progress import Progress

    from strop.lab.ablation.collect import collect
    from strop.lab.ablation.table import as_json as plain_values
    from strop.report.ablation_report import write_report

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading and fitting", total=None)
        found = collect(folder, x, level, margin, lambda done, total: bar.update(task, completed=done, total=total))
    written = write_report(found)
    if as_json:
        print_json(plain_values(found))
        return found
    _print(found)
    for path in written:
        print(path)
    return found


def _print(found: Ablation) -> None:
    """The table, in as many pieces side by side as the terminal is wide enough for, each with the variants' names."""
    import shutil

    from strop.lab.ablation.table import COLUMNS, cells, explanation, notes

    rows = cells(found)
    widths = [max(len(COLUMNS[place]), *(len(row[place]) for row in rows)) + 3 for place in range(len(COLUMNS))]
    shown = [place for place in range(1, len(COLUMNS)) if any(row[place] for row in rows)]
    width = shutil.get_terminal_size().columns
    while shown:
        piece = [0]
        while shown and (len(piece) == 1 or sum(widths[p] for p in piece) + widths[shown[0]] <= width):
            piece.append(shown.pop(0))
        print_table([COLUMNS[place] for place in piece], [[row[place] for place in piece] for row in rows])
    print(explanation(found))
    for note in notes(found):
        print(f"- {note}")
