"""Agents that use an OpenAI-style endpoint, trained without changes to their code.

    def solve(problem, base_url, api_key):                       # in a module named with --import
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        ...                                                      # any framework, any number of requests
        return 1.0 if right else 0.0                             # None: the run's verifier judges the last turn

The agent speaks first: its first request is the trajectory's prompt. Of each later request only the new messages are
rendered, so that the trained tokens are the sampled ones, whatever the agent does with their text.

    agent  ──POST /v1/chat/completions, Bearer KEY──▶  AgentLine.next()       the session reads the new messages
           ◀──────────── chat.completion ───────────  AgentLine.answer(…)    and answers with the policy's turn

Each API key is one conversation. The endpoint listens on loopback, on the event loop of the process in which the
sessions run.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import numbers
import secrets
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any

from pydantic import field_validator
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from strop.base.imports import function_named
from strop.base.types import Message, Problem, Verdict
from strop.environments.base import Environment, Outcome, Reply, Session
from strop.environments.tools import OPEN, ToolCall, tool_calls
from strop.serving.http import HttpServer, Refusal, listen, misrouted, read_body, refused
from strop.verifiers.base import scored
from strop_verify.verdict import Status

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


STACK_BYTES = 1 << 20  # per agent's thread; there may be thousands
Plain = tuple[str, str, tuple[tuple[str, str], ...]]  # role, content, and tool calls by name and arguments


class Agent(Environment):
    """Calls `function(problem, base_url, api_key) -> float | bool | Verdict | None`, written `module:name`.

    Each sample calls it in its own thread (an `async` function on the process's event loop). Its requests to `base_url`
    with `api_key` are one conversation: each must begin with the messages of the previous request and its answer, else
    the sample is an error. The run's sampling settings apply, whatever a request says. Once the tokens or turns are
    used up, requests are refused. An exception before that is an error of the agent; after it, the sample is wrong.

    Fields:
        function: the agent.
        deterministic: equal answers lead to equal requests, so that a session that was lost with its process can be
            played again.
    """

    function: str
    deterministic: bool = True

    @field_validator("function")
    @classmethod
    def _must_be_callable(cls, function: str) -> str:
        found = function_named(function)
        try:
            inspect.signature(found).bind("problem", "base_url", "api_key")
        except TypeError as error:
            raise ValueError(f"{function!r} is called with (problem, base_url, api_key): {error}") from error
        return function

    @property
    def repeatable(self) -> bool:
        """Whether the agent is deterministic."""
        return self.deterministic

    @property
    def speaks_first(self) -> bool:
        """The prompt is the agent's first request."""
        return True

    def open(self) -> Session:
        """A new conversation."""
        return _Conversation(self)


class _Conversation(Session):
    def __init__(self, environment: Agent) -> None:
        self._environment = environment
        self._key = secrets.token_urlsafe(24)
        self._known: list[Plain] = []
        self._endpoint: AgentEndpoint | None = None
        self._tools: tuple[dict[str, Any], ...] = ()
        self._spent = False

    async def reset(self, problem: Problem, seed: int) -> Reply:
        """Start the agent, and return its first request."""
        self._endpoint = await endpoint()
        self._line = self._endpoint.open(self._key)
        self._agent = started(function_named(self._environment.function), problem, self._endpoint.url, self._key)
        asked = await self._next()
        if asked is None:
            self._agent.result()  # raises what the agent raised
            raise RuntimeError("the agent asked nothing")
        self._tools = asked.tools
        return Reply(self._new(asked), self._tools)

    async def step(self, reply: str) -> Outcome | None:
        """Answer the agent, and return its next request or its score."""
        self._answer(reply, None)
        asked = await self._next()
        return self._verdict() if asked is None else Reply(self._new(asked))

    async def end(self, reply: str) -> Verdict | None:
        """Refuse further requests, and return the agent's score."""
        self._spent = True
        self._answer(reply, "length")
        self._line.refuse("the tokens or the turns of this conversation are spent")
        await asyncio.wait([self._agent])
        return self._verdict()

    def close(self) -> None:
        """Refuse the requests of an agent that still runs."""
        if self._endpoint is not None:
            self._endpoint.close(self._key, "this conversation is over")
            self._agent.cancel()

    async def _next(self) -> AskedCompletion | None:
        """The agent's next request; None if it has ended."""
        asking = asyncio.ensure_future(self._line.next())
        try:
            await asyncio.wait((asking, self._agent), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not asking.done():
                asking.cancel()
        return asking.result() if asking.done() and not asking.cancelled() else None

    def _new(self, asked: AskedCompletion) -> tuple[Message, ...]:
        """The new messages of a request."""
        plain = [_plain(message) for message in asked.messages]
        kept = len(self._known)
        if plain[:kept] != self._known:
            place = next(n for n, known in enumerate(self._known) if n >= len(plain) or plain[n] != known)
            raise RuntimeError(f"the agent's conversation was rewritten: message {place + 1} is not what it was")
        if len(plain) == kept:
            raise RuntimeError("the agent asked again without a new message")
        if asked.tools != self._tools:
            raise RuntimeError("the agent has other tools than at the beginning of its conversation")
        self._known = plain
        return tuple(Message(role=role, content=content) for role, content, _ in plain[kept:])

    def _answer(self, reply: str, finish_reason: str | None) -> None:
        calls = tool_calls(reply) if self._tools else []
        message: dict[str, Any] = {"role": "assistant", "content": reply}
        if calls and finish_reason is None and all(isinstance(call, ToolCall) for call in calls):
            message["content"] = reply.partition(OPEN)[0].strip() or None if OPEN in reply else None
            message["tool_calls"] = [
                {
                    "id": f"call_{secrets.token_hex(8)}", "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for call in calls if isinstance(call, ToolCall)
            ]  # fmt: skip
            finish_reason = "tool_calls"
        self._known.append(_plain(message))
        self._line.answer(message, finish_reason or "stop")

    def _verdict(self) -> Verdict | None:
        """The verdict for the agent's result."""
        try:
            result = self._agent.result()
        except Exception as error:
            if self._spent:
                return Verdict(0.0, Status.WRONG, f"its tokens or turns were spent: {type(error).__name__}")
            raise
        if result is None or isinstance(result, Verdict):
            return result
        if not isinstance(result, numbers.Real):
            raise TypeError(f"the agent returned {type(result).__name__}, not float, bool, Verdict or None")
        return scored(float(result), "", partial_credit=True)


def started(function: Any, problem: Problem, url: str, key: str) -> asyncio.Future[Any]:
    """Start an agent, in its own thread unless it is `async`; returns its result."""
    loop = asyncio.get_running_loop()
    if inspect.iscoroutinefunction(function):
        return asyncio.ensure_future(function(problem, url, key))
    result: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if result.done():  # cancelled
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def work() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = function(problem, url, key), None
        except BaseException as error:  # including SystemExit
            outcome = None, error if isinstance(error, Exception) else RuntimeError(f"it raised {error!r}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    before = threading.stack_size(STACK_BYTES)
    try:
        threading.Thread(target=work, name="strop-agent", daemon=True).start()
    finally:
        threading.stack_size(before)
    # Mark its error as retrieved even if the conversation is closed first.
    result.add_done_callback(lambda done: done.cancelled() or done.exception())
    return result


def _plain(message: dict[str, Any]) -> Plain:
    """A message in the form that is compared and rendered, without fields that clients add or omit."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    calls = []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function["arguments"]
        known = json.loads(arguments) if isinstance(arguments, str) else arguments
        calls.append((str(function["name"]), json.dumps(known, sort_keys=True)))
    role = str(message.get("role"))
    if role == "assistant":
        content = str(content).strip()
    return "system" if role == "developer" else role, str(content), tuple(calls)
