"""strop: reinforcement learning from verifiable rewards, one straight loop and five papers as recipes.

    import strop

    run = strop.train("Qwen/Qwen3-0.6B", problems, reward=lambda problem, text: float("42" in text), steps=100)
    run = strop.load("runs/grpo")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strop.base.types import Problem as Problem
    from strop.base.types import Verdict as Verdict
    from strop.python.result import Run as Run
    from strop.python.result import load as load
    from strop.python.train import train as train

__version__ = "0.1.0"

# Imported when they are first asked for, so that `import strop` takes no time.
_HOMES = {
    "Problem": "strop.base.types",
    "Run": "strop.python.result",
    "Verdict": "strop.base.types",
    "load": "strop.python.result",
    "train": "strop.python.train",
}
__all__ = ["Problem", "Run", "Verdict", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'strop' has no attribute {name!r}")
    return vars(importlib.import_module(_HOMES[name]))[name]
