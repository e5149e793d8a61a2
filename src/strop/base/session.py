"""Functions of the running Python session, by the names under which a configuration refers to them.

    name = remember(reward)              # "my_rewards:exact", or "__main__:brief" for one of a script or notebook
    function = recall(name)              # the same function; None in a process that has no such function

A function that Python can import again is called `module:function`, and its module is allowed from then on, as by
`--import`. Every other one (of a script, a notebook, a closure, a bound method) is called `__main__:name`: other
processes of the run get it by value (see `carried`), and whoever goes on with the run must give it again.
"""

from __future__ import annotations

import base64
import functools
import importlib
import inspect
import pickle
import re
import sys
from collections.abc import Callable
from typing import Any, TypedDict

from strop.base import imports
from strop.base.imports import MAIN
from strop.base.types import InputError, first_line

_functions: dict[str, Callable[..., Any]] = {}


def remember(function: Callable[..., Any]) -> str:
    """The name under which `recall` finds the function; a second function of the same name gets a number."""
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
    """The qualified name of a function; for a callable object, of its class."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    if inspect.isroutine(function):
        return function.__qualname__
    return type(function).__qualname__


def bind(name: str, function: Callable[..., Any]) -> None:
    """Bind `name`, from an earlier session, to this function."""
    _functions[name] = function


def remembered() -> dict[str, Callable[..., Any]]:
    """The functions that are named only in this session, by name."""
    return dict(_functions)


def forget() -> None:
    """Forget every function, as a new session has none."""
    _functions.clear()


def recall(name: str) -> Callable[..., Any] | None:
    """The function of that name; None if neither this session nor an allowed module has it."""
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


class Code(TypedDict):
    """The user's own code that a configuration needs; plain values, so that JSON can carry it.

    Attributes:
        modules: those that it names, each with its file.
        defined: the pickled classes and functions of `__main__` by their names, in base64; empty where there is none.
    """

    modules: list[tuple[str, str]]
    defined: str


def carried(written: str) -> Code:
    """The code that another process needs to read a configuration, given as JSON text; perhaps more, never less.

    Raises:
        InputError: what it names of `__main__` cannot be pickled.
    """
    modules = [(name, file) for name, file in imports.modules_allowed() if name in written and name != MAIN]
    found = _defined(written) if MAIN in written else {}
    return {"modules": modules, "defined": _pickled(found) if found else ""}


def accept(code: Code) -> None:
    """Allow the modules in this process, and bind the names of `__main__` to the carried values.

    Raises:
        InputError: a module cannot be imported.
    """
    imports.allow_modules(code["modules"])
    if not code["defined"]:
        return
    imports.allow_module(MAIN)
    for name, value in pickle.loads(base64.b64decode(code["defined"])).items():
        vars(sys.modules[MAIN])[name.partition(":")[2]] = value
        bind(name, value)


def _defined(written: str) -> dict[str, Any]:
    """The classes and functions of this process's `__main__` that the text names, as a configuration names them."""
    main = vars(importlib.import_module(MAIN))
    own = {name: each for name, each in main.items() if isinstance(each, type) and each.__module__ == MAIN}
    classes = {name: each for name, each in own.items() if name in written}
    noted = {name: main[name] for each in classes.values() for name in _annotated(each) if name in main}
    found = {f"{MAIN}:{name}": value for name, value in {**noted, **classes}.items()}
    return found | {name: value for name, value in remembered().items() if name in written}


def _annotated(of: type) -> set[str]:
    """The names in those annotations of a class's methods that are text, and that its code need not use otherwise."""
    methods = [value for value in vars(of).values() if inspect.isfunction(value)]
    texts = [text for method in methods for text in method.__annotations__.values() if isinstance(text, str)]
    return {name for text in texts for name in re.findall(r"\w+", text)}


def _pickled(values: dict[str, Any]) -> str:
    import cloudpickle  # here: most runs need none of it

    try:
        return base64.b64encode(cloudpickle.dumps(values)).decode()
    except Exception as error:  # the user's objects may raise anything
        names = ", ".join(name.partition(":")[2] for name in values)
        raise InputError(
            f"{names} of the script or notebook cannot be carried to another process ({type(error).__name__}: "
            f"{first_line(error)}); define it in a module and import that"
        ) from error
