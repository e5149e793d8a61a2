"""Functions of the running Python session, by the names under which a configuration refers to them.

    name = remember(reward)              # "my_rewards:exact", or "__main__:brief" for one of a script or notebook
    function = recall(name)              # the same function; None in a process that has no such function

A function that Python can import again is called `module:function`, and its module is allowed from then on, as by
`--import`. Every other one (of a script, a notebook, a closure, a bound method) is called `__main__:name`: other
processes of the run get it by value (see `carried`), and whoever goes on with the run must give it again.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from strop.base import imports
from strop.base.imports import MAIN

_functions: dict[str, Callable[..., Any]] = {}


def remember(function: Callable[..., Any]) -> str:
    """The name under which `recall` finds the function; a second function of the same name gets a number behind it."""
    plain = name_of(function)
    module = inspect.getmodule(function)
    home = MAIN if module is None else module.__name__
    if home != MAIN and vars(module).get(plain) is function:
        imports.allow_module(home)
        return f"{home}:{plain}"
    name, count = f"{MAIN}:{plain}", 1
    while name in _functions and not _is_redefined(_functions[name], function):
        count += 1
        name = f"{MAIN}:{plain}#{count}"
    _functions[name] = function
    return name


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called where it was defined; for an object that can be called, its class."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    if inspect.isroutine(function):
        return function.__qualname__
    return type(function).__qualname__


def bind(name: str, function: Callable[..., Any]) -> None:
    """Let `name`, which an earlier session gave, stand for this function."""
    _functions[name] = function


def remembered() -> dict[str, Callable[..., Any]]:
    """Every function that has a name of this session alone, by that name."""
    return dict(_functions)


def forget() -> None:
    """Forget every function, as a new session has none."""
    _functions.clear()


def recall(name: str) -> Callable[..., Any] | None:
    """The function of that name; None where neither this session nor a module that was allowed has it."""
    if name in _functions:
        return _functions[name]
    module, _, function = name.partition(":")
    if module == MAIN or not imports.is_allowed(module):
        return None
    found = vars(importlib.import_module(module)).get(function)
    return found if callable(found) else None


def _is_redefined(known: Callable[..., Any], function: Callable[..., Any]) -> bool:
    """Whether the second function takes the place of the first: it is the same, or defined anew under its name."""
    if known is function:
        return True
    if not (inspect.isfunction(known) and inspect.isfunction(function)):
        return False
    return function.__name__ != "<lambda>" and "<locals>" not in function.__qualname__
