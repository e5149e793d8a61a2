"""What a user names as `module:name`: a reward, an agent, a class."""

from __future__ import annotations

import importlib
from typing import Any

from strop.base import imports


def found_by_name(text: str, kind: str = "function") -> Any:
    """The object called `module:name`; None where its module has none of this name.

    Args:
        kind: what is named, for the error.

    Raises:
        ValueError: it is not written so, or its module was not allowed.
    """
    module, _, name = text.partition(":")
    if not module or not name:
        raise ValueError(f"{text!r} is not written module:{kind}")
    if not imports.is_allowed(module):
        raise ValueError(imports.not_allowed(text, module))
    return vars(importlib.import_module(module)).get(name)


def function_named(text: str) -> Any:
    """The function called `module:name`.

    Raises:
        ValueError: see `found_by_name`, or the module has no such function.
    """
    found = found_by_name(text)
    if not callable(found):
        module, _, name = text.partition(":")
        raise ValueError(f"module {module!r} has no function {name!r}")
    return found
