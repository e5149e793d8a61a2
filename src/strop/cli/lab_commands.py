"""The commands of the lab: ablate, fit, audit, replay, rejudge and verify compare."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from strop.cli.options import (
    Imports,
    Json,
    Plain,
    Run,
    Sets,
    Tiny,
    allow,
    numbers,
    print_json,
    print_table,
    set_option,
    show,
    viewing,
    waiting,
)

if TYPE_CHECKING:
    from strop.base.view import View
    from strop.lab.ablation.collect import Ablation
    from strop.lab.ablation.manifest import Manifest
    from strop.lab.scaling.curves import Curve
    from strop.lab.scaling.fitting import FitSettings
    from strop.lab.scaling.study import Study, TextTable
    from strop.lab.what_if import Alternative
    from strop.run.folder import RunFolder


Unit = Literal["device_hours", "device_seconds", "flops", "tokens", "steps"]

Target = Annotated[
    str, typer.Argument(metavar="RECIPE|FILE", help="The recipe to vary; or `show`, with the FOLDER of an ablation.")
]
Shown = Annotated[Path | None, typer.Argument(metavar="[FOLDER]", help="Only with `show`.", show_default=False)]
LeaveOneOut = Annotated[bool, typer.Option("--leave-one-out", help="Take away one part of the recipe at a time.")]
StudyName = Annotated[
    str | None,
    typer.Option("--study", metavar="NAME", help="A study of a paper; `list` lists them.", show_default=False),
]
Grid = Annotated[
    list[str],
    typer.Option("--grid", metavar="KEY=A,B,C", help="Values of a setting; repeat for a product.", show_default=False),
]
Named = Annotated[
    list[str],
    typer.Option("--variant", metavar="NAME:KEY=VALUE,…", help="A variant; may be repeated.", show_default=False),
]
Seeds = Annotated[str, typer.Option(metavar="N,N,N", help="Seeds; every variant is run with each of them.")]
Steps = Annotated[int | None, typer.Option(help="Training steps of every run.", min=1)]
Folder = Annotated[
    Path | None, typer.Option("--out", metavar="FOLDER", help="Folder of all runs; by default runs/ablate-RECIPE.")
]
Jobs = Annotated[int, typer.Option(help="Parallel runs, which share the cores and GPUs of this machine.", min=1)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs without starting them.")]
Over = Annotated[Unit, typer.Option("--x", help="The unit of compute, in curves, fits and every option C.")]
Method = Annotated[
    str,
    typer.Option("--method", metavar="refined|paper", help="Weighted least squares, or the grid of ScaleRL A.5."),
]
Until = Annotated[
    float | None, typer.Option("--fit-until", metavar="C", help="Hold later points back and print the errors on them.")
]
Skip = Annotated[
    float | None,
    typer.Option("--skip-until", metavar="C", help="Leave out earlier points; by default `paper` does, as ScaleRL."),
]
Level = Annotated[float, typer.Option(help="Level of the intervals, above 0 and below 1.")]
UntilDecided = Annotated[
    int | None,
    typer.Option(
        "--until-decided", metavar="N", help="Add seeds, up to N, until every variant is decided.", min=3, max=64,
        show_default=False,
    ),
]  # fmt: skip
Margin = Annotated[float, typer.Option(help="The difference in pass rate that a verdict must exceed.", min=0, max=1)]


SHOW = "show"


def ablate(
    target: Target,
    folder: Shown = None,
    leave_one_out: LeaveOneOut = False,
    study: StudyName = None,
    grid: Grid = [],  # noqa: B006  (typer copies it)
    named: Named = [],  # noqa: B006
    seeds: Seeds = "0",
    until: UntilDecided = None,
    steps: Steps = None,
    sets: Sets = [],  # noqa: B006
    small: Tiny = False,
    out: Folder = None,
    jobs: Jobs = 1,
    dry_run: DryRun = False,
    x: Over = "device_hours",
    method: Method = "refined",
    fit_until: Until = None,
    skip_until: Skip = None,
    level: Level = 0.95,
    margin: Margin = 0.02,
    imports: Imports = [],  # noqa: B006
    plain: Plain = False,
    as_json: Json = False,
) -> None:
    """Run variants of a recipe with paired seeds: one table and one figure for all.

    For each seed every variant starts from the same model and sees the same problems in the same order. It is compared
    with the unchanged recipe (the base) seed by seed. The same command continues after an interruption, and accepts
    more seeds and variants; failed runs are recorded, and the others go on. `show` writes table and figure at any time.
    --until-decided adds seeds to the variants that are undecided; its verdicts are as safe as those of one look.

    \b
    strop ablate scalerl --leave-one-out --tiny --seeds 0,1,2
    strop ablate grpo --tiny --grid optim.lr=1e-4,2e-4 --until-decided 12
    strop ablate archer.code --study clip_ranges --tiny
    strop ablate grpo --set model.path=MODEL --set evaluation.every=10 --grid optim.lr=1e-6,2e-6
    strop ablate quickstart --variant tokens:algorithm.aggregation=TokenMean --variant hot:sampling.temperature=1.2
    strop ablate scalerl --leave-one-out --dry-run
    strop ablate show runs/ablate-scalerl
    """
    from strop.base.types import InputError
    from strop.lab.ablation import manifest as manifests
    from strop.lab.ablation.studies import listing
    from strop.lab.ablation.variants import VariantRequest, variants
    from strop.lab.scaling.study import fit_settings

    if study == "list":
        print(listing())
        return
    fits = fit_settings({"method": method, "skip_until": skip_until, "fit_until": fit_until, "level": level})
    allow(imports, sets)
    if target == SHOW:
        if folder is None or any((leave_one_out, study, grid, named, until, steps, sets, small, out, dry_run)):
            raise InputError("strop ablate show takes the FOLDER of an ablation and the options of fits")
        _show(folder, x, fits, margin, as_json)
        return
    if folder is not None:
        raise InputError(f"{folder}: name one recipe; the folder for the runs is given by --out {folder}")
    sets += [] if steps is None else [f"steps={steps}"]
    found = variants(target, VariantRequest(tuple(grid), tuple(named), leave_one_out, study), sets, small)
    manifest = manifests.plan(target, found, numbers("--seeds", seeds, "0,1,2"), until is not None)
    where = out or manifests.default_folder(target, study, small)
    if dry_run:
        _list(where, manifests.merged(where, manifest), as_json)
        return
    _execute(where, manifest, jobs, imports, plain, until, fits, margin)
    _end(_show(where, x, fits, margin, as_json))


def _execute(
    folder: Path, manifest: Manifest, jobs: int, imports: list[str], plain: bool,
    until: int | None, fits: FitSettings, margin: float,
) -> None:  # fmt: skip
    """Make the runs that are not finished, then add seeds up to `until`."""
    stopped = f"stopped at once; the same command goes on with {folder}"
    with viewing(plain, f"strop · ablate · {folder}", stopped, to_stderr=True) as view:
        from strop.lab.ablation.scheduler import add_seeds, execute

        execute(folder, manifest, view, jobs, imports)
        if until is not None:
            add_seeds(folder, until, view, jobs, imports, fits, margin)


def _end(done: Ablation) -> None:
    """Exit with 1 where runs have failed."""
    if done.failures:
        count = len(done.failures)
        print(f"strop: {count} of {len(done.manifest.runs)} runs failed; the same command tries again", file=sys.stderr)
        raise typer.Exit(1)


def _list(folder: Path, manifest: Manifest, as_json: bool) -> None:
    """Print the runs without starting them."""
    from strop.lab.ablation.manifest import is_finished

    def lines() -> None:
        rows = [
            (entry.name, "\n".join(f"{key}: {old} → {new}" for key, (old, new) in entry.changes.items()))
            for entry in manifest.variants
        ]
        print_table(("variant", "what changes"), [(name, text or "the recipe as it is") for name, text in rows])
        left = [run for run in manifest.runs if not is_finished(manifest.path(folder, run))]
        seeds = ", ".join(map(str, manifest.seeds))
        done = len(manifest.runs) - len(left)
        print(f"{len(manifest.runs)} runs ({len(rows)} variants, seeds {seeds}), {done} of them finished")
        print(f"{sum(manifest.config(run).steps for run in left):,} training steps to do, in {folder}")
        for note in manifest.notes:
            print(note)

    show(as_json, manifest.model_dump(mode="json"), lines)


def _show(folder: Path, unit: Unit, fits: FitSettings, margin: float, as_json: bool) -> Ablation:
    """Write table and figure, print the table."""
    from strop.lab.ablation import table
    from strop.lab.ablation.collect import collect
    from strop.report.lab_figures import write_ablation_report

    with waiting("reading and fitting"):
        found = collect(folder, unit, fits, margin)
    written = write_ablation_report(found)
    if as_json:
        print_json(table.as_json(found))
        return found
    print_table(table.SHORT, table.short_cells(found))
    print(table.explanation(found))
    for note in table.notes(found):
        print(f"- {note}")
    for path in written:
        print(path)
    return found


Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|CURVE.csv|ABLATION...",
        help="Run folders, CSV files and folders of ablations, whose variants are recipes with their seeds; NAME=PATH "
        "gives a name, and a name given to several makes them its seeds.",
    ),
]
Predict = Annotated[str, typer.Option("--predict", metavar="C1,C2", help="Predict the pass rate at these computes.")]
Before = Annotated[float | None, typer.Option("--r0", help="Pass rate before training; replaces a row at compute 0.")]
Bootstrap = Annotated[int, typer.Option("--bootstrap", metavar="N", help="Bootstrap samples of the intervals.")]
FitLevel = Annotated[float, typer.Option("--level", help="Level of the intervals.")]
FitMargin = Annotated[float, typer.Option("--margin", help="The least difference of A that counts.", min=0.0)]
Metric = Annotated[str, typer.Option("--metric", metavar="NAME", help="The evaluation metric of a run to fit.")]
Picture = Annotated[
    Path | None, typer.Option("--plot", metavar="PATH.png", help="Draw the curves; PNG and SVG are both written.")
]
Joint = Annotated[bool, typer.Option("--joint", help="One law for several model sizes, such as 0.5B=runs/small.")]


def fit(
    sources: Sources,
    predict: Predict = "",
    r0: Before = None,
    x: Over = "device_hours",
    method: Method = "refined",
    fit_until: Until = None,
    skip_until: Skip = None,
    bootstrap: Bootstrap = 500,
    level: FitLevel = 0.9,
    margin: FitMargin = 0.02,
    metric: Metric = "evaluation/pass_rate",
    joint: Joint = False,
    plot: Picture = None,
    as_json: Json = False,
) -> None:
    """Fit compute-performance curves, predict from them, and compare recipes.

    A curve is the held-out pass rate of a run, or a CSV with columns compute and pass_rate (stderr if known). Compute
    is in device-hours unless --x names another unit. The row at compute 0 is R_0, unless --r0 gives it. What is fitted
    is ScaleRL's Eq. 1:

    \b
    R_C = R_0 + (A - R_0) / (1 + (C_mid / C)^B)

    A is the pass rate that more compute approaches, C_mid the compute of half the gain, B the steepness. Points that do
    not support a fit (flat, falling, no curvature yet, too few) are refused with a reason. If every curve is refused,
    the exit code is 1.

    \b
    strop fit runs/scalerl
    strop fit scalerl.csv dapo.csv --method paper --fit-until 8000 --predict 16000,100000 --plot curves.png
    strop fit scalerl=runs/s0 scalerl=runs/s1 scalerl=runs/s2 dapo=runs/d0     seeds of two recipes
    strop fit runs/scalerl --json
    strop fit runs/ablate-scalerl --fit-until 8000 --plot leave-one-out.png     every variant and seed of an ablation
    strop fit --joint 0.5B=runs/a 1.5B=runs/b 7B=runs/c     log L(N, X) = -k(N) log X + E(N) for model sizes N
    """
    from strop.base.types import InputError
    from strop.lab.scaling import study
    from strop.lab.scaling.curves import read_sources
    from strop.lab.scaling.study import as_json as plain_values
    from strop.lab.scaling.study import fit_study

    settings = {
        "method": method, "skip_until": skip_until, "fit_until": fit_until, "level": level, "bootstrap": bootstrap,
    }  # fmt: skip
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise InputError(f"--plot {plot}: name a .png (the .svg is written next to it)")
    chosen = study.fit_settings(settings)
    computes = study.computes("--predict", predict)
    recipes = read_sources(sources, x, r0, metric)
    if joint:
        if plot is not None or predict or method != "refined":
            raise InputError("--joint takes none of --plot, --predict and --method")
        _fit_joint(recipes, chosen, as_json)
        return
    with waiting("fitting"):
        found = fit_study(recipes, chosen, computes, margin)
    pictures = _draw(plot, found) if plot is not None else []
    show(as_json, plain_values(found), lambda: _print(found, pictures))
    if all(each.refused is not None for each in found.fits):
        print("strop: nothing was fitted, every curve is refused", file=sys.stderr)
        raise typer.Exit(1)


def _fit_joint(recipes: Mapping[str, Sequence[Curve]], settings: FitSettings, as_json: bool) -> None:
    """Fit the law of several model sizes, and print it.

    Raises:
        Exit: it determines nothing (status 1).
    """
    from strop.lab.scaling.joint import fit_joint, joint_as_json, joint_tables

    with waiting("fitting"):
        found = fit_joint(recipes, settings)
    show(as_json, joint_as_json(found), lambda: _print_parts(joint_tables(found)))
    if found.refused is not None:
        raise typer.Exit(1)


def _draw(plot: Path, found: Study) -> list[Path]:
    from strop.report.lab_figures import linearised_beside, plot_fits, plot_linearised

    pictures = plot_fits(found.fits, plot, found.predict)
    if len(found.joint) > 1:
        pictures += plot_linearised({each.fit.name: [each] for each in found.joint}, linearised_beside(plot))
    return pictures


def _print(found: Study, written: list[Path]) -> None:
    from strop.lab.scaling.study import tables

    _print_parts(tables(found))
    for path in written:
        print(path)


def _print_parts(parts: Iterable[TextTable | str]) -> None:
    for part in parts:
        if isinstance(part, str):
            print(part)
        else:
            print_table(*part)


def audit(
    run: Run,
    verifier: Annotated[
        str | None, typer.Option(metavar="PIECE", help="The second verifier, by name or as JSON.", show_default=False)
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What was clicked in RUN/audit.html.", show_default=False)
    ] = None,
    count: Annotated[int, typer.Option(help="Completions to judge.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="Of the sample.", min=0)] = 0,
    imports: Imports = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Estimate how often a run's verifier accepts wrong answers and refuses right ones.

    A sample of the stored completions, stratified by verdict and by kind of reference, is judged by a second verifier,
    or by hand: without --verifier a page is written, where one clicks right or wrong; --labels reads what it saved.
    Where accepted answers become wrong more often over the steps, the last line says ALERT. The report of the run shows
    it all.

    \b
    strop audit runs/grpo --verifier '{"piece": "MathVerifier", "extract": "any"}'
    strop audit runs/grpo --count 60
    strop audit runs/grpo --count 60 --labels labels.json
    """
    from strop.base.files import write_text
    from strop.lab.agreement import named_verifier
    from strop.report import audit as audits
    from strop.report.build import audit_page
    from strop.run.folder import RunFolder
    from strop.verifiers.judge_model import keep_in

    allow(imports)
    folder = RunFolder.open(run)
    with waiting("drawing completions"):
        drawn = audits.draw(folder, count, seed)
    if verifier is None and labels is None:
        page = folder.path / "audit.html"
        again = f"strop audit {quote(str(run))} --count {count} --seed {seed} --labels labels.json"
        write_text(page, audit_page(folder, drawn, f"Then save, and run: {again}"))
        print(f"{len(drawn.completions)} completions to judge in {page}; then: {again}")
        return
    with keep_in(folder.path), waiting("judging"):
        right = audits.read_labels(labels) if labels is not None else audits.judge(drawn, named_verifier(str(verifier)))
    found = {"by": str(verifier if labels is None else labels), **audits.audited(drawn, right)}
    folder.write_json(audits.AUDIT, found)

    def table() -> None:
        print_table(("", "share", "95 % interval"), audits.rates(found))
        print(audits.alert(found))

    show(as_json, found, table)


