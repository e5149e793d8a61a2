"""An engine behind an OpenAI-compatible endpoint: `strop serve MODEL`."""

from strop.serving.refusal import ServeLimits

__all__ = ["ServeLimits"]
