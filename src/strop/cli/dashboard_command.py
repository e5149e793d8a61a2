"""strop dashboard: follow runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strop.cli.options import run_folders


def dashboard(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Run folders, or folders of runs.", autocompletion=run_folders),
    ],
    port: Annotated[int, typer.Option(help="Where to listen; 0 takes a free port.", min=0, max=65535)] = 8030,
    browser: Annotated[bool, typer.Option("--open", help="Open it in this machine's browser.")] = False,
) -> None:
    """Follow runs on a web page: curves over each other, health, settings that differ, every completion.

    It reads the run folders alone, writes nothing and answers only to this machine; a run does not notice it. From
    another one: ssh -L 8030:127.0.0.1:8030 HOST. Ctrl-C ends it.

    \b
    strop dashboard runs/grpo
    strop dashboard runs/grpo runs/dapo --port 0
    strop dashboard runs
    """
    from strop.base.types import InputError
    from strop.dashboard.app import Server, opened
    from strop.dashboard.reading import Runs
    from strop.run.folder import is_run
    from strop.run.status import runs_in

    runs = [run for folder in folders for run in ([folder] if is_run(folder) else runs_in(folder))]
    if not runs:
        raise InputError(f"{folders[0]} holds no run; name run folders: strop dashboard runs/grpo")
    shown = Runs(runs)
    listening, url = opened(port)
    print(f"dashboard of {len(runs)} {'runs' if len(runs) > 1 else 'run'}: {url}", flush=True)
    if browser:
        import webbrowser

        webbrowser.open(url)
    Server(shown, listening).run()
