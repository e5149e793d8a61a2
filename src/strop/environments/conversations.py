"""The OpenAI-style endpoint for agents in training: each API key is one conversation.

    agent  ──POST /v1/chat/completions, Bearer KEY──▶  Line.next()       the session reads the new messages
           ◀──────────── chat.completion ───────────  Line.answer(…)    and answers with the policy's turn

The endpoint listens on loopback, on the event loop of the process in which the sessions run.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from strop.serving.http import HttpServer, Refusal, listen, misrouted, read_body, refused

PATH = "/v1/chat/completions"
BODY_BYTES = 16 * 2**20
REFUSED_FIELDS = {"stream": (False,), "n": (1,)}  # with their allowed values


@dataclass(frozen=True, eq=False)
class AskedCompletion:
    """A request of an agent: its messages and tools; `answer` will hold the choice that answers it."""

    messages: list[dict[str, Any]]
    tools: tuple[dict[str, Any], ...]
    answer: asyncio.Future[dict[str, Any]]


class AgentLine:
    """The queue of one agent's requests.

    Attributes:
        closed: why requests are refused; None while they are accepted.
    """

    def __init__(self) -> None:
        self.closed: str | None = None
        self._asked: asyncio.Queue[AskedCompletion] = asyncio.Queue()
        self._open: AskedCompletion | None = None

    async def next(self) -> AskedCompletion:
        """The agent's next request."""
        self._open = await self._asked.get()
        return self._open

    def answer(self, message: dict[str, Any], finish_reason: str) -> None:
        """Answer the open request with a message of the assistant."""
        if self._open is not None and not self._open.answer.done():
            choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
            self._open.answer.set_result(choice)
        self._open = None

    def refuse(self, reason: str) -> None:
        """Refuse the open request and all later ones."""
        self.closed = reason
        waiting = [] if self._open is None else [self._open]
        while not self._asked.empty():
            waiting.append(self._asked.get_nowait())
        self._open = None
        for asked in waiting:
            if not asked.answer.done():
                asked.answer.set_exception(Refusal(400, reason, code="conversation_over"))

    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """Hand a request to the session, and return the choice that answers it.

        Raises:
            Refusal: the conversation is over, or another request is open.
        """
        if self.closed is not None:
            raise Refusal(400, self.closed, code="conversation_over")
        if self._open is not None or not self._asked.empty():
            raise Refusal(409, "one request at a time: the one before has no answer yet", code="conversation_busy")
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(AskedCompletion(body["messages"], tuple(body.get("tools") or ()), answer))
        return await answer


class AgentEndpoint:
    """The application, and the lines by their keys.

    Attributes:
        url: where it is reached, up to and with `/v1`.
    """

    def __init__(self) -> None:
        self.url = ""
        self._lines: dict[str, AgentLine] = {}

    def open(self, key: str) -> AgentLine:
        """Open a conversation under this key."""
        self._lines[key] = AgentLine()
        return self._lines[key]

    def close(self, key: str, reason: str) -> None:
        """Close a conversation."""
        line = self._lines.pop(key, None)
        if line is not None:
            line.refuse(reason)

    async def start(self) -> None:
        """Listen on a free port of loopback, and serve while the event loop runs."""
        handlers = {Refusal: refused, HTTPException: misrouted}
        app = Starlette(routes=[Route(PATH, self._complete, methods=["POST"])], exception_handlers=handlers)
        server = HttpServer(app, listen("127.0.0.1", 0, None, False))
        self.url = f"{server.url}/v1"
        self._serving = asyncio.create_task(server.serve([server.listening]))

    async def _complete(self, request: Request) -> Response:
        line = self._lines.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if line is None:
            raise Refusal(401, "no conversation has this key, or it is over", code="invalid_api_key")
        body = _read(await read_body(request, BODY_BYTES))
        choice = await line.ask(body)
        return JSONResponse(
            {
                "id": f"chatcmpl-{uuid.uuid4().hex}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": str(body.get("model", "policy")),
                "choices": [choice],
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            }
        )


def _read(data: bytes) -> dict[str, Any]:
    """The request; sampling parameters are ignored, since the run sets them."""
    try:
        body = json.loads(data)
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}", code="invalid_json") from None
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise Refusal(400, "messages: give a list of messages", "messages")
    for name, allowed in REFUSED_FIELDS.items():
        if body.get(name) is not None and body[name] not in allowed:
            raise Refusal(400, f"{name}: not supported while training; leave it out", name, "unsupported_parameter")
    found: dict[str, Any] = body
    return found


_endpoints: dict[asyncio.AbstractEventLoop, AgentEndpoint] = {}


async def endpoint() -> AgentEndpoint:
    """The endpoint of the running event loop, started at the first call."""
    loop = asyncio.get_running_loop()
    if loop not in _endpoints:
        for ended in [one for one in _endpoints if one.is_closed()]:
            del _endpoints[ended]
        _endpoints[loop] = AgentEndpoint()
        await _endpoints[loop].start()
    return _endpoints[loop]
