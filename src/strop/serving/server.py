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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from transformers import PreTrainedTokenizerBase

from strop.base.types import Completion, InputError, IntArray
from strop.engines.protocol import Scores
from strop.serving import ServeLimits
from strop.serving.driver import Driver, EngineFailure, ServedEngine, Ticket
from strop.serving.http import HttpServer, Refusal, asks_loopback, misrouted, read_body, refused
from strop.serving.requests import Body, ChatBody, CompletionBody, RequestReader, ServedRequest, parse
from strop.serving.responses import Answers, ServedAnswer, usage

T = TypeVar("T")
Log = Callable[[str], None]
HEALTH_SECONDS = 10.0
SCORED_AT_ONCE = 8192  # tokens; between two portions the others' sequences get a step
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
        self, engine: ServedEngine, tokenizer: PreTrainedTokenizerBase, served: Served, listening: socket.socket
    ) -> None:
        # The engine's thread decodes with the given tokenizer; encoding changes a tokenizer's state.
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.encode("a", add_special_tokens=False)
        self._served = served
        self._driver = Driver(engine, lambda failure: self.stop())
        self._answers = Answers(tokenizer, served.model)
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

    async def _version(self) -> int:
        return await self._driver.call(lambda engine: engine.weight_version)

    async def _answer(self, request: ServedRequest, name: str) -> Response:
        sampling = request.sampling
        cut = sampling is not None and sampling.temperature > 0 and sampling.truncates
        if request.top is not None and cut and not self._whole_logprobs:
            raise Refusal(400, "logprobs: this engine does not know them under top_p and top_k", "logprobs")
        if not request.body.stream:
            value = await self._whole(name, request)
            return JSONResponse(value, headers={VERSION_HEADER: str(value["weight_version"])})
        version = await self._version()
        events = self._events(name, request, version)
        await anext(events)  # raises a refusal while the status can still say so
        headers = {"Cache-Control": "no-cache", VERSION_HEADER: str(version)}
        return StreamingResponse(events, headers=headers, media_type="text/event-stream")

    async def _whole(self, name: str, request: ServedRequest) -> dict[str, Any]:
        """The answer to a request that is not streamed."""
        found: dict[tuple[int, int], Completion] = {}
        names = [self._driver.name() for _ in request.prompts]
        if request.sampling is not None:
            async with Ticket(self._driver, streamed=False) as ticket:
                await _submit(ticket, request, names)
                while ticket.unfinished:
                    completion = await ticket.next()
                    assert isinstance(completion, Completion)
                    _refuse_aborted(completion)
                    found[names.index(completion.request_id), completion.index] = completion
        answers = [
            ServedAnswer(prompt, index, found.get((prompt, index)))
            for prompt in range(len(request.prompts))
            for index in range(request.n)
        ]
        if request.top or (request.top is not None and request.echo):
            answers = await self._scored(request, answers)
        return self._answers.whole(name, request, answers, await self._version())

    async def _events(self, name: str, request: ServedRequest, version: int) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events. The first item is empty and comes once the engine accepted the request.

        After the engine's failure the last event is that error.
        """
        names = [self._driver.name() for _ in request.prompts]
        writers = {
            (request_id, index): self._answers.writer(request, prompt, index)
            for prompt, request_id in enumerate(names)
            for index in range(request.n)
        }
        done: list[Completion] = []
        async with Ticket(self._driver, streamed=True) as ticket:
            await _submit(ticket, request, names)
            yield b""
            try:
                while ticket.unfinished:
                    event = await ticket.next()
                    writer = writers[event.request_id, event.index]
                    if isinstance(event, Completion):
                        _refuse_aborted(event)
                        done.append(event)
                        version = max(version, *(span.version for span in event.versions), 0)
                        choices = writer.finish(event)
                    else:
                        choices = writer.take(event.token_ids, event.logprobs)
                    for choice in choices:
                        yield _event(self._answers.chunk(name, request, version, [choice]))
            except (Refusal, EngineFailure) as error:
                yield _event((error if isinstance(error, Refusal) else _failed(error)).body())
                return
        if request.include_usage:
            yield _event({**self._answers.chunk(name, request, version, []), "usage": usage(request, done)})
        yield b"data: [DONE]\n\n"

    async def _scored(self, request: ServedRequest, answers: Sequence[ServedAnswer]) -> list[ServedAnswer]:
        """The answers with log-probs of their prompts (`echo`), and the most probable tokens where `request.top`."""
        top = request.top or 0
        sequences = [
            np.concatenate((ids, answer.completion.token_ids)) if answer.completion is not None and top else ids
            for answer in answers
            for ids in (request.prompts[answer.prompt],)
        ]
        scores: list[Scores] = []
        while len(scores) < len(sequences):
            sizes = np.cumsum([len(ids) for ids in sequences[len(scores) :]])
            portion = sequences[len(scores) :][: max(1, int((sizes <= SCORED_AT_ONCE).sum()))]
            scores += await self._score(portion, request.temperature, top)
        return [replace(answer, scores=score) for answer, score in zip(answers, scores, strict=True)]

    async def _score(self, sequences: Sequence[IntArray], temperature: float, top: int) -> list[Scores]:
        try:
            return await self._driver.call(lambda engine: engine.score(sequences, temperature, top))
        except InputError as error:
            raise Refusal(400, str(error), "prompt") from None


async def _submit(ticket: Ticket, request: ServedRequest, names: Sequence[str]) -> None:
    try:
        await ticket.submit(request.requests(names))
    except InputError as error:
        raise Refusal(400, str(error)) from None


def _refuse_aborted(completion: Completion) -> None:
    if completion.finish_reason == "abort":
        raise Refusal(503, "the engine gave this request up; try again", code="aborted")


def _failed(error: Exception) -> Refusal:
    return Refusal(503, str(error), code="engine_failed")


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


class _Gate:
    """Checks who is asking, before any route; logs requests."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self._app, self._served = app, served
        self._key = None if served.key is None else f"Bearer {served.key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), "hung up"

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await (self._refusal(scope["path"], Headers(scope=scope)) or self._app)(scope, receive, noted)
        finally:
            if self._served.log is not None:
                seconds = time.perf_counter() - began
                self._served.log(f"{scope['method']} {scope['path'][:200]!r} {status} {seconds:.3f} s")

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
