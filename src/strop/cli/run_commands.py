"""Commands that make a run, and on the folders of runs: status, runs, report, plot, dashboard."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.options import (
    Imports,
    Json,
    Out,
    Plain,
    Run,
    Sets,
    Tiny,
    allow,
    print_table,
    set_option,
    show,
    viewing,
    waiting,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from strop.base.view import View
    from strop.config.schema import RunConfig
    from strop.report.status import RunStatus
    from strop.run.finding import Finding


DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show data, first prompt and memory needed, and train nothing.")
]


def quickstart(
    seed: Annotated[int, typer.Option(help="Model, problems and sampling follow from it.", min=0)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The run folder; by default a new one: runs/quickstart or, with --environment, "
            "runs/quickstart-environment.",
        ),
    ] = None,
    environment: Annotated[
        bool, typer.Option("--environment", help="Several turns: it learns to call a calculator on longer sums.")
    ] = False,
    plain: Plain = False,
) -> None:
    """Train a small language model to reason, from nothing, in minutes.

    It makes a model of about a million parameters, fine-tunes it on the worked examples of an unreliable teacher, then
    trains it by reinforcement learning on sums whose answers can be checked. The pass rate on problems it has never
    seen is measured before and after.

    \b
    strop quickstart
    strop quickstart --seed 1 --out runs/again
    strop quickstart --environment
    """
    from strop.recipes.resolve import resolve

    config = resolve("quickstart.calculator" if environment else "quickstart", [f"seed={seed}"])
    _train(config, _free(out, f"quickstart{'-environment' * environment}"), plain)


def train(
    target: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE|FILE", help="A recipe (see strop recipes), or a .toml, .json or .py file."),
    ] = None,
    sets: Sets = [],  # noqa: B006  (typer copies it)
    out: Out = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run from its newest checkpoint.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="With --resume: the checkpoint to go on from; later ones are dropped.", min=0)
    ] = None,
    small: Tiny = False,
    imports: Imports = [],  # noqa: B006
    dry_run: DryRun = False,
    plain: Plain = False,
) -> None:
    """Train by reinforcement learning from verifiable rewards.

    The run folder holds everything: config.json (start the same run from it), metrics.jsonl, rollouts, checkpoints,
    the model. Ctrl-C saves the last finished step and ends; --resume goes on from there.

    \b
    strop train grpo --tiny
    strop train archer.math --tiny --dry-run
    strop train grpo --set model.path=MODEL --set data.source=train.jsonl
    strop train scalerl --set model.path=Qwen/Qwen3-0.6B --set data.source=problems.jsonl
    strop train my-run.toml --set steps=200 --out runs/first
    strop train runs/first/config.json
    strop train --resume runs/first
    strop train --resume runs/first --step 40
    strop train --resume runs/first --set steps=400 --dry-run

    A TOML file names a recipe and what it changes:

    \b
    recipe = "grpo"
    steps = 200
    optim.lr = 2e-6
    data.source = "problems.jsonl"
    """
    from strop.base.types import InputError

    allow(imports, sets)
    if resume is not None:
        if target is not None or out is not None or small:
            raise InputError(
                f"--resume goes on with {resume} as it was configured; leave out the recipe, --out and --tiny, or "
                f"start a new run: strop train {resume}/config.json --set key=value"
            )
        _resume(resume, step, sets, dry_run, plain)
        return
    if target is None:
        raise InputError("name what to train: a recipe (see strop recipes), a file, or --resume RUN")
    if step is not None:
        raise InputError("--step says which checkpoint to go on from; it needs --resume RUN")
    from strop.recipes.resolve import resolve

    config = resolve(target, sets, small)
    folder = _free(out, f"{config.recipe}-tiny" if small else config.recipe)
    if dry_run:
        from strop.run.questions import preview

        _show(lambda view: preview(config, view).findings)
        return
    _train(config, folder, plain)


def _free(out: Path | None, name: str) -> Path:
    """The folder of a new run: `out`, or one of that name below runs/."""
    from strop.run.folder import check_free, free_folder

    folder = free_folder(name) if out is None else out
    check_free(folder)
    return folder


def _train(config: RunConfig, folder: Path, plain: bool) -> None:
    from strop.run.checks import findings
    from strop.run.finding import refuse

    refuse(findings(config))  # before torch takes its seconds to load
    from strop.run import run as heavy

    title = f"strop · {config.recipe} · {folder}"
    with viewing(plain, title, lambda: _go_on("train", folder)) as view:
        heavy.train(config, folder, view)
    report_run(folder)


def _show(preview: Callable[[View], list[Finding]]) -> None:
    """Print the notes of a dry run and its findings."""
    from strop.run.finding import note, refuse

    with viewing(True, "strop · dry run", "stopped") as view:
        findings = preview(view)
        refuse(findings)
        note(findings, view)


def _resume(folder: Path, step: int | None, sets: list[str], dry_run: bool, plain: bool) -> None:
    from strop.run.folder import RunFolder
    from strop.run.resuming import resumed_config

    run = RunFolder.open(folder)
    resumed_config(run, sets)  # says what is wrong before torch takes its seconds to load
    if dry_run:
        from strop.run.resuming import preview

        _show(lambda view: preview(run, step, sets, view))
        return
    from strop.run import run as heavy

    title = f"strop · {folder}"
    with viewing(plain, title, lambda: _go_on("train", folder)) as view:
        heavy.resume(folder, view, step, sets)
    report_run(folder)


def _go_on(kind: str, folder: Path) -> str:
    from strop.base.imports import command
    from strop.run.folder import is_run

    if not is_run(folder):
        return "stopped before the run began"
    return f"stopped at once; go on from the newest checkpoint with: {command(f'{kind} --resume', folder)}"


def sft(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A folder, a hub name, or `fresh` for a new small model."),
    ] = None,
    demonstrations: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="JSON lines: prompt and completion, or messages.")
    ] = None,
    sets: Annotated[list[str], set_option("training.optimizer.lr=1e-5")] = [],  # noqa: B006
    out: Out = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Go on with a fine-tuning run.")] = None,
    imports: Imports = [],  # noqa: B006
    dry_run: DryRun = False,
    plain: Plain = False,
) -> None:
    """Fine-tune a model on demonstrations, the usual start of RL.

    Each line of the file is a JSON object with `prompt` and `completion`, texts or chat messages, or with `messages`, a
    chat whose last message is the completion, or has Alpaca's columns; the end of the completion is learned too. The
    model lands in RUN/model, ready for `strop train --set model.path=RUN/model`.

    \b
    strop sft Qwen/Qwen3-0.6B --data worked-examples.jsonl
    strop sft fresh --data tiny.jsonl --set training.steps=200 --dry-run
    strop sft --resume runs/sft
    """
    from strop.base.types import InputError
    from strop.run.folder import RunFolder, free_folder
    from strop.run.sft_config import checked_config, stored_config

    allow(imports, sets)
    folder = resume if resume is not None else out if out is not None else free_folder("sft")
    if resume is not None:
        if model is not None or demonstrations is not None or sets or out is not None:
            raise InputError(f"--resume goes on with {resume} as it was configured; leave out the other arguments")
        config = stored_config(RunFolder.open(resume))  # says what is wrong before torch takes its seconds to load
    elif model is None or demonstrations is None:
        raise InputError("name the model and the demonstrations: strop sft MODEL --data FILE.jsonl")
    else:
        config = checked_config(model, demonstrations, sets, folder)
    if dry_run:
        from strop.run.fine_tuning import preview

        _show(lambda view: preview(config, view))
        return
    from strop.run import fine_tuning

    title = f"strop · sft · {folder}"
    with viewing(plain, title, lambda: _go_on("sft", folder)) as view:
        if resume is not None:
            fine_tuning.resume(resume, view)
        else:
            fine_tuning.train(config, folder, view)
    report_run(folder)


def report_run(folder: Path) -> None:
    """Print the last evaluation, where model and curves are, and the next commands."""
    from strop.base.imports import command
    from strop.run.folder import RunFolder

    run = RunFolder.open(folder)
    rows = _last_values(run.path)
    if rows:
        with waiting("drawing the curves"):
            from strop.report.training_figures import plot_run

            curves = plot_run(run.path)
        print_table(("", "at the end"), rows)
        print(f"curves   {curves}")
    print(f"model    {run.model}")
    if run.fine_tunes:
        print_next(
            (f"strop train grpo --set {quote(f'model.path={run.model}')}", "go on with reinforcement learning"),
            (command("sample", folder, " --prompt '...'"), "try it"),
        )
        return
    print_next(
        (command("eval", folder), "measure it on held-out problems"),
        (command("sample", folder, " --prompt '...'"), "try it"),
        (command("export", folder, " --out my-model"), "copy the model out of the run"),
    )


def _last_values(folder: Path) -> list[tuple[str, str]]:
    """Held-out pass rate before and after, the gain with its interval, and the last pass rate or loss in training."""
    from strop.base.text import percent
    from strop.report.runs import interval_suffix, read_runs

    run = read_runs([folder])[0]
    steps, rates = run.series("evaluation/pass_rate")
    rows = [
        (f"held-out pass rate, step {step}", f"{percent(rate)}{interval_suffix(run.interval(step))}")
        for step, rate in list(zip(steps, rates, strict=True))[:: max(1, len(rates) - 1)]
    ]
    if len(rates) > 1:
        gained = run.gain(steps[-1])
        known = "" if gained is None else f"{gained[0]} points{interval_suffix(gained[1])}"
        rows.append(("gain", known or "not known: evaluations were changed since the first"))
    trained, loss = run.last("pass_rate"), run.last("loss")
    if trained is not None:
        rows.append(("pass rate in training", percent(trained)))
    elif loss is not None:  # that of a policy gradient says nothing by itself
        rows.append(("loss", f"{loss:.4g}"))
    return rows


def print_next(*commands: tuple[str, str]) -> None:
    """Print commands to try, each with its purpose."""
    width = max(len(words) for words, _ in commands)
    print("\nnext")
    for words, purpose in commands:
        print(f"  {words:<{width}}   {purpose}")


def runs(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look; by default runs/.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs below a folder, the newest first: state, steps, pass rates and when they began.

    \b
    strop runs
    strop runs --json
    """
    from strop.report.status import listed
    from strop.run.folder import runs_in

    found = [listed(run) for run in runs_in(root)]
    columns = ("run", "state", "recipe", "step", "train", "held out", "began")

    def table() -> None:
        print_table(columns, [_row(run) for run in found])
        for run in found:
            if run.state == "unreadable":
                print(run.explanation)

    show(as_json, [run.as_json() for run in found], table)


