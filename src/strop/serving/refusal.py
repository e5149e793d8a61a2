"""Errors in the shape that OpenAI's clients know."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from strop.base.pieces import Settings


class ServeLimits(Settings):
    """Bounds of an endpoint; what exceeds one is refused with an error that names it.

    Attributes:
        body_bytes: of a request.
        requests: open at once, running or waiting; further ones get 429, try again.
        samples: completions of one request, its prompts times `n`.
        new_tokens: of a completion; None: as many as the model has room for.
        seconds: of a whole request, from its headers to the last byte of the answer.
        grace: seconds that open requests may still take once the endpoint is asked to end.
    """

    body_bytes: Annotated[int, Field(ge=1024)] = 8 * 2**20
    requests: Annotated[int, Field(ge=1)] = 256
    samples: Annotated[int, Field(ge=1)] = 128
    new_tokens: Annotated[int, Field(ge=1)] | None = None
    seconds: Annotated[float, Field(gt=0)] = 600.0
    grace: Annotated[float, Field(ge=0)] = 30.0


KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    429: "rate_limit_error",
}  # fmt: skip


class Refusal(Exception):
    """A request that is not answered: HTTP status, what is wrong and the way out, the field that is meant."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    def body(self) -> dict[str, Any]:
        """`{"error": {…}}`."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
