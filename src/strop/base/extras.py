"""Optional packages: imported where they are used, with the extra's name in the error when they are absent."""

from __future__ import annotations

import importlib
from typing import Any

from strop.base.types import InputError


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
            raise  # the package is there and one of its own imports is not: installing the extra would not mend that
        raise InputError(f'{purpose} need the package {module}: pip install "strop[{extra}]"') from error
