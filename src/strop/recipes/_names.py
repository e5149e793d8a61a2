"""Public names that Python cannot give to a function: `skywork_or1.7b`, or a baseline without a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])
ATTRIBUTE = "recipe_name"


def named(name: str) -> Callable[[Function], Function]:
    """Calls the recipe below it `name` instead of `file.function`."""

    def mark(function: Function) -> Function:
        function.__dict__[ATTRIBUTE] = name
        return function

    return mark