# ---------------------------------------------------------------------- on the rollouts that a run stored


From = Annotated[
    int, typer.Option("--from", metavar="STEP", help="Begin after this step; it needs a checkpoint.", min=0)
]
To = Annotated[int | None, typer.Option("--to", metavar="STEP", help="By default the run's last step.")]


def replay(
    run: Run,
    begin: From = 0,
    end: To = None,
    sets: Annotated[list[str], set_option("algorithm.loss=Cispo")] = [],  # noqa: B006  (typer copies it)
    named: Annotated[
        list[str], typer.Option("--variant", metavar="NAME:KEY=VALUE,…", help="Other settings; may be repeated.")
    ] = [],  # noqa: B006
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="PATH.png", help="Draw the gradients under other settings.")
    ] = None,
    imports: Imports = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Train again from the rollouts that a run stored, and compare every step with what it recorded.

    Nothing is generated, judged or written. On the same machine and software all is equal, bit for bit, at any lag: the
    advantages and log-probs of every token, the metrics of the update and the weights after it. Elsewhere rollouts are
    compared bit for bit, the rest within a bound, which is said. It ends at the first difference, with exit code 1.

    With --set or --variant the gradient of every update is compared with the one that other settings of the algorithm
    give at the same weights: their cosine and norms, the share of tokens clipped, and the effective sample size, below
    which nothing is compared. Each is true of one step; it does not say where other settings would have led.

    \b
    strop replay runs/first
    strop replay runs/first --from 40 --to 42
    strop replay runs/first --set algorithm.loss=Cispo
    """
    from strop.run.folder import RunFolder

    allow(imports, sets)
    folder, others = RunFolder.open(run), _alternatives(sets, named)
    if plot is not None and not others:
        raise typer.BadParameter("--plot draws gradients under other settings: give them by --set or --variant")
    with viewing(True, "strop · replay", "stopped", to_stderr=True) as view:
        if others:
            _compare_gradients(folder, others, view, begin, end, plot, as_json)
            return
        _replay(folder, view, begin, end, as_json)


def _replay(folder: RunFolder, view: View, begin: int, end: int | None, as_json: bool) -> None:
    from dataclasses import asdict

    from strop.lab.replay import replay as replayed

    done = []
    for step in replayed(folder, view, begin, end):
        done.append(asdict(step))
        if not as_json:
            equal = f"equal but for rounding, {step.apart:.0e}" if step.apart else "equal"
            took = f"{step.seconds:.2f} s" + ("" if step.update is None else f", its update {step.update:.2f} s")
            print(f"step {step.step}: {step.difference or equal} ({took})", flush=True)
    show(as_json, done, lambda: None)
    if done[-1]["difference"] is not None:
        raise typer.Exit(1)


def _alternatives(sets: list[str], named: list[str]) -> list[Alternative]:
    """What --set asks for together, and each --variant."""
    if not sets and not named:
        return []
    from strop.lab.ablation.variants import named_sets
    from strop.lab.what_if import Alternative

    found = [Alternative(", ".join(text.removeprefix("algorithm.") for text in sets), tuple(sets))] if sets else []
    return found + [Alternative(name, tuple(own)) for name, own in map(named_sets, named)]


def _compare_gradients(
    folder: RunFolder, others: list[Alternative], view: View, begin: int, end: int | None, plot: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    from dataclasses import asdict

    from strop.lab import what_if
    from strop.report.lab_figures import plot_gradients

    found = []
    for comparisons in what_if.what_if(folder, others, view, begin, end):
        found += comparisons
        for one in comparisons:
            view.note(what_if.said(one))
    if plot is not None:
        view.note(str(plot_gradients(folder.path.name, found, plot)))
    show(as_json, [asdict(one) for one in found], lambda: print_table(*what_if.table(found)))


def rejudge(
    run: Run,
    sets: Annotated[list[str], set_option("verifier=MathVerifier")] = [],  # noqa: B006
    begin: Annotated[int, typer.Option("--from", metavar="STEP", help="Begin after this step.", min=0)] = 0,
    end: To = None,
    imports: Imports = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Judge the completions that a run stored under another verifier, reward or shaping, and count what changes.

    Which verdicts turn, which groups are trained on only then or no longer, and of how many completions the sign of the
    advantage turns. The report of the run shows it, with examples. The completions stay those of this run: a policy
    trained with the other rewards would have written others.

    \b
    strop rejudge runs/grpo --set verifier.extract=any
    strop rejudge runs/grpo --set 'algorithm.shaping=[{piece="OverlongShaping", max_tokens=512, buffer_tokens=128}]'
    """
    from strop.report import rejudging
    from strop.run.folder import RunFolder

    allow(imports, sets)
    folder = RunFolder.open(run)
    with waiting("judging"):
        found = rejudging.rejudged(folder, sets, begin, end)
    folder.write_json(rejudging.REJUDGED, found)
    show(as_json, found, lambda: print_table(("", "was", "now"), rejudging.lines(found)))


