"""Commands on the folders of runs: runs, report, status, dashboard, verify compare."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.options import (
    Imports,
    Json,
    Run,
    allow,
    bar,
    print_table,
    show,
)

if TYPE_CHECKING:
    from strop.run.status import ProcessStatus, RunStatus


def runs(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look; by default runs/.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs below a folder, the newest first: state, steps, pass rates and when they began.

    \b
    strop runs
    strop runs --json
    """
    from strop.run.folder import runs_in
    from strop.run.status import listed

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

    with bar("reading") as tell:
        written = write_report(runs, out, samples, lambda what: tell(what=what))
    value = {"report": str(written.page), "left_out": list(written.left_out)}

    def lines() -> None:
        for line in written.left_out:
            print(f"left out   {line}")
        print(f"report     {written.page}")

    show(as_json, value, lines)


def status(run: Run, as_json: Json = False) -> None:
    """Show the state of a run, its progress and its processes.

    The command only reads the folder (and /proc, for processes of this machine). The exit code is 1 if the run died,
    failed or was ended by the watchdog, else 0.

    \b
    strop status runs/grpo
    strop status runs/grpo --json
    """
    from strop.run.folder import RunFolder
    from strop.run.status import read_status

    found = read_status(RunFolder.open(run))

    def text() -> None:
        for line in lines(found):
            print(line)
        if found.processes:
            print_table(("process", "pid", ""), [_status_row(each) for each in found.processes])

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


def _status_row(process: ProcessStatus) -> list[str]:
    state = {None: f"on {process.host}", True: "alive", False: "ended"}[process.alive]
    return [process.role, str(process.pid), state]


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
    from strop.base.text import counted
    from strop.base.types import InputError
    from strop.dashboard.app import Dashboard
    from strop.dashboard.reading import FollowedRuns
    from strop.run.folder import is_run, runs_in
    from strop.serving.http import HttpServer, listen

    runs = [run for folder in folders for run in ([folder] if is_run(folder) else runs_in(folder))]
    if not runs:
        raise InputError(f"{folders[0]} holds no run; name run folders: strop dashboard runs/grpo")
    server = HttpServer(Dashboard(FollowedRuns(runs)), listen("127.0.0.1", port, None, False))
    print(f"dashboard of {counted(len(runs), 'runs')}: {server.url}/", flush=True)
    server.run()


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
    imports: Imports = [],  # noqa: B006  (typer copies it)
    as_json: Json = False,
) -> None:
    """How many problems each verifier counts as solved 0, 1, 2 … times, and where they disagree (Skywork-OR1, Fig. 27).

    A verifier with settings is written as JSON: '{"piece": "MathVerifier", "extract": "any"}'.
    """
    from strop.verifiers.comparison import compare_verifiers as compared
    from strop.verifiers.comparison import named_verifier, read_rollouts

    allow(imports)
    found = compared([named_verifier(text) for text in verifiers], read_rollouts(rollouts))
    value = {
        "problems": found.problems,
        "rollouts": found.rollouts,
        "histograms": {name: list(counts) for name, counts in zip(found.names, found.histograms, strict=True)},
        "failures": dict(zip(found.names, found.failures, strict=True)),
        "disagreements": found.disagreements,
    }

    def table() -> None:
        widest = max(len(counts) for counts in found.histograms)
        rows = [
            (str(solved), *(str(counts[solved]) for counts in found.histograms)) for solved in range(widest)
        ]  # fmt: skip
        print_table(("solved", *found.names), rows)
        failed = ", ".join(f"{name} {count}" for name, count in zip(found.names, found.failures, strict=True))
        print(f"{found.rollouts} rollouts of {found.problems} problems; verdicts differ on {found.disagreements}")
        print(f"could not be judged: {failed}")

    show(as_json, value, table)
