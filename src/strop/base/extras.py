"""Optional packages: imported where they are used, with the extra's name in the error when they are absent."""

from __future__ import annotations

import importlib
import importlib.util
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
