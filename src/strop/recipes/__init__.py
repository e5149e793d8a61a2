"""Recipes: Python functions that return a `RunConfig`, one file a paper.

A recipe is named `file` (its function `recipe`) or `file.variant` (its function `variant`), or as `@named` says where
Python has no such name; every public function of a file that takes nothing and returns a `RunConfig` is one. The
first line of its docstring is what `strop recipes` lists. A recipe that only changes settings of another one is a row
of its file's table `VARIANTS`: name → (summary, the other recipe, "key=value", …).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from strop.base.near import near
from strop.base.types import InputError

if TYPE_CHECKING:
    from strop.config.schema import RunConfig


Function = TypeVar("Function", bound=Callable[..., object])
Variants = dict[str, tuple[str, ...]]
ATTRIBUTE = "recipe_name"


def named(name: str) -> Callable[[Function], Function]:
    """Give a recipe a name that Python cannot give to a function, such as `skywork_or1.7b`."""

    def mark(function: Function) -> Function:
        function.__dict__[ATTRIBUTE] = name
        return function

    return mark


@dataclass(frozen=True)
class RecipeInfo:
    """A recipe as it is listed."""

    name: str
    summary: str


def catalogue() -> list[RecipeInfo]:
    """All recipes by name."""
    return sorted((info for info, _ in _all().values()), key=lambda info: info.name)


def build(name: str) -> RunConfig:
    """The configuration a recipe returns.

    Raises:
        InputError: there is no such recipe (with the nearest name).
    """
    file = name.partition(".")[0]
    if file.isidentifier() and importlib.util.find_spec(f"{__name__}.{file}") is not None:  # the others take time
        known = _of_module(file)
        if name in known:
            return known[name][1]().model_copy(update={"recipe": name})
    known = _all()
    if name not in known:
        variants = sorted(other for other in known if other.startswith(f"{name}."))
        meant = near(name, known)
        papers = ", ".join(sorted({other.partition(".")[0] for other in known}))
        hint = f"did you mean {meant!r}?" if meant else f"known: {papers}; strop recipes lists their variants too"
        hint = f"choose one of its variants: {', '.join(variants)}" if variants else hint
        raise InputError(f"no recipe is called {name!r}; {hint}")
    return known[name][1]().model_copy(update={"recipe": name})


Known = dict[str, tuple[RecipeInfo, Callable[[], "RunConfig"]]]


def _all() -> Known:
    found: Known = {}
    for file in _files():
        found.update(_of_module(file))
    return found


def _files() -> list[str]:
    return [info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")]


def _of_module(file: str) -> Known:
    """The recipes in a file: its functions, and the rows of its `VARIANTS`."""
    module = importlib.import_module(f"{__name__}.{file}")
    found: Known = {}
    for plain, function in inspect.getmembers(module, inspect.isfunction):
        if (
            function.__module__ == module.__name__
            and (not plain.startswith("_") or ATTRIBUTE in function.__dict__)
            and function.__annotations__.get("return") == "RunConfig"
            and function.__code__.co_argcount == 0
        ):
            name = function.__dict__.get(ATTRIBUTE, file if plain == "recipe" else f"{file}.{plain}")
            found[name] = RecipeInfo(name, (inspect.getdoc(function) or "").split("\n")[0]), function
    variants: Variants = module.__dict__.get("VARIANTS", {})
    for name, (summary, other, *sets) in variants.items():
        found[name] = RecipeInfo(name, summary), partial(_varied, other, sets)
    return found


def settings_of(name: str) -> tuple[str, ...]:
    """The settings by which a recipe of a table `VARIANTS` differs from the one that it starts from.

    Raises:
        KeyError: it is in no table.
    """
    tables = (importlib.import_module(f"{__name__}.{file}").__dict__.get("VARIANTS", {}) for file in _files())
    rows: Variants = {key: row for table in tables for key, row in table.items()}
    return rows[name][2:]


def _varied(other: str, sets: list[str]) -> RunConfig:
    from strop.config.parse import edit

    return edit(build(other), sets)
