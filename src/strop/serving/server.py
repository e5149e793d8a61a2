"""Serves an engine over HTTP with OpenAI's routes.

    GET  /health               engine status; 503 once the engine broke
    GET  /v1/models            the one model; /v1/models/NAME too
    POST /v1/completions
    POST /v1/chat/completions
    GET  /tokenizer_info; POST /tokenize, /detokenize: see `ServedTokens`
"""

from __future__ import annotations

import asyncio
import copy
import hmac
import json
import socket
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from transformers import PreTrainedTokenizerBase

from strop.engines.protocol import Engine
from strop.serving import ServeLimits
from strop.serving.driver import Driver, Endpoint, EngineFailure
from strop.serving.http import CLOSE, HttpServer, Refusal, asks_loopback, misrouted, read_body, refused
from strop.serving.requests import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    RequestReader,
    ServedRequest,
    TokenizeBody,
    parse,
)
from strop.serving.responses import Answers, ServedTokens

T = TypeVar("T")
Log = Callable[[str], None]
HEAD_SECONDS = 30.0  # for the head of a request to arrive
HEALTH_SECONDS = 10.0
LAST_EVENT_SECONDS = 1.0  # for an error event to reach a client that may have stopped reading
VERSION_HEADER = "x-strop-weight-version"


@dataclass(frozen=True)
class Served:
    """How a model is served.

    Attributes:
        model: its name for clients.
        key: clients must send `Authorization: Bearer KEY`; None admits everyone. Never printed.
        local_only: answer only requests whose Host header names this machine, so that no web page can reach the
            endpoint through a host name that points here.
        log: receives one line for every answered request.
        template_arguments: of the tokenizer's chat template, unless a request overrides them.
    """

    model: str
    limits: ServeLimits = ServeLimits()
    key: str | None = field(default=None, repr=False)
    local_only: bool = True
    log: Log | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)


class ModelServer(HttpServer):
    """Serves `engine`, which is closed when `run` returns."""

    def __init__(
        self, engine: Engine, tokenizer: PreTrainedTokenizerBase, served: Served, listening: socket.socket
    ) -> None:
        # The engine's thread decodes with the given tokenizer; encoding changes a tokenizer's state.
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.encode("a", add_special_tokens=False)
        self._served = served
        self._driver = Driver(engine, lambda failure: self.stop())
        self._endpoint = Endpoint(self._driver, Answers(tokenizer, served.model), served.limits)
        self._context = engine.capabilities.max_tokens
        self._reader = RequestReader(tokenizer, self._context, served.limits, served.template_arguments)
        self._tokens = ServedTokens(tokenizer, self._context)
        self._since = int(time.time())
        # Prompts are encoded outside the event loop, one at a time: a long one must not hold up the streams.
        self._encoder = ThreadPoolExecutor(1, "strop-encode")
        app = Starlette(
            routes=self._routes(),
            lifespan=self._lifespan,
            exception_handlers={
                Refusal: refused,
                EngineFailure: lambda request, error: Refusal(503, str(error), code="engine_failed").response(),
                HTTPException: misrouted,
                Exception: lambda request, error: Refusal(500, "internal error; see the server's log").response(),
            },
        )
        limits = served.limits
        super().__init__(_Gate(app, served), listening, limits.grace, min(HEAD_SECONDS, limits.seconds), lifespan=True)

    @property
    def url(self) -> str:
        """The base URL for clients, which ends with `/v1`."""
        return f"{super().url}/v1"

    @property
    def answered(self) -> int:
        """Requests that were answered."""
        return self._endpoint.answered

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """See `HttpServer.run`.

        Raises:
            EngineFailure: the engine broke.
        """
        super().run(sockets)
        if self._driver.failure is not None:
            raise self._driver.failure

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._driver.start()
        try:
            yield
        finally:
            await self._driver.close()

    def _routes(self) -> list[Route]:
        posted = {
            "/v1/completions": self._complete,
            "/v1/chat/completions": self._chat,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }
        return [
            Route("/health", self._health),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/tokenizer_info", self._tokenizer_info),
            *(
                Route(path, _Post(answer, self._endpoint, self._served.limits), methods=["POST"])
                for path, answer in posted.items()
            ),
        ]

    async def _health(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                health, version = await self._endpoint.health(), await self._endpoint.version()
        except TimeoutError:
            raise Refusal(503, f"the engine did not answer within {HEALTH_SECONDS:g} s", code="no_answer") from None
        value = {
            "status": "ok" if health.ok else "failed",
            "detail": health.detail,
            "model": self._served.model,
            "weight_version": version,
            "running": health.running,
            "waiting": health.waiting,
            "requests": self._endpoint.open,
        }
        return JSONResponse(value, 200 if health.ok else 503)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._facts()]})

    async def _model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self._facts())

    def _facts(self) -> dict[str, Any]:
        return {
            "id": self._served.model,
            "object": "model",
            "created": self._since,
            "owned_by": "strop",
            "max_model_len": self._context,
        }

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._served.model:
            message = f"model: no model {name[:100]!r}; this endpoint serves {self._served.model!r}"
            raise Refusal(404, message, "model", "model_not_found")

    async def _tokenizer_info(self, request: Request) -> Response:
        return JSONResponse(self._tokens.info())

    async def _tokenize(self, data: bytes, name: str, end: float) -> Response:
        return JSONResponse(await self._encode(data, TokenizeBody, self._tokens.tokenize))

    async def _detokenize(self, data: bytes, name: str, end: float) -> Response:
        return JSONResponse(await self._encode(data, DetokenizeBody, self._tokens.detokenize))

    async def _complete(self, data: bytes, name: str, end: float) -> Response:
        request = await self._encode(data, CompletionBody, self._reader.completion)
        return await self._generate(request, f"cmpl-{name}", end)

    async def _chat(self, data: bytes, name: str, end: float) -> Response:
        return await self._generate(await self._encode(data, ChatBody, self._reader.chat), f"chatcmpl-{name}", end)

    async def _encode(self, data: bytes, kind: type[Any], work: Callable[[Any], T]) -> T:
        """Parse and check a body, and do `work` with it, on the encoder's thread."""

        def read() -> T:
            body = parse(data, kind)
            self._check_model(body.model)
            return work(body)

        return await asyncio.get_running_loop().run_in_executor(self._encoder, read)

    async def _generate(self, request: ServedRequest, name: str, end: float) -> Response:
        if not request.stream:
            value = await self._endpoint.whole(name, request)
            return JSONResponse(value, headers={VERSION_HEADER: str(value["weight_version"])})
        version = await self._endpoint.version()
        events = self._endpoint.stream(name, request)
        await anext(events)  # raises a refusal while the status can still say so
        return _EventStream(events, end, self._served.limits.seconds, {VERSION_HEADER: str(version)})


