"""An engine behind an OpenAI-compatible endpoint: `strop serve MODEL`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from strop.base.pieces import Settings

__all__ = ["ServeLimits"]


class ServeLimits(Settings):
    """Limits of an endpoint; a request that exceeds one gets an error that names it.

    Attributes:
        requests: most open requests, running or waiting; further ones get 429.
        new_tokens: most tokens of a completion; None: as many as fit into the model's context.
        samples: most completions of one request, its prompts times `n`.
        body_bytes: most bytes of a request's body.
        grace: seconds that open requests may take once the server is stopping.
    """

    requests: Annotated[int, Field(ge=1)] = 256
    new_tokens: Annotated[int, Field(ge=1)] | None = None
    samples: Annotated[int, Field(ge=1)] = 128
    body_bytes: Annotated[int, Field(ge=1024)] = 8 * 2**20
    grace: Annotated[float, Field(ge=0)] = 30.0
