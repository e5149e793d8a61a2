"""An engine behind an OpenAI-compatible endpoint: `strop serve MODEL`."""

from strop.serving.limits import ServeLimits

__all__ = ["ServeLimits"]
