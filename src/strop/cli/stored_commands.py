"""Commands on the rollouts that a run stored: replay, rejudge, verify compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.options import Imports, Json, Run, allow, print_table, set_option, show, viewing, waiting

if TYPE_CHECKING:
    from strop.base.view import View
    from strop.lab.what_if import Alternative
    from strop.run.folder import RunFolder

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
            print(f"step {step.step}: {step.difference or equal} ({step.seconds:.1f} s)", flush=True)
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

    from strop.lab.what_if import what_if
    from strop.report import gradients

    found = []
    for comparisons in what_if(folder, others, view, begin, end):
        found += comparisons
        for one in comparisons:
            view.note(gradients.said(one))
    if plot is not None:
        view.note(str(gradients.plot(folder.path.name, found, plot)))
    show(as_json, [asdict(one) for one in found], lambda: print_table(*gradients.table(found)))


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
