"""Environments of tools: the policy calls them as often as it likes, and what it says without a call is its answer."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from strop.base.types import Message, Problem, Verdict
from strop.environments.base import Environment, Reply, Session, Tool
from strop_verify.verdict import Status

OPEN, CLOSE = "<tool_call>", "</tool_call>"
END_OF_THINKING = "</think>"
# What a value of a JSON schema's type is in Python; a bool is an int there, and not in JSON.
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,),
    "array": (list,), "null": (type(None),),
}  # fmt: skip


class ToolCall(NamedTuple):
    """A tool called by its name; `arguments` are as JSON gave them."""

    name: str
    arguments: dict[str, Any]


class Malformed(NamedTuple):
    """What looks like a call and is none, with the reason, to be told to the policy."""

    reason: str


def tool_calls(reply: str) -> list[ToolCall | Malformed]:
    """The calls of a reply in order; none where it calls nothing. What stands in a think block is no call."""
    said = reply.rpartition(END_OF_THINKING)[2].strip()
    if OPEN in said or CLOSE in said:
        return list(_tagged(said))
    if said.startswith("{") and said.endswith("}") and '"name"' in said:
        return [_call(said, "parameters")]
    return []


def _tagged(said: str) -> Iterator[ToolCall | Malformed]:
    before, *blocks = said.split(OPEN)
    if CLOSE in before:
        yield Malformed(f"{CLOSE} without {OPEN}")
    for block in blocks:
        body, closed, after = block.partition(CLOSE)
        if not closed:
            yield Malformed(f"{OPEN} without {CLOSE}")
        elif CLOSE in after:
            yield Malformed(f"{CLOSE} without {OPEN}")
        else:
            yield _call(body, "arguments")


def _call(text: str, arguments: str) -> ToolCall | Malformed:
    try:
        found = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return Malformed(f"not JSON: {str(error) or type(error).__name__}")
    if not isinstance(found, dict) or found.keys() != {"name", arguments}:
        return Malformed(f'a call is an object with "name" and "{arguments}", and nothing else')
    if not isinstance(found["name"], str) or not isinstance(found[arguments], dict):
        return Malformed(f'"name" is a string and "{arguments}" an object')
    return ToolCall(found["name"], found[arguments])


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def misfit(call: ToolCall, tool: Tool) -> str | None:
    """Why the arguments do not fit the tool's schema (types of the properties, required and unknown ones), or None."""
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    missing = [name for name in tool.parameters.get("required", ()) if name not in call.arguments]
    if missing:
        return f"{tool.name}: {missing[0]} is missing"
    for name, value in call.arguments.items():
        if name not in properties:
            return f"{tool.name}: there is no argument {name}"
        wanted = properties[name].get("type")
        given = (bool,) if isinstance(value, bool) else (type(value),)
        if wanted is not None and not set(given) & set(_TYPES[wanted]):
            return f"{tool.name}: {name} is to be of type {wanted}"
    return None


Count = Annotated[int, Field(ge=1)]


class ToolFailed(Exception):
    """A tool cannot do what it was asked; the policy reads why."""


class ToolEnvironment(Environment):
    """Answers each call of a turn with a message of the role `tool`; a turn without a call goes to the verifier.

    Malformed calls, unknown tools and unfit arguments are answered too, so that the policy can mend them.

    Fields:
        max_mistakes: so many calls of that kind are answered; one more ends the trajectory, `unparsed`.
        calls_per_turn: calls of one turn that are answered; those behind them count as mistakes.
        result_characters: a longer result is cut, and says so.
    """

    max_mistakes: Annotated[int, Field(ge=0)] = 3
    calls_per_turn: Count = 8
    result_characters: Count = 4000

    @property
    @abstractmethod
    def tools(self) -> tuple[Tool, ...]:
        """What the policy may call."""

    @abstractmethod
    def open_tools(self, problem: Problem, seed: int) -> Tools:
        """What answers the calls of one trajectory."""

    def open(self) -> Session:
        """A session that answers calls."""
        return ToolSession(self)


class Tools(ABC):
    """Answers the calls of one trajectory, which may share a state.

    Attributes:
        first: what is said at the beginning, see `Session.reset`.
    """

    first: str | None = None

    @abstractmethod
    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The result of a call whose arguments fit the tool's schema.

        Raises:
            ToolFailed: it cannot be done; its text is the answer.
        """

    def close(self) -> None:
        """The trajectory is over."""
        return None


class ToolSession(Session):
    """Reads calls, has them answered, and counts mistakes.

    Attributes:
        opened: what answers the calls, from `reset` on.
    """

    def __init__(self, environment: ToolEnvironment) -> None:
        self._environment = environment
        self._known = {tool.name: tool for tool in environment.tools}
        self.opened: Tools | None = None
        self._mistakes = 0

    def reset(self, problem: Problem, seed: int) -> str | None:
        """Open the tools."""
        self.opened = self._environment.open_tools(problem, seed)
        return self.opened.first

    def step(self, reply: str) -> Reply | Verdict | None:
        """The results of the turn's calls; where there is no call the trajectory has ended."""
        calls = tool_calls(reply)
        if not calls:
            return self.ended(reply)
        results, before = [], self._mistakes
        for place, call in enumerate(calls):
            if place >= self._environment.calls_per_turn:
                call = Malformed(f"more than {self._environment.calls_per_turn} calls in one turn")
            result, mistake = self._result(call)
            self._mistakes += mistake
            if self._mistakes > self._environment.max_mistakes:
                reason = f"more than {self._environment.max_mistakes} malformed tool calls"
                return Verdict(0.0, Status.UNPARSED, reason, malformed_calls=self._mistakes - before)
            results.append(Message(role="tool", content=self._within(result)))
        return Reply(tuple(results), malformed_calls=self._mistakes - before)

    def end(self, reply: str) -> Verdict | None:
        """It has ended too."""
        return self.ended(reply)

    def ended(self, reply: str) -> Verdict | None:
        """The verdict on a trajectory whose last turn is `reply`; None: the run's verifier judges that turn."""
        return None

    def close(self) -> None:
        """Close the tools."""
        if self.opened is not None:
            self.opened.close()

    def _result(self, call: ToolCall | Malformed) -> tuple[str, bool]:
        """What the policy reads, and whether its call was a mistake."""
        if isinstance(call, Malformed):
            return f"error: {call.reason}", True
        if call.name not in self._known:
            return f"error: there is no tool {call.name[:40]!r}; there is {', '.join(self._known)}", True
        reason = misfit(call, self._known[call.name])
        if reason is not None:
            return f"error: {reason}", True
        assert self.opened is not None
        try:
            return self.opened.call(call.name, call.arguments), False
        except ToolFailed as error:
            return f"error: {error}", False

    def _within(self, result: str) -> str:
        limit = self._environment.result_characters
        return result if len(result) <= limit else f"{result[:limit]} … ({len(result)} characters, cut)"
