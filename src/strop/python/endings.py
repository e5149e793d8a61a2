"""How an error that the user can mend ends a script: with one line, as it ends a command, without a traceback.

A notebook shows the same by `StropError._render_traceback_`. Whoever catches the error has it whole, and a debugger
(`python -i`, `pdb.pm()`) its traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import strop
from strop.base.types import StropError

_STROP = str(Path(strop.__file__).parent) + os.sep

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class _InOneLine:
    """An exception hook that writes a `StropError` as a line and leaves every other exception to the hook before."""

    def __init__(self, before: Hook) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, StropError):
            print(f"strop: {_place(trace)}{error}", file=sys.stderr)
        else:
            self._before(kind, error, trace)


def end_in_one_line() -> None:
    """Let a `StropError` that nobody catches end this process so."""
    if not isinstance(sys.excepthook, _InOneLine):
        sys.excepthook = _InOneLine(sys.excepthook)


def _place(trace: TracebackType | None) -> str:
    """`script.py, line 4: `, the line of the user's that called strop; empty where it is in no file."""
    frames = traceback.extract_tb(trace)
    calls = [one for one, inner in zip(frames, frames[1:], strict=False) if inner.filename.startswith(_STROP)]
    caller = next((one for one in calls if not one.filename.startswith(_STROP)), None)
    if caller is None or caller.filename.startswith("<"):
        return ""
    return f"{os.path.relpath(caller.filename)}, line {caller.lineno}: "
