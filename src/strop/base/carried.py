"""What a script or notebook defines, carried to the other processes of its own run.

    setup = {"environment": written, "code": carried(written)}   # here: sent over the pipe to a process of this run
    accept(setup["code"])                                        # there, before what was written is read

No process can import the `__main__` of another one. So the classes and functions of it that a configuration names go
along by value (cloudpickle), from a process to those that it has started itself. No file holds them: a run folder has
their names alone, and whoever goes on with the run must define them again.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import pickle
import re
import sys
from typing import Any, TypedDict

from strop.base import imports, session
from strop.base.imports import MAIN
from strop.base.types import InputError, first_line


class Code(TypedDict):
    """The user's own code that a configuration needs; plain values, so that JSON can carry it.

    Attributes:
        modules: those that it names, each with its file.
        defined: the pickled classes and functions of `__main__` by their names, in base64; empty where there is none.
    """

    modules: list[tuple[str, str]]
    defined: str


def carried(written: str) -> Code:
    """What another process needs to read a configuration, written as JSON or pickled: perhaps more, never less.

    Raises:
        InputError: what it names of `__main__` cannot be pickled.
    """
    modules = [(name, file) for name, file in imports.modules_allowed() if name in written and name != MAIN]
    found = _defined(written) if MAIN in written else {}
    return {"modules": modules, "defined": _pickled(found) if found else ""}


def accept(code: Code) -> None:
    """Allow the modules in this process, and let the names of `__main__` stand for what was carried.

    Raises:
        InputError: a module cannot be imported.
    """
    imports.allow_modules(code["modules"])
    if not code["defined"]:
        return
    imports.allow_module(MAIN)
    for name, value in pickle.loads(base64.b64decode(code["defined"])).items():
        vars(sys.modules[MAIN])[name.partition(":")[2]] = value
        session.bind(name, value)


def _defined(written: str) -> dict[str, Any]:
    """The classes and functions of this process's `__main__` that the text names, as a configuration names them."""
    main = vars(importlib.import_module(MAIN))
    own = {name: each for name, each in main.items() if isinstance(each, type) and each.__module__ == MAIN}
    classes = {name: each for name, each in own.items() if name in written}
    noted = {name: main[name] for each in classes.values() for name in _annotated(each) if name in main}
    found = {f"{MAIN}:{name}": value for name, value in {**noted, **classes}.items()}
    return found | {name: value for name, value in session.remembered().items() if name in written}


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
            f"{first_line(error)}); define it in a module of its own and import it"
        ) from error
