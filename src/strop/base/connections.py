"""HTTP connections for hundreds of requests at a time.

httpx's own pool looks at every connection for every request, and at every pair of idle ones: 256 requests cost it
more than a second. Here each connection is lent to one request, and the one that was given back last is lent next.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx


class Connections(httpx.AsyncBaseTransport):
    """Any number of connections to one server, over the socket file `socket` where one is named.

    A connection that has been at rest for `rest_seconds` is not used again.
    """

    def __init__(self, socket: Path | None, rest_seconds: float) -> None:
        self._socket, self._limits = socket, httpx.Limits(max_connections=1, keepalive_expiry=rest_seconds)
        self._context: ssl.SSLContext | bool = httpx.create_ssl_context() if socket is None else False
        self._idle: list[httpx.AsyncHTTPTransport] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer to a request; its connection is lent again once the answer is closed.

        A server may close a connection at rest just when it is lent again: then the request is made once more, over a
        new connection.
        """
        rested = bool(self._idle)
        one = self._idle.pop() if rested else self._new()
        while True:
            try:
                answer = await one.handle_async_request(request)
                break
            except BaseException as error:
                await one.aclose()
                if not rested or not isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
                    raise
            one, rested = self._new(), False
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        answer.stream = _Lent(answer.stream, one, self._idle)
        return answer

    async def aclose(self) -> None:
        """Close those that are at rest."""
        while self._idle:
            await self._idle.pop().aclose()

    def _new(self) -> httpx.AsyncHTTPTransport:
        uds = None if self._socket is None else str(self._socket)
        return httpx.AsyncHTTPTransport(verify=self._context, uds=uds, limits=self._limits)


class _Lent(httpx.AsyncByteStream):
    """The body of an answer, with the connection that it comes over and the list that gets it back."""

    def __init__(
        self, body: httpx.AsyncByteStream, one: httpx.AsyncHTTPTransport, idle: list[httpx.AsyncHTTPTransport]
    ) -> None:
        self._body, self._one, self._idle = body, one, idle

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._body:
            yield part

    async def aclose(self) -> None:
        """Give the connection back; what is left of the body is not read."""
        await self._body.aclose()
        self._idle.append(self._one)
