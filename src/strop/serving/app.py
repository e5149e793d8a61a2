"""The HTTP side: a plain ASGI application. Who may ask, how much, what for, and how a client that hangs up is handled.

    GET  /health               the engine answers between two steps; 503 once it broke
    GET  /v1/models            the one model; /v1/models/NAME too
    POST /v1/completions
    POST /v1/chat/completions
    GET  /tokenizer_info; POST /tokenize, /detokenize: see `tokens`
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

from strop.serving.driver import Endpoint, EngineFailure
from strop.serving.listening import host_of, is_loopback
from strop.serving.parsing import Ask, Asking, ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, read
from strop.serving.refusal import Refusal, ServeLimits
from strop.serving.responses import ServedTokens

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Log = Callable[[str], None]

HEALTH_SECONDS = 10.0
TELLING_SECONDS = 1.0  # for an error to reach a client that may have stopped reading
VERSION_HEADER = b"x-strop-weight-version"
_COMPLETIONS, _CHAT, _MODELS = "/v1/completions", "/v1/chat/completions", "/v1/models"
_INFO, _TOKENIZE, _DETOKENIZE = "/tokenizer_info", "/tokenize", "/detokenize"
_logger = logging.getLogger(__name__)


class _Gone(Exception):
    """The client hung up."""


class HttpReply:
    """The answer to one request, and whether it has begun."""

    def __init__(self, send: Send, name: str) -> None:
        self._send = send
        self._name = name
        self.status: int | None = None
        self.streamed = False

    async def json(self, status: int, value: Any, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """A whole answer."""
        data = json.dumps(value).encode()
        length = (b"content-length", str(len(data)).encode())
        await self._begin(status, b"application/json", (length, *headers))
        await self._send({"type": "http.response.body", "body": data})

    async def begin_stream(self, version: int) -> None:
        """Server-sent events follow."""
        self.streamed = True
        headers = ((b"cache-control", b"no-cache"), (VERSION_HEADER, str(version).encode()))
        await self._begin(200, b"text/event-stream; charset=utf-8", headers)

    async def part(self, data: bytes, last: bool = False) -> None:
        """Some of the events."""
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def refuse(self, refusal: Refusal) -> None:
        """An error: as an answer, or as the last event of a stream that has begun."""
        if self.status is None:
            await self.json(refusal.status, refusal.body(), refusal.headers)
        elif self.streamed:
            await self.part(b"data: " + json.dumps(refusal.body()).encode() + b"\n\n", last=True)

    async def _begin(self, status: int, kind: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self.status = status
        named = ((b"content-type", kind), (b"x-request-id", self._name.encode()), *headers)
        await self._send({"type": "http.response.start", "status": status, "headers": list(named)})


class App:
    """The application.

    Args:
        endpoint, asking, tokens: what is done, and how requests become it.
        model: the name under which it is served.
        context: the longest prompt + completion, told to clients.
        limits: of bodies and time.
        key: what a client must send as `Authorization: Bearer KEY`; None lets everybody in.
        local_only: answer only requests that name a loopback host, so that no web page can reach it by another name.
        log: takes one line for every answered request; None: no log.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        asking: Asking,
        tokens: ServedTokens,
        model: str,
        context: int,
        limits: ServeLimits,
        key: str | None,
        local_only: bool,
        log: Log | None,
    ) -> None:
        self._endpoint, self._asking, self._tokens = endpoint, asking, tokens
        self._model, self._context = model, context
        self._limits, self._local_only, self._log = limits, local_only, log
        self._key = None if key is None else f"Bearer {key}".encode()
        self._since = int(time.time())
        # Prompts are encoded outside the event loop, one after another: a long one must not hold up the streams.
        self._encoder = ThreadPoolExecutor(1, "strop-encode")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        reply = HttpReply(send, f"{'chatcmpl' if scope['path'] == _CHAT else 'cmpl'}-{uuid.uuid4().hex}")
        try:
            await self._answer(scope, receive, reply)
        except Refusal as refusal:
            await _told(reply, refusal)
        except EngineFailure as failure:
            await _told(reply, Refusal(503, str(failure), code="engine_failed"))
        except _Gone:
            pass
        except Exception:  # a defect of ours: told without its details, which belong into the log
            _logger.exception("%s %s failed", scope["method"], scope["path"])
            await _told(reply, Refusal(500, "internal error; the server's log says more"))
        if self._log is not None:
            seconds = time.perf_counter() - began
            self._log(f"{scope['method']} {scope['path'][:200]!r} {reply.status or 'hung up'} {seconds:.3f} s")

    async def _answer(self, scope: Scope, receive: Receive, reply: HttpReply) -> None:
        method, path = scope["method"], scope["path"]
        headers = {name.lower(): value for name, value in scope["headers"]}
        if b"transfer-encoding" in headers and b"content-length" in headers:  # two lengths smuggle a second request
            close = ((b"connection", b"close"),)
            raise Refusal(400, "Transfer-Encoding and Content-Length together; send one of them", headers=close)
        self._check_host(headers)
        if path == "/health":
            _only(method, "GET")
            await self._health(reply)
            return
        self._check_key(headers)
        if path == _MODELS or path.startswith(f"{_MODELS}/"):
            _only(method, "GET")
            await reply.json(200, self._models(path))
        elif path == _INFO:
            _only(method, "GET")
            await reply.json(200, self._tokens.info())
        elif path in (_COMPLETIONS, _CHAT, _TOKENIZE, _DETOKENIZE):
            _only(method, "POST")
            async with self._endpoint.admitted():
                await self._post(path, headers, receive, reply)
        else:
            known = ", ".join(("/health", _MODELS, _COMPLETIONS, _CHAT, _INFO, _TOKENIZE, _DETOKENIZE))
            raise Refusal(404, f"no such path; there are {known}", code="unknown_path")

    async def _post(self, path: str, headers: Mapping[bytes, bytes], receive: Receive, reply: HttpReply) -> None:
        end = asyncio.get_running_loop().time() + self._limits.seconds
        try:
            async with asyncio.timeout_at(end):
                data = await self._body(headers, receive)
        except TimeoutError:
            raise Refusal(408, "the body did not arrive in time", code="timeout") from None
        answering = asyncio.create_task(self._in_time(end, path, data, reply))
        leaving = asyncio.create_task(_hung_up(receive))
        try:
            done, _ = await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if answering not in done:
                raise _Gone
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        await answering

    async def _in_time(self, end: float, path: str, data: bytes, reply: HttpReply) -> None:
        try:
            async with asyncio.timeout_at(end):  # what the client takes to read a stream counts too
                await self._work(path, data, reply)
        except TimeoutError:
            message = f"the request took longer than this endpoint's {self._limits.seconds:g} seconds"
            raise Refusal(504, message, code="timeout") from None

    async def _work(self, path: str, data: bytes, reply: HttpReply) -> None:
        loop, chat = asyncio.get_running_loop(), path == _CHAT
        if path in (_TOKENIZE, _DETOKENIZE):
            await reply.json(200, await loop.run_in_executor(self._encoder, self._read_tokens, path, data))
            return
        ask = await loop.run_in_executor(self._encoder, self._read, chat, data)
        name = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        if not ask.stream:
            value = await self._endpoint.whole(name, ask)
            await reply.json(200, value, ((VERSION_HEADER, str(value["weight_version"]).encode()),))
            return
        version = await self._endpoint.version()
        async with aclosing(self._endpoint.stream(name, ask)) as events:
            async for part in events:
                if not reply.streamed:
                    await reply.begin_stream(version)
                if part:
                    await reply.part(b"".join(part))
        await reply.part(b"", last=True)

    def _read(self, chat: bool, data: bytes) -> Ask:
        """On the encoder's thread: the body, checked, its prompts as tokens."""
        if chat:
            body = read(data, ChatBody)
            self._check_model(body.model)
            return self._asking.chat(body)
        text = read(data, CompletionBody)
        self._check_model(text.model)
        return self._asking.completion(text)

    def _read_tokens(self, path: str, data: bytes) -> dict[str, Any]:
        """On the encoder's thread: what the tokenizer says."""
        if path == _TOKENIZE:
            text = read(data, TokenizeBody)
            self._check_model(text.model)
            return self._tokens.tokenize(text)
        tokens = read(data, DetokenizeBody)
        self._check_model(tokens.model)
        return self._tokens.detokenize(tokens)

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise Refusal(415, "send JSON, with the header Content-Type: application/json")
        most = self._limits.body_bytes
        declared = headers.get(b"content-length", b"0")
        parts: list[bytes] = []
        size = int(declared) if declared.isdigit() else 0
        if size <= most:
            size = 0
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Gone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most or not message.get("more_body", False):
                    break
        if size > most:
            close = ((b"connection", b"close"),)
            raise Refusal(413, f"the body exceeds this endpoint's limit of {most} bytes", headers=close)
        return b"".join(parts)

    async def _health(self, reply: HttpReply) -> None:
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                health = await self._endpoint.health()
                version = await self._endpoint.version()
        except TimeoutError:
            raise Refusal(503, f"the engine did not answer within {HEALTH_SECONDS:g} s", code="no_answer") from None
        value = {
            "status": "ok" if health.ok else "failed",
            "detail": health.detail,
            "model": self._model,
            "weight_version": version,
            "running": health.running,
            "waiting": health.waiting,
            "requests": self._endpoint.open,
        }
        await reply.json(200 if health.ok else 503, value)

    def _models(self, path: str) -> dict[str, Any]:
        model = {
            "id": self._model,
            "object": "model",
            "created": self._since,
            "owned_by": "strop",
            "max_model_len": self._context,
        }
        if path == _MODELS:
            return {"object": "list", "data": [model]}
        self._check_model(path.removeprefix(f"{_MODELS}/"))
        return model

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._model:
            message = f"model: there is no {name[:100]!r} here; this endpoint serves {self._model!r}"
            raise Refusal(404, message, "model", "model_not_found")

    def _check_key(self, headers: Mapping[bytes, bytes]) -> None:
        given = headers.get(b"authorization", b"")
        if self._key is not None and not hmac.compare_digest(given, self._key):
            ask = ((b"www-authenticate", b"Bearer"),)
            raise Refusal(401, "this endpoint wants its key: Authorization: Bearer KEY", None, "invalid_api_key", ask)

    def _check_host(self, headers: Mapping[bytes, bytes]) -> None:
        if self._local_only and not is_loopback(host_of(headers)):
            raise Refusal(403, "this endpoint answers on this machine only: ask for it as localhost or 127.0.0.1")


async def _told(reply: HttpReply, refusal: Refusal) -> None:
    try:
        async with asyncio.timeout(TELLING_SECONDS):
            await reply.refuse(refusal)
    except TimeoutError:  # a client that does not read its stream is not waited for
        pass


async def _hung_up(receive: Receive) -> None:
    """Return when the client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _only(method: str, allowed: str) -> None:
    if method != allowed:
        raise Refusal(405, f"this path takes {allowed}", headers=((b"allow", allowed.encode()),))
