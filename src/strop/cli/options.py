"""Options that several commands share, and output to a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from strop.base.view import View


INTERRUPTED = 130


def _from_files(sets: list[str]) -> list[str]:
    """The values of `--set`, with those of a file in place of `@changes.toml`."""
    if not any(text.startswith("@") for text in sets):
        return sets
    from strop.config.parse import edits_of_file

    return [edit for text in sets for edit in (edits_of_file(Path(text[1:])) if text.startswith("@") else [text])]


def set_option(example: str) -> Any:
    """The option `--set`; its help shows `example`."""
    return typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help=f"Change a setting, such as {example}, or those of a TOML file, @changes.toml; may be repeated.",
        show_default=False,
        callback=_from_files,
    )


Sets = Annotated[list[str], set_option("optim.lr=2e-6")]
Imports = Annotated[
    list[str],
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import a module of your own, whose pieces may then be named module:Class; may be repeated.",
        show_default=False,
    ),
]
Tiny = Annotated[
    bool,
    typer.Option(
        "--tiny", help="The recipe's tiny form: every piece of it, on the embedded model, 20 steps in about a minute."
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="One line a step instead of the live view.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help="The run folder to make; by default a new one under runs/."),
]

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run folder, a model folder, or a hub name; RUN@STEP is a checkpoint.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Checkpoint = Annotated[str, typer.Argument(metavar="RUN", help="A run folder; RUN@STEP is a checkpoint.")]


def recipe_option(what: str) -> Any:
    """The option `--recipe`, which a command takes `what` from."""
    return typer.Option(metavar="RECIPE|FILE", help=f"The recipe with {what}; by default the run's, else grpo.")


Recipe = Annotated[str | None, recipe_option("prompt template, verifier and sampling")]


def allow(modules: Sequence[str], sets: Sequence[str] = ()) -> None:
    """Import the modules of `--import`, also from the current folder, and allow the settings of `--set`."""
    from strop.base.imports import allow_edits, allow_module

    allow_edits(sets)
    if modules:
        from_here()
    for module in modules:
        allow_module(module)


def from_here() -> None:
    """Let modules next to the current folder be imported, as `python -m` does."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


@contextmanager
def viewing(plain: bool, title: str, on_interrupt: str | Callable[[], str], to_stderr: bool = False) -> Iterator[View]:
    """A view that is closed at the end; an unhandled Ctrl-C prints `on_interrupt` and exits with code 130."""
    from strop.report.console import open_view

    try:
        with open_view(plain, title, sys.stderr if to_stderr else sys.stdout) as view:
            yield view
    except KeyboardInterrupt:
        print(on_interrupt if isinstance(on_interrupt, str) else on_interrupt(), file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Inside, a terminal shows at every moment what is being done; elsewhere the heartbeat does."""
    from strop.base import progress

    with progress.doing(title):
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        live = Live(console=Console(stderr=True), transient=True, get_renderable=lambda: Text(progress.CURRENT.text))
        with progress.CURRENT.quiet(), live:
            yield


def numbers(flag: str, text: str, example: str, least: int = 0) -> list[int]:
    """Whole numbers of at least `least` with commas between, each once.

    Raises:
        InputError: it is not written so.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) >= least for part in parts):
        from strop.base.types import InputError

        bound = f" of at least {least}" if least else ""
        raise InputError(f"{flag} {text}: write whole numbers{bound} with commas between, such as {example}")
    return list(dict.fromkeys(map(int, parts)))


def print_markdown(text: str) -> None:
    """Print Markdown: rendered on a terminal, otherwise as it is."""
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(highlight=False).print(Markdown(text))


def print_json(value: Any) -> None:
    """Print JSON, as the only thing on standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> None:
    """Print a table without lines. Cells wrap at their spaces on a narrow terminal; no word is broken.

    Args:
        columns: the heads.
        rows: the cells, as many as there are columns.
        right: heads of the columns that are set flush right.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, show_header=any(columns))
    for place, column in enumerate(columns):
        words = [word for cell in (column, *(row[place] for row in rows)) for word in cell.split()]
        widest = max(map(cell_len, words), default=0)
        table.add_column(Text(column), justify="right" if column in right else "left", min_width=widest)
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print("", table, "", sep="\n", crop=False, overflow="ignore")


def show(as_json: bool, value: Any, table: Callable[[], None]) -> None:
    """Print `value` as JSON, or the table."""
    if as_json:
        print_json(value)
    else:
        table()
