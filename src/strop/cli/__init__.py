"""The command line. Thin: it reads arguments, calls one function and prints what came back.

Nothing heavy is imported until a command runs, so that `strop --help` answers at once.
"""

from __future__ import annotations

import os
import sys

from strop.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line. A `StropError` becomes one line on standard error and its exit code."""
    # Loading a model announces itself in several lines and bars, which would tear the live view.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        app(prog_name="strop")
    except Exception as error:
        from strop.base.types import StropError

        if not isinstance(error, StropError):
            raise
        print(f"strop: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
