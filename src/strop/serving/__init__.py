"""An engine behind an OpenAI-compatible endpoint: `strop serve MODEL`."""

from strop.serving.settings import ServeLimits

__all__ = ["ServeLimits"]
