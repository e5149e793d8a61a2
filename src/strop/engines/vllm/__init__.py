"""The engine for production GPUs: vLLM, in a process and a virtual environment of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strop.engines.vllm.settings import Vllm

if TYPE_CHECKING:
    from strop.engines.vllm.engine import VllmEngine

__all__ = ["Vllm", "VllmEngine"]


def __getattr__(name: str) -> Any:
    # The engine imports torch and transformers; its settings, which every configuration may have, must not.
    if name == "VllmEngine":
        from strop.engines.vllm.engine import VllmEngine

        return VllmEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
