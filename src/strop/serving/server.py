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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from transformers import PreTrainedTokenizerBase

from strop.base.types import Completion, FloatArray, InputError, IntArray
from strop.engines.protocol import Drawn
from strop.model.endings import REPLACEMENT, Decode, Detokenizer, text_of
from strop.serving import ServeLimits
from strop.serving.driver import Driver, EngineFailure, ServedEngine, Ticket
from strop.serving.http import HttpServer, Refusal, asks_loopback, misrouted, read_body, refused
from strop.serving.requests import Body, ChatBody, CompletionBody, RequestReader, ServedRequest, parse

LOWEST = -9999.0  # JSON has no infinity


class ServedAnswer:
    """The answer to one request, made from the events of the engine.

    Args:
        head: the fields `id` and `model`.
        names: the engine's request id of each prompt.
        version: the engine's weight version when the request came.
    """

    def __init__(
        self, decode: Decode, pieces: Pieces, request: ServedRequest, names: Sequence[str],
        head: dict[str, Any], version: int,
    ) -> None:  # fmt: skip
        self._request, self._head, self._version = request, head, version
        self._writers = {
            (name, index): ChoiceWriter(decode, pieces, request, prompt, index)
            for prompt, name in enumerate(names)
            for index in range(request.n)
        }
        self._sampled = 0  # tokens of finished completions

    def choice(self, event: Drawn | Completion) -> dict[str, Any] | None:
        """The choice that an event adds; None if it adds nothing yet."""
        writer = self._writers[event.request_id, event.index]
        if isinstance(event, Drawn):
            return writer.take(event.token_ids, event.logprobs)
        self._sampled += len(event.token_ids)
        self._version = max(self._version, *(span.version for span in event.versions), 0)
        return writer.finish(event)

    def whole(self, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The answer to a request that is not streamed."""
        ordered = sorted(choices, key=lambda choice: int(choice["index"]))
        return {**self._fields(""), "choices": ordered, "usage": self.usage}

    def chunk(self, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A chunk of a stream; the last one has no choice, but the usage."""
        value = {**self._fields(".chunk"), "choices": choices}
        if self._request.include_usage:
            value["usage"] = None if choices else self.usage
        return value

    @property
    def usage(self) -> dict[str, int]:
        """Tokens that were read and sampled; a prompt counts once, whatever n."""
        prompt = sum(len(ids) for ids in self._request.prompts)
        return {
            "prompt_tokens": prompt, "completion_tokens": self._sampled, "total_tokens": prompt + self._sampled,
        }  # fmt: skip

    def _fields(self, suffix: str) -> dict[str, Any]:
        return {
            **self._head,
            "object": f"chat.completion{suffix}" if self._request.chat else "text_completion",
            "created": int(time.time()),
            "system_fingerprint": f"strop-weights-{self._version}",
            "weight_version": self._version,
        }


class ChoiceWriter:
    """One choice: takes tokens as they come, and returns the parts of the choice that they make."""

    def __init__(self, decode: Decode, pieces: Pieces, request: ServedRequest, prompt: int, index: int) -> None:
        self._pieces, self._request, self._text = pieces, request, TextStream(decode, request.sampling.stop)
        self._prompt, self._index = prompt, prompt * request.n + index
        self._taken = 0
        self._begun = False

    def take(self, token_ids: IntArray, logprobs: FloatArray) -> dict[str, Any] | None:
        """New tokens of a running sample."""
        self._taken += len(token_ids)
        text, body = self._text.push(token_ids.tolist()), self._request.body
        if not text and not ((body.return_token_ids or self._request.logprobs) and len(token_ids)):
            return None
        return self._part(text, token_ids, logprobs, None)

    def finish(self, completion: Completion) -> dict[str, Any]:
        """The whole completion, which repeats what was taken before."""
        token_ids, logprobs = completion.token_ids[self._taken :], completion.logprobs[self._taken :]
        text = self._text.push(token_ids.tolist()) + self._text.finish()
        stopped = self._text.stopped
        reason = completion.finish_reason if stopped is None else "stop"
        return {**self._part(text, token_ids, logprobs, reason), "stop_reason": stopped}

    def _part(self, text: str, token_ids: IntArray, logprobs: FloatArray, reason: str | None) -> dict[str, Any]:
        request = self._request
        part: dict[str, Any] = {"index": self._index, "finish_reason": reason, "logprobs": None}
        if not request.chat:
            part["text"] = text
        elif request.body.stream:
            part["delta"] = {"content": text} if self._begun else {"role": "assistant", "content": text}
        else:
            part["message"] = {"role": "assistant", "content": text, "refusal": None}
        if request.logprobs:
            part["logprobs"] = self._logprobs(token_ids, logprobs)
        if request.body.return_token_ids:
            if not self._begun:
                part["prompt_token_ids"] = request.prompts[self._prompt].tolist()
            part["token_ids"] = token_ids.tolist()
        self._begun = True
        return part

    def _logprobs(self, token_ids: IntArray, logprobs: FloatArray) -> dict[str, Any]:
        texts = [self._pieces(token) for token in token_ids.tolist()]
        values = logprobs.clip(min=LOWEST).tolist()
        if not self._request.chat:
            return {"tokens": texts, "token_logprobs": values, "top_logprobs": None}
        entries = [
            {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
            for text, value in zip(texts, values, strict=True)
        ]
        return {"content": entries, "refusal": None}


class Pieces:
    """Single tokens as text, for lists of log-probs; a part of a character keeps the vocabulary's name for it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        # A decoder may drop a space in front of its first token; behind another token it does not.
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._skip = len(text_of(tokenizer, self._before))

    def __call__(self, token: int) -> str:
        if token not in self._known:
            text = text_of(self._tokenizer, [*self._before, token])[self._skip :]
            named = str(self._tokenizer.convert_ids_to_tokens(token)) if REPLACEMENT in text else text
            self._known[token] = named
        return self._known[token]


class TextStream:
    """The text of a completion while it is written: ends before the first stop string.

    Text that may be the beginning of a stop string is held back until it is not.
    """

    def __init__(self, decode: Decode, stops: tuple[str, ...]) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stops = stops
        self._held = ""
        self.stopped: str | None = None  # the stop string that ended it

    def push(self, ids: Iterable[int]) -> str:
        """The text that may go out after the new tokens."""
        return self._let_out(self._detokenizer.push(ids), last=False)

    def finish(self) -> str:
        """The rest, once there are no more tokens."""
        return self._let_out(self._detokenizer.finish(), last=True)

    def _let_out(self, new: str, last: bool) -> str:
        if self.stopped is not None:
            return ""
        text = self._held + new
        found = first_stop(text, self._stops)
        if found is not None:
            cut, self.stopped = found
            return text[:cut]
        begun = (size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        keep = len(text) - (0 if last else max(begun, default=0))
        self._held = text[keep:]
        return text[:keep]


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """The place of the first stop string, and the string."""
    places = [(place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    return min(places, default=None)


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
        self._pieces = Pieces(tokenizer)
        self._decode: Decode = partial(text_of, tokenizer, ends=engine.capabilities.end_ids)
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
        answer = ServedAnswer(self._decode, self._pieces, request, names, head, version)
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