class _Gate:
    """Checks who is asking, before any route; numbers and logs requests."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self._app, self._served = app, served
        self._key = None if served.key is None else f"Bearer {served.key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), "hung up"
        scope["strop.id"] = name = uuid.uuid4().hex

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
                MutableHeaders(scope=message)["x-request-id"] = name
            await send(message)

        try:
            try:
                self._check(scope["path"], Headers(scope=scope))
            except Refusal as refusal:
                await refusal.response()(scope, receive, noted)
            else:
                await self._app(scope, receive, noted)
        finally:
            if self._served.log is not None:
                seconds = time.perf_counter() - began
                self._served.log(f"{scope['method']} {scope['path'][:200]!r} {status} {seconds:.3f} s")

    def _check(self, path: str, headers: Headers) -> None:
        if "transfer-encoding" in headers and "content-length" in headers:  # two lengths smuggle a second request
            raise Refusal(400, "Transfer-Encoding and Content-Length together; send one of them", headers=CLOSE)
        if self._served.local_only and not asks_loopback(headers.get("host")):
            raise Refusal(403, "this endpoint answers only this machine: address it as localhost or 127.0.0.1")
        given = headers.get("authorization", "").encode("latin-1")
        if self._key is not None and path != "/health" and not hmac.compare_digest(given, self._key):
            message = "this endpoint requires a key: Authorization: Bearer KEY"
            raise Refusal(401, message, None, "invalid_api_key", {"WWW-Authenticate": "Bearer"})


class _Post:
    """A POST route: admits the request, reads its body, and drops it when it takes too long or its client hangs up.

    `answer` gets the body, the request's id, and the time on the event loop's clock at which it must be done.
    """

    def __init__(
        self, answer: Callable[[bytes, str, float], Awaitable[Response]], endpoint: Endpoint, limits: ServeLimits
    ) -> None:
        self._answer, self._endpoint, self._limits = answer, endpoint, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, seconds = Request(scope, receive), self._limits.seconds
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "send JSON, with the header Content-Type: application/json")
        end = asyncio.get_running_loop().time() + seconds
        async with self._endpoint.admitted():
            with suppress(ClientDisconnect):
                try:
                    async with asyncio.timeout_at(end):
                        data = await read_body(request, self._limits.body_bytes)
                except TimeoutError:
                    raise Refusal(408, "the body did not arrive in time", code="timeout") from None
                try:
                    async with asyncio.timeout_at(end):
                        response = await _while_connected(receive, self._answer(data, scope["strop.id"], end))
                except TimeoutError:
                    raise _too_long(seconds) from None
                await response(scope, receive, send)


async def _while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled if the client hangs up first.

    Raises:
        ClientDisconnect: the client hung up.
    """

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class _EventStream(StreamingResponse):
    """Server-sent events; after an error or a timeout, the last event is that error."""

    def __init__(
        self, events: AsyncGenerator[bytes, None], end: float, seconds: float, headers: dict[str, str]
    ) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", **headers}, media_type="text/event-stream")
        self._events, self._end, self._seconds = events, end, seconds

    async def stream_response(self, send: Send) -> None:
        """Send headers and events."""
        last = b""
        try:
            async with asyncio.timeout_at(self._end), aclosing(self._events):  # a client that reads slowly counts too
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for event in self._events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        except TimeoutError:
            last = _error_event(_too_long(self._seconds))
        except Refusal as refusal:
            last = _error_event(refusal)
        except EngineFailure as failure:
            last = _error_event(Refusal(503, str(failure), code="engine_failed"))
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_EVENT_SECONDS):
                await send({"type": "http.response.body", "body": last, "more_body": False})


def _too_long(seconds: float) -> Refusal:
    return Refusal(504, f"the request took longer than this endpoint's {seconds:g} seconds", code="timeout")


def _error_event(refusal: Refusal) -> bytes:
    return b"data: " + json.dumps(refusal.body()).encode() + b"\n\n"
