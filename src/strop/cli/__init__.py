"""The command line. Thin: it reads arguments, calls one function and prints what came back.

Nothing heavy is imported until a command runs, so that `strop --help` answers at once.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import sys
from typing import Any

import typer

from strop.cli.commands import app
from strop_verify.child_process import wait_politely

__all__ = ["app", "main"]

USAGE: Any = typer.BadParameter.__bases__[0]  # of every wrong option and argument; typer does not export it
def main() -> None:
    """Run the command line. An error that the user can fix becomes one line on standard error and its exit code."""
    # Loading a model announces itself in several lines and bars, which would tear the live view.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    wait_politely()
    atexit.register(gc.freeze)  # else the end of the process searches all that torch has imported, for 1.5 s
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of ASCII shows ? for other signs
    try:
        code = app(prog_name="strop", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # what it tells is the whole help
            app(prog_name="strop")
        line, code = _told(error)
        if line is None:
            raise
        shown = "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in line)
        print(f"strop: {shown}", file=sys.stderr)
        sys.exit(code)


def _told(error: Exception) -> tuple[str | None, int]:
    """What to say of an error and the exit code; None where it is a fault of strop's own, which shows its traceback."""
    from strop.base.imports import blamed
    from strop.base.types import InputError, StropError

    if isinstance(error, StropError):
        return str(error), error.exit_code
    if isinstance(error, USAGE):
        said, context = error.format_message(), error.ctx
        hint = "" if context is None else f" ({context.command_path} --help)"
        takes_settings = context is None or context.command_path != "strop quickstart"
        if not takes_settings and not isinstance(error, typer.BadParameter):
            hint = f"; its settings are changed by: strop train quickstart --set KEY=VALUE{hint}"
        return said[:1].lower() + said[1:].rstrip(".") + hint, error.exit_code
    if isinstance(error, typer.Abort):
        return "not confirmed, nothing was done", 1
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
        said = " ".join(str(error).split())[:200]
        return f"memory ran out ({said}); lower batch.tokens_per_microbatch, engine.slots or the model", 1
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be flushed has nowhere to go
        return f"cannot write the output: {error.strerror}", 1
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}", 1
    if isinstance(error, RecursionError) and blamed(error) is None:
        return "a file is nested too deeply; is it one that strop has written?", InputError.exit_code
    return blamed(error), InputError.exit_code
