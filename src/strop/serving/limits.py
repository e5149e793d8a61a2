"""How much an endpoint takes on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from strop.base.pieces import Settings


class ServeLimits(Settings):
    """Bounds of an endpoint; what exceeds one is refused with an error that names it.

    Attributes:
        body_bytes: of a request.
        requests: open at once, running or waiting; further ones are told to come again (429).
        samples: completions of one request, its prompts times `n`.
        new_tokens: of a completion; None: as many as the model has room for.
        seconds: of a whole request, from its headers to the last byte of the answer.
        grace: seconds that open requests may still take once the endpoint is told to end.
    """

    body_bytes: Annotated[int, Field(ge=1024)] = 8 * 2**20
    requests: Annotated[int, Field(ge=1)] = 256
    samples: Annotated[int, Field(ge=1)] = 128
    new_tokens: Annotated[int, Field(ge=1)] | None = None
    seconds: Annotated[float, Field(gt=0)] = 600.0
    grace: Annotated[float, Field(ge=0)] = 30.0
