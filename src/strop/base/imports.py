"""Code runs only if the user allows it: modules by `--import`, settings by `--set` or `--allow`.

A configuration may name a piece `module:Class` only where the user of this very command has allowed the module: the
folder of a stranger's run executes nothing by itself. What a run was made with stands in its run.json, so that printed
commands and refusals say which `--import` is needed. A setting that runs code (`CODE`) counts in a file or folder only
where the command at hand names it too.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import shlex
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from strop.base.types import InputError, first_line

MARKER = "run.json"
MAIN = "__main__"  # the module of a script or notebook: what it defines, no other process can import

_allowed: dict[str, str] = {}  # what `--import` calls it, by the module's name
_recorded: dict[str, str] = {}  # the same of runs that were opened, which are not allowed by that


def allow_module(named: str) -> None:
    """Import a user's module or Python file, so that its pieces may be named `module:Class`.

    Raises:
        InputError: it cannot be imported.
    """
    try:
        if named.endswith(".py"):
            if not Path(named).is_file():
                raise InputError("no such file")
            load_module(Path(named))
            return
        importlib.import_module(named)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{named}.".startswith(f"{error.name}."):
            raise InputError(f"--import {named}: {blamed(error, None)}") from error
        raise InputError(f"--import {named}: {error}; name a module that Python can import from here") from error
    except InputError as error:
        raise InputError(f"--import {named}: {error}") from error
    except Exception as error:  # the user's own code, which may raise anything
        raise InputError(f"--import {named}: {blamed(error, None)}") from error
    _allowed[named] = named


def load_module(path: Path) -> ModuleType:
    """Run a Python file as the module of its name, whose pieces may then be named.

    Raises:
        InputError: a module of that name is loaded already, so that pieces could be taken for one another's.
    """
    name = path.stem
    known = sys.modules.get(name)
    if known is not None and Path(known.__file__ or "").resolve() != path.resolve():
        raise InputError(f"{path}: a module called {name!r} is loaded already; rename the file")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    _allowed[name] = str(path)
    return module


def allow_modules(modules: Iterable[tuple[str, str]]) -> None:
    """Allow, in another process, the modules of `modules_allowed`: by name, or from its file.

    Raises:
        InputError: a module cannot be imported.
    """
    for name, file in modules:
        if importlib.util.find_spec(name) is not None or not file:
            allow_module(name)
        else:
            load_module(Path(file))


def is_allowed(module: str) -> bool:
    """Whether a module was named with `--import`."""
    return module in _allowed


def not_allowed(named: str, module: str) -> str:
    """Why `named`, of a module that is not allowed, is refused, and what allows it."""
    if module == MAIN:
        return f"{named!r} is of the script that began it: strop.train(…, resume=True) there, or only strop export RUN"
    if module.endswith(".py"):
        rest = named.removeprefix(f"{module}:")
        return f"{named!r} names a file; say {Path(module).stem}:{rest}, and allow it with --import {module}"
    return f"{named!r} lives in module {module!r}; allow it with --import {_recorded.get(module, module)}"


def modules_allowed() -> list[tuple[str, str]]:
    """The allowed modules, each with its file: what another process must allow to read a configuration."""
    loaded = sorted(_allowed.keys() & sys.modules.keys())
    return [(name, vars(sys.modules[name]).get("__file__") or "") for name in loaded]


# ---------------------------------------------------------------------- what a run was made with


def to_record(written: str) -> list[dict[str, str]]:
    """The entry of run.json for the modules that a configuration, given as JSON, names."""
    named = [(name, file) for name, file in modules_allowed() if f'"{name}:' in written and name != MAIN]
    found = [{"module": name, "file": file, "import": _allowed[name]} for name, file in named]
    if f'"{MAIN}:' in written:
        found.append({"module": MAIN, "file": "", "import": MAIN})
    return found


def recorded(run: Path) -> list[str]:
    """The modules that `--import` must name to read the run's configuration; none where run.json cannot be read."""
    try:
        marker = json.loads((run / MARKER).read_text(encoding="utf-8"))
        found = {str(row["module"]): str(row["import"]) for row in marker.get("imports", ())}
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return []  # opening the run says what is wrong with it
    _recorded.update(found)
    return list(found.values())


def command(words: str, run: Path, more: str = "") -> str:
    """A command on a run as a shell takes it: `strop train --resume runs/mine --import my_losses`."""
    modules = recorded(run)
    if MAIN in modules and "--resume" in words:
        return f"strop.train(…, out={str(run)!r}, resume=True), in the script or notebook that began it"
    flags = "".join(f" --import {shlex.quote(module)}" for module in modules if module != MAIN)
    try:
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
        allowed = "".join(f"--allow {shlex.quote(key)} " for key, _, _ in code_settings(config))
    except (OSError, ValueError, RecursionError):
        allowed = ""  # as above
    return f"strop {allowed}{words} {shlex.quote(str(run))}{flags}{more}"