verify_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@verify_app.callback()
def verify() -> None:
    """Run verifiers over the rollouts of a run. Files of cases are judged by the command `strop-verify`.

    \b
    strop verify compare runs/grpo --verifier Answer --verifier MathVerifier
    """


@verify_app.command("compare", short_help="Hold verifiers against each other on the same rollouts.")
def compare_verifiers(
    rollouts: Annotated[
        Path,
        typer.Argument(metavar="RUN_OR_JSONL", help="A run folder, or lines of problem_id, reference, completion."),
    ],
    verifiers: Annotated[
        list[str], typer.Option("--verifier", metavar="PIECE", help="A verifier, by name or as JSON; give two or more.")
    ],
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="PATH.png", help="Draw the counts; PNG and SVG are both written.")
    ] = None,
    imports: Imports = [],  # noqa: B006  (typer copies it)
    as_json: Json = False,
) -> None:
    """How many problems each verifier counts as solved 0, 1, 2 … times, and where they disagree (Skywork-OR1, Fig. 27).

    A verifier with settings is written as JSON: '{"piece": "MathVerifier", "extract": "any"}'.
    """
    from strop.lab.agreement import compare_verifiers as compared
    from strop.lab.agreement import named_verifier, read_rollouts

    allow(imports)
    with waiting("judging"):
        found = compared([named_verifier(text) for text in verifiers], read_rollouts(rollouts))
    if plot is not None:
        from strop.report.lab_figures import plot_agreement

        found["picture"] = str(plot_agreement(found["histograms"], plot))

    def table() -> None:
        columns = found["histograms"]
        rows = [tuple(map(str, (solved, *row))) for solved, row in enumerate(zip(*columns.values(), strict=True))]
        print_table(("solved", *columns), rows)
        differ = f"verdicts differ on {found['disagreements']}"
        print(f"{found['rollouts']} rollouts of {found['problems']} problems; {differ}")
        print(f"could not be judged: {', '.join(f'{name} {count}' for name, count in found['failures'].items())}")
        if plot is not None:
            print(found["picture"])

    show(as_json, found, table)
