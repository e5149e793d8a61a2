"""Agents that use an OpenAI-style endpoint, trained without changes to their code.

    def solve(problem, base_url, api_key):                       # in a module named with --import
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        ...                                                      # any framework, any number of requests
        return 1.0 if right else 0.0                             # None: the run's verifier judges the last turn

The agent speaks first: its first request is the trajectory's prompt. Of each later request only the new messages are
rendered, so that the trained tokens are the sampled ones, whatever the agent does with their text.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import numbers
import secrets
import threading
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from strop.base.imports import function_named
from strop.base.types import Message, Problem, Verdict
from strop.environments.base import Environment, Outcome, Reply, Session
from strop.environments.tools import OPEN, ToolCall, tool_calls
from strop.verifiers.base import scored
from strop_verify.verdict import Status

if TYPE_CHECKING:
    from strop.environments.conversations import AgentEndpoint, AskedCompletion

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
        from strop.environments.conversations import endpoint  # here: a configuration is read without a server

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