# ---------------------------------------------------------------------- settings that run code

CODE = {
    "trust_remote_code": "runs Python code from the model's folder",
    "engine.python": "names a program to start",
    "engine.arguments": "can name modules and files that vLLM imports",
    "allow_unsafe_sandbox": "runs the programs of a model without isolation",
}
_settings: dict[str, str | None] = {}  # that the user of this command has named, with this value or (None) with any


def allow_settings(keys: Iterable[str]) -> None:
    """Allow these settings, named by their dotted keys, in files and run folders, with any value."""
    _settings.update(dict.fromkeys(keys))


def allow_edits(sets: Iterable[str]) -> None:
    """Allow the settings of `--set KEY=VALUE` in files and run folders, with that value only."""
    for text in sets:
        key, _, value = text.partition("=")
        _settings.setdefault(key.strip(), value.strip().strip("'\""))


def code_settings(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """The settings of a configuration of plain values that run code: key, value, and the reason."""
    parts = config.items() if isinstance(config, Mapping) else enumerate(config) if isinstance(config, list) else ()
    for name, value in parts:
        key = f"{prefix}{name}"
        reason = next((CODE[end] for end in CODE if f".{key}".endswith(f".{end}")), None)
        if reason is not None and value:
            yield key, value, reason
        else:
            yield from code_settings(value, f"{key}.")


def refuse_code(config: Mapping[str, Any], origin: str) -> None:
    """Refuse a configuration, read from `origin`, that would run code which the user has not allowed.

    Raises:
        InputError: naming the setting and the flag that allows it.
    """
    for key, value, reason in code_settings(config):
        named = _settings.get(key, "")
        if named is not None and named.lower() != str(value).lower():
            raise InputError(f"{origin}: {key} {reason}; if that is what you want: strop --allow {key} …")


# ---------------------------------------------------------------------- what the user's code raises


def blamed(error: Exception, files: Collection[str] | None = ()) -> str | None:
    """`my_losses.py, line 12: ValueError: …` if the user's code raised, or called what did; else None.

    Args:
        error: as it was caught.
        files: that count as the user's besides those of allowed modules; None: every file but strop's and Python's.
    """
    reason = f"{type(error).__name__}: {first_line(error)}"
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_shown(error.filename)}, line {error.lineno}: {reason}"
    own = {os.path.abspath(file) for file in (*(file for _, file in modules_allowed()), *(files or ()))}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        foreign = "<" in frame.filename or frame.filename.startswith((_STROP, _PYTHON))
        if frame.filename in own or (files is None and not foreign):
            return f"{_shown(frame.filename)}, line {frame.lineno}: {reason}"
    return reason if files is None else None


_STROP, _PYTHON = str(Path(__file__).parents[1]), str(Path(inspect.__file__).parent)


def _shown(file: str) -> str:
    """A path relative to the current folder, if it is below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def require(module: str, extra: str, purpose: str) -> Any:
    """Import an optional package.

    Example: `datasets = require("datasets", extra="hub", purpose="data sets of the Hugging Face hub")`.

    Raises:
        InputError: the package is not installed; the line says which extra brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # the package is installed and one of its imports is not: installing the extra would not help
        raise _absent(module, extra, purpose) from error


def refuse_absent(module: str, extra: str, purpose: str) -> None:
    """Refuse where an optional package is not installed, without importing it.

    Raises:
        InputError: as `require`.
    """
    if importlib.util.find_spec(module) is None:
        raise _absent(module, extra, purpose)


def _absent(module: str, extra: str, purpose: str) -> InputError:
    return InputError(f'{purpose} need the package {module}: pip install "strop[{extra}]"')


def found_by_name(text: str, kind: str = "function") -> Any:
    """The object `module:name`; None if the module has no such name.

    Args:
        kind: what is named, for the error.

    Raises:
        ValueError: it is not written so, or its module was not allowed.
    """
    module, _, name = text.partition(":")
    if not module or not name:
        raise ValueError(f"{text!r} is not written module:{kind}")
    if not is_allowed(module):
        raise ValueError(not_allowed(text, module))
    return vars(importlib.import_module(module)).get(name)


def function_named(text: str) -> Any:
    """The function `module:name`.

    Raises:
        ValueError: see `found_by_name`, or the module has no such function.
    """
    found = found_by_name(text)
    if not callable(found):
        module, _, name = text.partition(":")
        raise ValueError(f"module {module!r} has no function {name!r}")
    return found