def _day_and_time(began: str) -> str:
    """A time of a run folder as `22 Nov 20:48`, or `22 Nov 2025` of another year; empty if there is none."""
    if not began:
        return ""
    when = datetime.fromisoformat(began)
    return when.strftime("%d %b %H:%M" if when.year == datetime.now(when.tzinfo).year else "%d %b %Y")


def _row(run: RunStatus) -> list[str]:
    if run.state == "unreadable":
        return [run.run, run.state, "", "", "", "", ""]
    steps = f"{run.step}" if run.steps is None else f"{run.step}/{run.steps}"
    rates = [_rate(run, name) for name in ("training", "held-out")]
    return [run.run, run.state, run.recipe or "fine-tuning", steps, *rates, _day_and_time(run.began)]


def _rate(found: RunStatus, name: str) -> str:
    """A pass rate, with its step if that is not the last one."""
    from strop.base.text import percent

    if name not in found.pass_rates:
        return "-"
    rate, step = found.pass_rates[name]
    return percent(rate) + (f" (step {step})" if step != found.step else "")


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
    """Write one HTML page about a run, or comparing several.

    The page is one file without any link to the network. It has the curves, the evaluations, the settings that differ
    from the recipe, and completions of the first and the last step. Everything comes from what the run recorded; the
    page lists what is missing.

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

    with waiting("reading and drawing"):
        written = write_report(runs, out, samples)
    value = {"report": str(written.page), "left_out": list(written.left_out)}

    def lines() -> None:
        for line in written.left_out:
            print(f"left out   {line}")
        print(f"report     {written.page}")

    show(as_json, value, lines)


def plot(
    run: Run,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The PNG to write; by default RUN/plots/NAME.png.")
    ] = None,
    figure: Annotated[
        str, typer.Option(help="training, or of single tokens: tokens, entropy, clip, mismatch, values.")
    ] = "training",
    step: Annotated[
        int | None, typer.Option(help="Of the rollouts that are drawn; by default the first recorded one.", min=0)
    ] = None,
    seen: Annotated[int, typer.Option(help="How often a token of --figure tokens was seen at least.", min=1)] = 100,
    imports: Imports = [],  # noqa: B006  (typer copies it)
) -> None:
    """Draw a figure of a run as a PNG, by default its training curves; works while the run goes on.

    Figures of tokens are drawn from the recorded rollouts. tokens: those of the highest and the lowest mean entropy.
    entropy: means of prompts and of responses. mismatch: log-probs of generator and trainer. values: those of a
    critic, on repeated tokens and on others. clip: where the run's loss clips a token.

    \b
    strop plot runs/first
    strop plot runs/first --figure tokens --seen 20
    strop plot runs/first --figure clip --out regions.png
    """
    from strop.run.folder import RunFolder

    allow(imports)
    folder = RunFolder.open(run)  # says what is wrong before what is heavy takes its seconds to load
    with waiting("drawing"):
        from strop.report.runs import read_runs
        from strop.report.training_figures import plot_run

        if figure == "training":
            written = plot_run(folder.path, out)
        else:
            from strop.report.token_figures import Choice, plot_figure

            target = out or folder.path / "plots" / f"{figure}.png"
            written = plot_figure(read_runs([folder.path])[0], figure, target, Choice(step, seen))
    print(written)


def status(run: Run, as_json: Json = False) -> None:
    """Show the state of a run, its progress and its processes.

    The command only reads the folder (and /proc, for processes of this machine). The exit code is 1 if the run died,
    failed or was ended by the watchdog, else 0.

    \b
    strop status runs/grpo
    strop status runs/grpo --json
    """
    from strop.report.status import read_status
    from strop.run.folder import RunFolder

    found = read_status(RunFolder.open(run))

    def text() -> None:
        for line in lines(found):
            print(line)
        if found.processes:
            states = {None: "on {}", True: "alive", False: "ended"}
            rows = [(each.role, str(each.pid), states[each.alive].format(each.host)) for each in found.processes]
            print_table(("process", "pid", ""), rows)

    show(as_json, found.as_json(), text)
    if found.state in ("dead", "failed", "stuck"):
        raise typer.Exit(1)


def lines(found: RunStatus) -> list[str]:
    """The state in a few lines; values that the folder does not have are left out."""
    from strop.base.text import duration, number

    said = f": {found.explanation}" if found.explanation else ""
    result = [f"{found.run}  {found.state}{said}"]
    if found.error is not None:
        result.append(f"error      {found.error}")
    steps = "" if found.steps is None else f" of {found.steps}"
    left = "" if found.eta is None else f", about {duration(found.eta)} left"
    stage = f"  ({found.stage})" if found.stage not in (None, "rl") else ""
    result.append(f"step       {found.step}{steps}{left}{stage}")
    if found.doing is not None:
        result.append("now        {} {} of {}".format(*found.doing))
    if found.pass_rates:
        result.append(f"pass rate  {', '.join(f'{name} {_rate(found, name)}' for name in found.pass_rates)}")
    if found.step_seconds is not None:
        result.append(f"seconds    {number(found.step_seconds)} a step")
    if found.progress is not None and found.going_on:
        result.append(f"last       {found.progress[0]}, {duration(found.progress[1])} ago")
    return result + [f"note       {note}" for note in found.notes[-5:]]


def dashboard(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders of runs.")],
    port: Annotated[int, typer.Option(help="Where to listen; 0 takes a free port.", min=0, max=65535)] = 8030,
) -> None:
    """Follow runs on a web page: curves over each other, health, settings that differ, every completion.

    It only reads the run folders and answers only this machine. From another machine: ssh -L 8030:127.0.0.1:8030 HOST.
    Ctrl-C ends it.

    \b
    strop dashboard runs/grpo
    strop dashboard runs/grpo runs/dapo --port 0
    strop dashboard runs
    """
    from strop.base.progress import CURRENT
    from strop.base.text import counted
    from strop.base.types import InputError
    from strop.dashboard import Dashboard, FollowedRuns
    from strop.run.folder import is_run, runs_in
    from strop.serving.http import HttpServer, listen

    runs = [run for folder in folders for run in ([folder] if is_run(folder) else runs_in(folder))]
    if not runs:
        raise InputError(f"{folders[0]} holds no run; name run folders: strop dashboard runs/grpo")
    server = HttpServer(Dashboard(FollowedRuns(runs)), listen("127.0.0.1", port, None, False))
    print(f"dashboard of {counted(len(runs), 'runs')}: {server.url}/", flush=True)
    with CURRENT.quiet():
        server.run()
