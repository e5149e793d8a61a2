"""The embedded engine: continuous batching over the very module that is trained, on a CPU or one GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strop.engines.settings import EngineSettings

if TYPE_CHECKING:
    from strop.engines.torch.engine import TorchEngine

__all__ = ["EngineSettings", "TorchEngine"]


def __getattr__(name: str) -> Any:
    # The engine imports torch and transformers; its settings, which every configuration has, must not.
    if name == "TorchEngine":
        from strop.engines.torch.engine import TorchEngine

        return TorchEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
