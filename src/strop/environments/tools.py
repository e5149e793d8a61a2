"""Environments of tools: the policy calls them as often as it likes, and what it says without a call is its answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any

from pydantic import Field

from strop.base.types import Message, Problem, Verdict
from strop.environments.base import Environment
from strop.environments.parsing import Call, Malformed, misfit, tool_calls
from strop.environments.session import Reply, Session, Tool
from strop_verify.verdict import Status

Count = Annotated[int, Field(ge=1)]


class ToolFailed(Exception):
    """A tool cannot do what it was asked; the policy is told why."""


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

    def _result(self, call: Call | Malformed) -> tuple[str, bool]:
        """What the policy is told, and whether its call was a mistake."""
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
