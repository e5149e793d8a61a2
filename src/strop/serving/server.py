"""Serves an engine over HTTP with OpenAI's routes.

GET  /health               engine status; 503 once the engine broke
GET  /v1/models            the one model; /v1/models/NAME too
POST /v1/completions
POST /v1/chat/completions
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
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from transformers import PreTrainedTokenizerBase

from strop.base.types import Completion, InputError
from strop.serving import ServeLimits
from strop.serving.driver import Driver, EngineFailure, ServedEngine, Ticket
from strop.serving.http import HttpServer, Refusal, asks_loopback, misrouted, read_body, refused
from strop.serving.requests import Body, ChatBody, CompletionBody, RequestReader, ServedRequest, parse
from strop.serving.responses import Pieces, ServedAnswer

T = TypeVar("T")
HEALTH_SECONDS = 10.0


@dataclass(frozen=True)
class Served:
    """How a model is served.

    Attributes:
        model: its name for clients.
        key: clients must send `Authorization: Bearer KEY`; None admits everyone. Never printed.
        local_only: answer only requests whose Host header names this machine, so that no web page can reach the
            endpoint through a host name that points here.
        template_arguments: of the tokenizer's chat template, unless a request overrides them.
    """

    model: str
    limits: ServeLimits = ServeLimits()
    key: str | None = field(default=None, repr=False)
    local_only: bool = True
    template_arguments: Mapping[str, Any] = field(default_factory=dict)


class ModelServer(HttpServer):
    """Serves `engine`, which is closed when `run` returns."""

    def __init__(
        self, engine: ServedEngine, tokenizer: PreTrainedTokenizerBase, served: Served, listening: socket.socket
    ) -> None:
        # The engine's thread decodes with the given tokenizer; encoding changes a tokenizer's state.
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.encode("a", add_special_tokens=False)
        self._served = served
        self._driver = Driver(engine, lambda failure: self.stop())
        self._tokenizer, self._pieces = tokenizer, Pieces(tokenizer)
        self._context, self._whole_logprobs = engine.capabilities.max_tokens, engine.capabilities.whole_logprobs
        self._reader = RequestReader(tokenizer, self._context, served.limits, served.template_arguments)
        self._since = int(time.time())
        # Prompts are encoded outside the event loop, one at a time: a long one must not hold up the streams.
        self._encoder = ThreadPoolExecutor(1, "strop-encode")
        self._open = 0
        self.answered = 0
        app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                Route("/v1/completions", _Post(self._complete, self._admitted, served.limits), methods=["POST"]),
                Route("/v1/chat/completions", _Post(self._chat, self._admitted, served.limits), methods=["POST"]),
            ],
            lifespan=self._lifespan,
            exception_handlers={
                Refusal: refused,
                EngineFailure: lambda request, error: _failed(error).response(),
                HTTPException: misrouted,
                Exception: lambda request, error: Refusal(500, "internal error; see the server's log").response(),
            },
        )
        super().__init__(_Gate(app, served), listening, served.limits.grace, lifespan=True)

    @property
    def url(self) -> str:
        """The base URL for clients, which ends with `/v1`."""
        return f"{super().url}/v1"

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

    async def _health(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                health, version = await self._driver.call(lambda engine: (engine.health(), engine.weight_version))
        except TimeoutError:
            raise Refusal(503, f"the engine did not answer within {HEALTH_SECONDS:g} s", code="no_answer") from None
        value = {
            "status": "ok" if health.ok else "failed",
            "detail": health.detail,
            "model": self._served.model,
            "weight_version": version,
            "running": health.running,
            "waiting": health.waiting,
            "requests": self._open,
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

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """A place among the open requests.

        Raises:
            Refusal: 429 where all are taken.
        """
        most = self._served.limits.requests
        if self._open >= most:
            message = f"all {most} places of this endpoint are taken; try again"
            raise Refusal(429, message, code="rate_limit_exceeded", headers={"Retry-After": "1"})
        self._open += 1
        try:
            yield
            self.answered += 1
        finally:
            self._open -= 1

    async def _complete(self, data: bytes) -> Response:
        request = await self._read(data, CompletionBody, self._reader.completion)
        return await self._answer(request, f"cmpl-{uuid.uuid4().hex}")

    async def _chat(self, data: bytes) -> Response:
        return await self._answer(await self._read(data, ChatBody, self._reader.chat), f"chatcmpl-{uuid.uuid4().hex}")

    async def _read(self, data: bytes, kind: type[Body], read: Callable[[Body], ServedRequest]) -> ServedRequest:
        """Parse, check and encode a body, on the encoder's thread."""

        def work() -> ServedRequest:
            body = parse(data, kind)
            self._check_model(body.model)
            return read(body)

        return await asyncio.get_running_loop().run_in_executor(self._encoder, work)

    async def _answer(self, request: ServedRequest, name: str) -> Response:
        cut = request.sampling.temperature > 0 and request.sampling.truncates
        if request.logprobs and cut and not self._whole_logprobs:
            raise Refusal(400, "logprobs: this engine does not know them under top_p and top_k", "logprobs")
        version = await self._driver.call(lambda engine: engine.weight_version)
        names = [self._driver.name() for _ in request.prompts]
        head = {"id": name, "model": self._served.model}
        answer = ServedAnswer(self._tokenizer, self._pieces, request, names, head, version)
        choices = self._choices(request, names, answer)
        await anext(choices)  # raises a refusal while the status can still say so
        if request.body.stream:
            events = _events(request, answer, choices)
            return StreamingResponse(events, headers={"Cache-Control": "no-cache"}, media_type="text/event-stream")
        return JSONResponse(answer.whole([choice async for choice in choices]))

    async def _choices(
        self, request: ServedRequest, names: list[str], answer: ServedAnswer
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The choices of an answer, or their parts as they come in a stream.

        The first item is empty and comes once the engine accepted the request.

        Raises:
            Refusal: the engine cannot honour the request, or gave it up.
            EngineFailure: the engine broke.
        """
        async with Ticket(self._driver, streamed=bool(request.body.stream)) as ticket:
            try:
                await ticket.submit(request.requests(names))
            except InputError as error:
                raise Refusal(400, str(error)) from None
            yield {}
            while ticket.unfinished:
                event = await ticket.next()
                if isinstance(event, Completion) and event.finish_reason == "abort":
                    raise Refusal(503, "the engine gave this request up; try again", code="aborted")
                choice = answer.choice(event)
                if choice is not None:
                    yield choice


async def _events(
    request: ServedRequest, answer: ServedAnswer, choices: AsyncIterator[dict[str, Any]]
) -> AsyncGenerator[bytes, None]:
    """The answer as server-sent events; after the engine's failure the last event is that error."""
    try:
        async for choice in choices:
            yield _event(answer.chunk([choice]))
    except (Refusal, EngineFailure) as error:
        yield _event((error if isinstance(error, Refusal) else _failed(error)).body())
        return
    if request.include_usage:
        yield _event(answer.chunk([]))
    yield b"data: [DONE]\n\n"


def _failed(error: Exception) -> Refusal:
    return Refusal(503, str(error), code="engine_failed")


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


class _Gate:
    """Checks who is asking, before any route."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self._app, self._served = app, served
        self._key = None if served.key is None else f"Bearer {served.key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await (self._refusal(scope["path"], Headers(scope=scope)) or self._app)(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> Response | None:
        if self._served.local_only and not asks_loopback(headers.get("host")):
            message = "this endpoint answers only this machine: address it as localhost or 127.0.0.1"
            return Refusal(403, message).response()
        given = headers.get("authorization", "").encode("latin-1")
        if self._key is not None and path != "/health" and not hmac.compare_digest(given, self._key):
            message = "this endpoint requires a key: Authorization: Bearer KEY"
            return Refusal(401, message, None, "invalid_api_key", {"WWW-Authenticate": "Bearer"}).response()
        return None


class _Post:
    """A POST route: admits the request, reads its body, and drops it when its client hangs up."""

    def __init__(
        self,
        answer: Callable[[bytes], Awaitable[Response]],
        admitted: Callable[[], AbstractAsyncContextManager[None]],
        limits: ServeLimits,
    ) -> None:
        self._answer, self._admitted, self._limits = answer, admitted, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "send JSON, with the header Content-Type: application/json")
        async with self._admitted():
            with suppress(ClientDisconnect):
                data = await read_body(request, self._limits.body_bytes)
                response = await _while_connected(receive, self._answer(data))
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
