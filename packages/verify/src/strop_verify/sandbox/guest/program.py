"""Running foreign code in this process: the prelude, compilation, a real `__main__`, a real end."""

from __future__ import annotations

import atexit
import builtins
import gc
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NoReturn

PATH = "/tmp/main.py"
THREAD_STACK = 16 << 20
RECURSION = 50_000
# The names that solutions of programming contests use without importing them.
PRELUDE = """
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from statistics import *
from itertools import *
from functools import *
from operator import *
from io import *
from sys import *
from json import *
from decimal import *
from fractions import *
from builtins import *
from typing import *
import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics, itertools, functools, operator
import io, sys, json, os, time, decimal, fractions, typing, array, cmath
"""
PRELUDE_NAMES: list[str] = []  # those that were made builtins
SYNTAX_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)


def prepare_interpreter(packages: list[str]) -> None:
    """Make the interpreter look as if it had been started for one program; once, in the fork server.

    The names of the prelude become builtins: a fork then need not touch them, and a module holds its own names only.
    """
    names: dict[str, Any] = {}
    exec(PRELUDE, names)
    for name in sorted(names.keys() - vars(builtins).keys()):
        setattr(builtins, name, names[name])
        PRELUDE_NAMES.append(name)
    package = __name__.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    sys.argv[:] = [PATH]
    sys.path[0] = "/tmp"
    sys.path += packages
    sys.setrecursionlimit(RECURSION)
    sys.set_int_max_str_digits(0)
    threading.stack_size(THREAD_STACK)


def forget_prelude() -> None:
    """Take the names of the prelude back."""
    for name in PRELUDE_NAMES:
        delattr(builtins, name)


def compiled(source: str, optimise: int = 0) -> types.CodeType:
    """The program as code.

    Raises:
        SYNTAX_ERRORS: it is no Python.
    """
    return compile(source, PATH, "exec", dont_inherit=True, optimize=optimise)


def run_main(code: types.CodeType, source: str) -> NoReturn:
    """Run a program as `__main__` and end the process as the interpreter would."""
    with open(PATH, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(source)
    module = types.ModuleType("__main__")
    module.__dict__["__file__"] = PATH
    sys.modules["__main__"] = module
    finish(_status_of(lambda: exec(code, module.__dict__)), module)


def finish(status: int, module: types.ModuleType) -> NoReturn:
    """Wait for threads, run the exit handlers, flush what is open; much quicker than tearing the interpreter down."""
    for ending in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush):  # type: ignore[attr-defined]
        status = _status_of(ending) or status
    module.__dict__.clear()  # files that were left open are flushed when they are let go
    gc.collect()
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and not stream.closed:
            status = _status_of(stream.flush) or status
    os._exit(status)


def _status_of(action: Callable[[], Any]) -> int:
    """The exit status that `action` gives: 0, that of sys.exit, or 1 after a traceback."""
    try:
        action()
    except SystemExit as end:
        if end.code is None:
            return 0
        if isinstance(end.code, int):
            return end.code & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # whatever it is, the interpreter would print it and end with 1
        outer = error.__traceback__.tb_next if error.__traceback__ else None
        inner = outer.tb_next if outer else None  # without our own two frames
        sys.excepthook(type(error), error.with_traceback(inner), inner)
        return 1
    return 0
