"""An engine behind an OpenAI-compatible endpoint: `strop serve MODEL`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from strop.base.pieces import Settings

__all__ = ["ServeLimits"]


class ServeLimits(Settings):
    """Bounds of an endpoint; a request that exceeds one gets an error that names it.

    Attributes:
        body_bytes: of a request.
        requests: open at once, running or waiting; further ones get 429.
        samples: completions of one request, its prompts times `n`.
        new_tokens: of a completion; None: as many as fit into the model's context.
        seconds: of a whole request, from its headers to the last byte of the answer.
        grace: seconds that open requests may take once the server is stopping.
    """

    body_bytes: Annotated[int, Field(ge=1024)] = 8 * 2**20
    requests: Annotated[int, Field(ge=1)] = 256
    samples: Annotated[int, Field(ge=1)] = 128
    new_tokens: Annotated[int, Field(ge=1)] | None = None
    seconds: Annotated[float, Field(gt=0)] = 600.0
    grace: Annotated[float, Field(ge=0)] = 30.0
