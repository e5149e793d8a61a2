"""strop runs: list, compare, rename and delete runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.completion import run_folders
from strop.cli.options import Json, Run, print_differences, print_table, show

if TYPE_CHECKING:
    from strop.run.runs import ListedRun
    from strop.run.status import RunStatus

runs_app = typer.Typer(
    rich_markup_mode=None,
    help="""Runs: list them, compare two or more, rename and delete them.

    \b
    strop runs
    strop runs list runs
    strop runs compare runs/grpo runs/dapo
    strop runs rename runs/one best
    strop runs delete runs/one runs/two --yes
    """,
)


@runs_app.callback(invoke_without_command=True)
def runs(context: typer.Context, as_json: Json = False) -> None:
    """List the runs below runs/."""
    if context.invoked_subcommand is None:
        list_runs(Path("runs"), as_json)


@runs_app.command("list", short_help="List runs, the newest first.")
def list_runs(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look; by default runs/.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs below a folder, the newest first: state, steps, pass rates, when they began, how large they are."""
    from strop.run.runs import listed, runs_in

    found = [listed(run) for run in runs_in(root)]
    columns = ("run", "state", "recipe", "step", "train", "held out", "began", "size")

    def table() -> None:
        print_table(columns, [_row(run) for run in found], spare=2)
        _note_sampling(found)
        for run in found:
            if run.unread:
                print(run.unread)

    show(as_json, [run.as_json() for run in found], table)


@runs_app.command("compare", short_help="Show runs side by side.")
def compare_runs(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Two or more run folders.", autocompletion=run_folders)
    ],
    as_json: Json = False,
) -> None:
    """Show what runs came to side by side, every setting in which they differ, and those that a resume changed."""
    from strop.base.files import distinct_names
    from strop.base.types import InputError
    from strop.run.changes import read_changes
    from strop.run.folder import RunFolder
    from strop.run.runs import differences, listed

    if len(folders) < 2:
        raise InputError("name two runs or more: strop runs compare runs/first runs/second")
    changes = [read_changes(RunFolder.open(folder)) for folder in folders]
    names = distinct_names([folder.resolve() for folder in folders])
    found = [listed(folder) for folder in folders]
    settings = differences(folders)
    value = {
        "runs": [
            run.as_json() | {"changes": [change._asdict() for change in own]}
            for run, own in zip(found, changes, strict=True)
        ],
        "settings": [{"key": key, **dict(zip(names, values, strict=True))} for key, values in settings],
    }

    def tables() -> None:
        rows = [list(each) for each in zip(*(_row(run)[1:6] for run in found), strict=True)]
        titles = ("state", "recipe", "step", "train", "held out")
        print_table(("", *names), [[title, *row] for title, row in zip(titles, rows, strict=True)])
        _note_sampling(found)
        print_differences(("setting", *names), [[key, *values] for key, values in settings])
        for name, change in ((name, change) for name, own in zip(names, changes, strict=True) for change in own):
            print(f"{name} went on with other settings {change.said()}")

    show(as_json, value, tables)


@runs_app.command("rename")
def rename_run(
    run: Run, name: Annotated[str, typer.Argument(metavar="NAME", help="Its new name, or a path to move it to.")]
) -> None:
    """Give a run another name. One that is going on is refused."""
    from strop.run.runs import rename

    print(rename(run, name))


@runs_app.command("delete", short_help="Delete runs and their folders.")
def delete_runs(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Run folders.", autocompletion=run_folders)
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete runs with all that is in their folders, after asking. One that is going on is refused."""
    from strop.base.types import InputError
    from strop.run.folder import RunFolder
    from strop.run.runs import delete, listed

    for folder in folders:
        RunFolder.open(folder)
    if not yes:
        rows = [_row(listed(folder)) for folder in folders]
        print_table(("run", "state", "step", "size"), [[row[0], row[1], row[3], row[7]] for row in rows])
        try:
            agreed = typer.confirm("delete?")
        except typer.Abort:  # the end of input, as without a terminal
            raise InputError("nothing was deleted; --yes deletes without asking") from None
        if not agreed:
            raise typer.Abort
    for folder in folders:
        delete(folder)
        print(f"deleted {folder}")


def _day_and_time(began: str) -> str:
    """`22 Nov 20:48`, of other years `22 Nov 2025`, of a time as a run folder writes it; nothing where it has none."""
    if not began:
        return ""
    when = datetime.fromisoformat(began)
    return when.strftime("%d %b %H:%M" if when.year == datetime.now(when.tzinfo).year else "%d %b %Y")


def _row(run: ListedRun) -> list[str]:
    from strop.base.view import percent

    began, size = _day_and_time(run.began), f"{run.size / 2**20:,.0f} MiB"
    found = run.status
    if found is None:
        return [str(run.path), "unreadable", "", "", "", "", began, size]
    steps = f"{found.step}" if found.steps is None else f"{found.step}/{found.steps}"
    trained = "-" if found.pass_rate is None else percent(found.pass_rate)
    return [str(run.path), found.state, found.recipe or "fine-tuning", steps, trained, _held_out(found), began, size]


def _held_out(found: RunStatus) -> str:
    """The held-out pass rate with its sampling, and with its step where that is not the last one."""
    from strop.base.view import percent

    if found.held_out_pass_rate is None:
        return "-"
    earlier = [] if found.held_out_step == found.step else [f"(step {found.held_out_step})"]
    return " ".join([percent(found.held_out_pass_rate), found.held_out_sampling or "", *earlier])


def _note_sampling(found: Sequence[ListedRun]) -> None:
    """Say so where held-out rates were sampled differently."""
    marks = {run.status.held_out_sampling for run in found if run.status and run.status.held_out_pass_rate is not None}
    if len(marks) > 1:
        print("held out: the runs sample differently; compare only rates of one sampling (strop eval measures anew)")
