"""Environments written for other libraries: classes in TRL's shape, and OpenEnv servers.

    class Guess:
        def reset(self, **row): ...            # the problem's fields; a returned text is the first message
        def guess(self, number: int) -> str:   # every other public method is a tool, described by its docstring
            ...
        def get_reward(self) -> float: ...     # of the finished trajectory; an attribute `reward` works too
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import field_validator

from strop.base.imports import found_by_name, require
from strop.base.types import Message, Problem, Verdict
from strop.environments.base import Environment, Reply, Session, Tool
from strop.environments.tools import END_OF_THINKING, ToolEnvironment, ToolSession
from strop.verifiers.base import scored
from strop_verify.verdict import Status

_NOT_TOOLS = ("reset", "step", "close", "get_reward")
_JSON: Mapping[Any, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array",
}  # fmt: skip


class OutsideClass(ToolEnvironment):
    """Wraps a class `module:Class` whose public methods are the tools; `--import` must name its module.

    `reset` receives the problem's `prompt`, `reference` and `extra` fields, as far as it takes them. The trajectory
    ends with the first turn without a call; `get_reward()` (a float in [0, 1]) is its score. The policy reads the
    exceptions of methods. If the class has neither `get_reward` nor `reward`, the run's verifier judges.

    Fields:
        cls: the class.
    """

    cls: str

    @field_validator("cls")
    @classmethod
    def _must_have_tools(cls, name: str) -> str:
        found = class_of(name)
        if not list(_methods(found)):
            raise ValueError(f"{name} has no public method apart from {', '.join(_NOT_TOOLS)} that could be a tool")
        return name

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The public methods."""
        return tuple(_tool(name, method) for name, method in _methods(class_of(self.cls)))

    def open(self) -> ToolSession:
        """A session with a new object."""
        return _ObjectSession(self)


class _ObjectSession(ToolSession):
    def __init__(self, environment: OutsideClass) -> None:
        super().__init__(environment)
        self._class = class_of(environment.cls)
        self._object: Any = None

    def reset(self, problem: Problem, seed: int) -> str | None:
        """Make an object, and reset it with the fields of the problem that it takes; returns its text, if any."""
        self._object = self._class()
        row = {"prompt": problem.prompt, "reference": problem.reference, "seed": seed, **problem.extra}
        parameters = inspect.signature(self._object.reset).parameters
        if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
            row = {name: value for name, value in row.items() if name in parameters}
        first = self._object.reset(**row)
        return first if isinstance(first, str) else None

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The result of the method as text, or its exception."""
        try:
            return str(getattr(self._object, name)(**arguments))
        except Exception as error:  # the policy reads it, as in TRL
            return f"error: {error}"

    def end(self, reply: str) -> Verdict | None:
        """The object's reward as a verdict; None if the class has none."""
        if hasattr(self._object, "get_reward"):
            reward = self._object.get_reward()
        elif hasattr(self._object, "reward"):
            reward = self._object.reward
        else:
            return None
        return scored(float(reward), "", partial_credit=True)

    def close(self) -> None:
        """Close the object, if it can be closed."""
        if hasattr(self._object, "close"):
            self._object.close()


def class_of(name: str) -> Any:
    """The class called `module:Class`.

    Raises:
        ValueError: the name is malformed, its module was not allowed, or it has no such class with a `reset`.
    """
    found = found_by_name(name, "Class")
    if not inspect.isclass(found) or not hasattr(found, "reset"):
        module, _, attribute = name.partition(":")
        raise ValueError(f"module {module!r} has no class {attribute!r} with a method reset")
    return found


def _methods(found: Any) -> Iterator[tuple[str, Any]]:
    for name, method in inspect.getmembers(found, inspect.isfunction):
        if not name.startswith("_") and name not in _NOT_TOOLS:
            yield name, method


def _tool(name: str, method: Any) -> Tool:
    """A method as a tool, described by its docstring and its annotations."""
    text = inspect.getdoc(method) or ""
    hints = get_type_hints(method, vars(sys.modules[method.__module__]))  # its module may not be importable by name
    described = dict(re.findall(r"^\s+(\w+)\s*(?:\([^)]*\))?:\s*(.+)$", text.partition("Args:")[2], re.MULTILINE))
    properties, required = {}, []
    for argument in list(inspect.signature(method).parameters.values())[1:]:
        kind = get_origin(hints.get(argument.name)) or hints.get(argument.name)
        inner = next((one for one in get_args(hints.get(argument.name)) if one in _JSON), None)
        schema: dict[str, Any] = {"type": _JSON[found]} if (found := kind if kind in _JSON else inner) else {}
        if argument.name in described:
            schema["description"] = described[argument.name].strip()
        properties[argument.name] = schema
        if argument.default is inspect.Parameter.empty:
            required.append(argument.name)
    summary = text.strip().partition("\n")[0] or name
    return Tool(name, summary, {"type": "object", "properties": properties, "required": required})


class OpenEnv(Environment):
    """Sends each turn as an action to an OpenEnv server; `done` ends the trajectory with the sum of the rewards.

    Fields:
        url: address of the server, such as ws://localhost:8000.
        action: the action's field for the turn's text; empty: the turn is the action as JSON.
        observation: the observation's field to show; empty: the whole observation as JSON.
    """

    url: str
    action: str = "message"
    observation: str = ""

    def open(self) -> Session:
        """A new session."""
        return _Remote(self)


class _Remote(Session):
    def __init__(self, environment: OpenEnv) -> None:
        self._environment = environment
        self._connection: Any = None
        self._reward = 0.0

    async def reset(self, problem: Problem, seed: int) -> str:
        """Connect, and return the first observation."""
        websockets = require("websockets.asyncio.client", extra="openenv", purpose="OpenEnv servers")
        address = self._environment.url.replace("http", "ws", 1).rstrip("/")
        self._connection = await websockets.connect(f"{address}/ws", proxy=None)
        return self._shown(await self._ask("reset", {"seed": seed % 2**31}))

    async def step(self, reply: str) -> Reply | Verdict:
        """The observation after the turn's action."""
        said = reply.rpartition(END_OF_THINKING)[2].strip()
        if self._environment.action:
            action: Any = {self._environment.action: said}
        else:
            try:
                action = json.loads(said)
            except ValueError as error:
                return Reply((Message(role="user", content=f"not JSON: {error}"),))
        data = await self._ask("step", action)
        self._reward += float(data.get("reward") or 0.0)
        if data.get("done"):
            return scored(self._reward, "", partial_credit=True)
        return Reply((Message(role="user", content=self._shown(data)),))

    def end(self, reply: str) -> Verdict:
        """The sum of the rewards so far."""
        verdict = scored(self._reward, "not done", partial_credit=True)
        return Verdict(0.0, Status.WRONG, "not done") if self._reward == 0 else verdict

    async def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            await self._connection.close()

    async def _ask(self, kind: str, data: Any) -> dict[str, Any]:
        await self._connection.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(await self._connection.recv())
        if answer.get("type") == "error":
            raise RuntimeError(f"the server says: {answer.get('data', {}).get('message', 'error')}")
        found: dict[str, Any] = answer["data"]
        return found

    def _shown(self, data: dict[str, Any]) -> str:
        observation = data.get("observation", {})
        field = self._environment.observation
        return str(observation.get(field, "")) if field else json.dumps(observation, ensure_ascii=False)
