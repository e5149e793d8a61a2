"""Recipes: Python functions that return a `RunConfig`, one file a paper.

A recipe is named `file` (its function `recipe`) or `file.variant` (its function `variant`), or as `@named` says where
Python has no such name; every public function of a file that takes nothing and returns a `RunConfig` is one. The
first line of its docstring is what `strop recipes` lists.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from strop.base.near import near
from strop.base.types import InputError

if TYPE_CHECKING:
    from types import ModuleType

    from strop.config.schema import RunConfig


Function = TypeVar("Function", bound=Callable[..., object])
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
    return [RecipeInfo(name, _summary(function)) for name, function in sorted(_all().items())]


def build(name: str) -> RunConfig:
    """The configuration a recipe returns.

    Raises:
        InputError: there is no such recipe (with the nearest name).
    """
    file = name.partition(".")[0]
    if file.isidentifier() and importlib.util.find_spec(f"{__name__}.{file}") is not None:  # the others take time
        known = _of_module(file, importlib.import_module(f"{__name__}.{file}"))
        if name in known:
            return known[name]().model_copy(update={"recipe": name})
    known = _all()
    if name not in known:
        variants = sorted(other for other in known if other.startswith(f"{name}."))
        meant = near(name, known)
        papers = ", ".join(sorted({other.partition(".")[0] for other in known}))
        hint = f"did you mean {meant!r}?" if meant else f"known: {papers}; strop recipes lists their variants too"
        hint = f"choose one of its variants: {', '.join(variants)}" if variants else hint
        raise InputError(f"no recipe is called {name!r}; {hint}")
    return known[name]().model_copy(update={"recipe": name})


def _all() -> dict[str, Callable[[], RunConfig]]:
    found: dict[str, Callable[[], RunConfig]] = {}
    for info in pkgutil.iter_modules(__path__):
        if not info.name.startswith("_"):
            found.update(_of_module(info.name, importlib.import_module(f"{__name__}.{info.name}")))
    return found


def _of_module(file: str, module: ModuleType) -> dict[str, Callable[[], RunConfig]]:
    functions = inspect.getmembers(module, inspect.isfunction)
    recipes = {
        name: function
        for name, function in functions
        if function.__module__ == module.__name__
        and (not name.startswith("_") or ATTRIBUTE in function.__dict__)
        and function.__annotations__.get("return") == "RunConfig"
        and function.__code__.co_argcount == 0
    }
    return {_public_name(file, name, function): function for name, function in recipes.items()}


def _public_name(file: str, name: str, function: Callable[[], RunConfig]) -> str:
    if ATTRIBUTE in function.__dict__:
        return str(function.__dict__[ATTRIBUTE])
    return file if name == "recipe" else f"{file}.{name}"


def _summary(function: Callable[[], RunConfig]) -> str:
    return (inspect.getdoc(function) or "").split("\n")[0]
