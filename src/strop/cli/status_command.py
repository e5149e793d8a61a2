"""strop status: what a run is doing, from its folder alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.options import Json, Run, print_json, print_table

if TYPE_CHECKING:
    from strop.run.status import ProcessStatus, RunStatus

REFRESH_SECONDS = 2.0


def status(
    run: Run,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds until the run ends.")] = False,
    as_json: Json = False,
) -> None:
    """Say whether a run is alive, how far it is, how quick, and what its processes do.

    It only reads the folder (and /proc, for processes of this machine), so that it can be asked at any time. With
    --watch --json each line is one JSON object. The exit code is 1 where a run has died, failed or was ended by the
    watchdog, 0 otherwise.

    \b
    strop status runs/grpo
    strop status runs/grpo --watch
    strop status runs/grpo --json
    """
    import time

    from strop.run.folder import RunFolder
    from strop.run.status import read_status

    folder = RunFolder.open(run)
    found = read_status(folder)
    while True:
        _show(found, as_json, watch)
        if not watch or not found.going_on:
            break
        try:
            time.sleep(REFRESH_SECONDS)
        except KeyboardInterrupt:
            break
        found = read_status(folder)
    if found.state in ("dead", "failed", "stuck"):
        raise typer.Exit(1)


def _show(found: RunStatus, as_json: bool, watch: bool) -> None:
    import json
    import sys

    if as_json:
        if watch:
            print(json.dumps(found.as_json(), ensure_ascii=False), flush=True)
        else:
            print_json(found.as_json())
        return
    if watch and sys.stdout.isatty():
        from rich.console import Console

        Console().clear()
    for line in lines(found):
        print(line)
    if found.processes:
        rows = [_row(each) for each in found.processes]
        columns = ("process", "pid", "", "cpu", "memory", "heartbeat", "GPUs")
        kept = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
        print_table(columns[:kept], [row[:kept] for row in rows])


def lines(found: RunStatus) -> list[str]:
    """The state in a few lines; what the folder does not say is left out."""
    from strop.base.view import duration, number, percent

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
    known = [] if found.pass_rate is None else [percent(found.pass_rate)]
    measured = dict(found.benchmarks)
    if found.held_out_pass_rate is not None and found.held_out_step is not None:
        measured = {"held-out": (found.held_out_pass_rate, found.held_out_step), **measured}
    # Of an earlier step than the present one it is said which.
    known += [
        f"{name} {percent(rate)}" + (f" (step {step})" if step != found.step else "")
        for name, (rate, step) in measured.items()
    ]
    if known:
        result.append(f"pass rate  {', '.join(known)}")
    if found.step_seconds is not None:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in found.shares.items() if share >= 0.005)
        shares = f" ({shares})" if shares else ""
        speed = "" if found.tokens_per_second is None else f"; {number(found.tokens_per_second)} tokens/s"
        result.append(f"seconds    {number(found.step_seconds)} a step{shares}{speed}")
    if found.lag_mean is not None and found.lag_max:
        result.append(f"lag        {found.lag_mean:.2f} mean, {found.lag_max:g} at most")
    if found.progress is not None and found.going_on:
        result.append(f"last       {found.progress[0]}, {duration(found.progress[1])} ago")
    return result + [f"note       {note}" for note in found.notes[-5:]]


def _row(process: ProcessStatus) -> list[str]:
    state = {None: f"on {process.host}", True: process.state or "", False: "ended"}[process.alive]
    return [
        process.role,
        str(process.pid),
        state,
        "-" if process.cpu is None else f"{process.cpu:.0%}",
        "-" if process.memory is None else f"{process.memory / 2**20:,.0f} MiB",
        "-" if process.heartbeat_age is None else f"{process.heartbeat_age:.0f} s",
        ", ".join(map(str, process.gpus)),
    ]
