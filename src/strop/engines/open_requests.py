"""Which requests of an engine are unfinished, and how many of their samples."""

from __future__ import annotations

from collections.abc import Iterable

from strop.base.types import Completion
from strop.engines.protocol import Request


class OpenRequests(dict[str, int]):
    """Samples that were not yet reported, by the id of their request, which leaves with the last of them."""

    def begin(self, request: Request) -> None:
        """A request was accepted."""
        self[request.id] = request.n

    def reported(self, completions: Iterable[Completion]) -> None:
        """These were handed out."""
        for completion in completions:
            self[completion.request_id] -= 1
            if not self[completion.request_id]:
                del self[completion.request_id]
