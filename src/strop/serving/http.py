"""Shared by all HTTP servers: the socket, a server that can be stopped, request bodies, errors in OpenAI's form."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from strop.base.interrupt import on_interrupt
from strop.base.types import InputError

KEEP_ALIVE = 30  # seconds that an idle connection stays open
KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    429: "rate_limit_error",
}  # fmt: skip


class Refusal(Exception):
    """An HTTP error: status, message, the field of the body that caused it, OpenAI's error code, extra headers."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    def body(self) -> dict[str, Any]:
        """`{"error": {…}}`."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The whole answer."""
        return JSONResponse(self.body(), self.status, self.headers)


def refused(request: Request, error: Exception) -> Response:
    """Starlette's handler of a `Refusal`."""
    assert isinstance(error, Refusal)
    return error.response()


def misrouted(request: Request, error: Exception) -> Response:
    """Starlette's handler of HTTP errors: an unknown path, or a method that the path does not take."""
    assert isinstance(error, HTTPException)
    return Refusal(error.status_code, error.detail, headers=dict(error.headers or {})).response()


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request.

    Raises:
        Refusal: 413, it has more than `most` bytes.
    """
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > most:
            raise Refusal(
                413, f"the body exceeds this endpoint's limit of {most} bytes", headers={"Connection": "close"}
            )
    return bytes(data)


def listen(host: str, port: int, key: str | None, insecure: bool) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        InputError: other machines could reach it without a key, or the address is not available.
    """
    if key is None and not is_loopback(host) and not insecure:
        raise InputError(
            f"--host {host}: anyone who reaches this machine could use the model; name a key with --api-key-env, or "
            "pass --insecure"
        )
    # asyncio switches Nagle's algorithm off (40 ms an answer) where the protocol is named, as create_server does not.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
        return listening
    except (OSError, OverflowError) as error:
        listening.close()
        raise InputError(f"cannot listen on {host}, port {port}: {error}; choose another with --port") from error


def is_loopback(host: str) -> bool:
    """Whether a host name or address means only this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def asks_loopback(host: str | None) -> bool:
    """Whether a Host header, which may have a port, names only this machine."""
    host = host or ""
    has_port = host.rpartition(":")[2].isdigit() and (host.count(":") == 1 or "]:" in host)
    return is_loopback(host.rpartition(":")[0] if has_port else host)


class HttpServer(uvicorn.Server):
    """Serves an ASGI application on a listening socket; `stop` may be called from any thread or signal handler.

    Args:
        app: the application.
        listening: see `listen`.
        grace: seconds that open requests may take after `stop`.
        lifespan: whether the application has something to start and to end.
    """

    def __init__(self, app: ASGIApp, listening: socket.socket, grace: float = 1.0, lifespan: bool = False) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                lifespan="on" if lifespan else "off",
                ws="none",
                http="h11",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=max(1, round(grace)),
            )
        )
        self.listening = listening

    @property
    def url(self) -> str:
        """`http://HOST:PORT`."""
        host, port = self.listening.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: uvicorn's own end the process after the first signal."""
        yield

    def stop(self) -> None:
        """Take no further requests, let the open ones finish within the grace period, and return from `run`."""
        self.should_exit = True

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Block until `stop` or the first Ctrl-C; a second Ctrl-C raises `KeyboardInterrupt`."""
        with on_interrupt(self.stop):
            super().run(sockets or [self.listening])

    @contextmanager
    def in_thread(self) -> Iterator[str]:
        """Serve on a thread while the block runs; yields the URL, and raises at the end what `run` raised."""
        failures: list[BaseException] = []

        def work() -> None:
            try:
                self.run()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work, name="strop-http", daemon=True)
        thread.start()
        try:
            yield self.url
        finally:
            self.stop()
            thread.join()
        if failures:
            raise failures[0]
