"""torch, imported when something is first computed with it.

    from strop.base.lazy import torch

A configuration names algorithm pieces, which compute with torch. Code that only reads, checks or edits a configuration
does not wait the seconds that torch takes to load. Modules above the pieces import torch as usual.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _LazyModule(ModuleType):
        """Stands for a module until one of its attributes is read; keeps what was read, so it is looked up once."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module(self.__name__), name)
            setattr(self, name, value)
            return value

    torch = _LazyModule("torch")
