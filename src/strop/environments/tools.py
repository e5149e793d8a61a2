"""Environments with tools, strop's and other libraries': the policy calls tools until a turn without a call."""

from __future__ import annotations

import ast
import inspect
import json
import operator
import re
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from pydantic import Field, field_validator

from strop.base.imports import found_by_name, require
from strop.base.types import Message, Problem, Verdict
from strop.environments.base import Environment, Reply, Session, Tool
from strop.verifiers.base import scored
from strop_verify.sandbox.limits import MIB, Limits, Outcome
from strop_verify.sandbox.pool import shared
from strop_verify.verdict import Status

OPEN, CLOSE = "<tool_call>", "</tool_call>"
END_OF_THINKING = "</think>"
# Python's types of the types in JSON schemas.
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,),
    "array": (list,), "null": (type(None),),
}  # fmt: skip


class ToolCall(NamedTuple):
    """A call of a tool with arguments from JSON."""

    name: str
    arguments: dict[str, Any]


class Malformed(NamedTuple):
    """A malformed call, with the reason that the policy reads."""

    reason: str


def tool_calls(reply: str) -> list[ToolCall | Malformed]:
    """The calls in a reply, in order; calls in a think block are ignored."""
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
    """Why the arguments do not fit the tool's schema (missing, unknown, wrong type); None if they do."""
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
            return f"{tool.name}: {name} must be of type {wanted}"
    return None


Count = Annotated[int, Field(ge=1)]


class ToolFailed(Exception):
    """A tool cannot do what was asked; the policy reads the message."""


class ToolEnvironment(Environment):
    """Answers each call with a message of the role `tool`; a turn without a call goes to the verifier.

    Malformed calls, unknown tools and wrong arguments are answered with an error, so that the policy can correct them.

    Fields:
        max_mistakes: most mistakes of that kind; one more ends the trajectory, `unparsed`.
        calls_per_turn: most calls of one turn; further ones count as mistakes.
        result_characters: longer results are cut.
    """

    max_mistakes: Annotated[int, Field(ge=0)] = 3
    calls_per_turn: Count = 8
    result_characters: Count = 4000

    @property
    @abstractmethod
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the policy may call."""

    @abstractmethod
    def open(self) -> ToolSession:
        """A session that answers calls."""


class ToolSession(Session):
    """Reads and answers calls, and counts mistakes. Subclasses define `call`."""

    def __init__(self, environment: ToolEnvironment) -> None:
        self._limits = environment
        self._known = {tool.name: tool for tool in environment.tools}
        self._mistakes = 0

    @abstractmethod
    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The result of a call whose arguments fit the tool's schema.

        Raises:
            ToolFailed: the call fails; the message is the answer.
        """

    def end(self, reply: str) -> Verdict | None:
        """The verdict on a trajectory whose last turn is `reply`; None: the run's verifier judges that turn."""
        return None

    def step(self, reply: str) -> Reply | Verdict | None:
        """The results of the turn's calls; without a call the trajectory ends."""
        calls = tool_calls(reply)
        if not calls:
            return self.end(reply)
        results, before = [], self._mistakes
        for place, call in enumerate(calls):
            if place >= self._limits.calls_per_turn:
                call = Malformed(f"more than {self._limits.calls_per_turn} calls in one turn")
            result, mistake = self._result(call)
            self._mistakes += mistake
            if self._mistakes > self._limits.max_mistakes:
                reason = f"more than {self._limits.max_mistakes} malformed tool calls"
                return Verdict(0.0, Status.UNPARSED, reason, malformed_calls=self._mistakes - before)
            results.append(Message(role="tool", content=self._within(result)))
        return Reply(tuple(results), malformed_calls=self._mistakes - before)

    def _result(self, call: ToolCall | Malformed) -> tuple[str, bool]:
        """The answer to a call, and whether the call was a mistake."""
        if isinstance(call, Malformed):
            return f"error: {call.reason}", True
        if call.name not in self._known:
            return f"error: there is no tool {call.name[:40]!r}; there is {', '.join(self._known)}", True
        reason = misfit(call, self._known[call.name])
        if reason is not None:
            return f"error: {reason}", True
        try:
            return self.call(call.name, call.arguments), False
        except ToolFailed as error:
            return f"error: {error}", False

    def _within(self, result: str) -> str:
        limit = self._limits.result_characters
        return result if len(result) <= limit else f"{result[:limit]} … ({len(result)} characters, cut)"


# Runs in the sandbox: earlier programs without their output and exceptions, then the last one. A last expression is
# shown, as in a notebook.
_DRIVER = '''
import ast, contextlib, io, random, traceback
random.seed({seed})
names = {{"__name__": "__main__"}}
def run(source):
    tree = ast.parse(source)
    shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<call>", "exec"), names)
    if shown is not None:
        value = eval(compile(ast.Expression(shown.value), "<call>", "eval"), names)
        if value is not None:
            print(repr(value))
programs = {programs}
for source in programs[:-1]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(BaseException):
        run(source)
try:
    run(programs[-1])
except BaseException as error:
    print("".join(traceback.format_exception_only(error)).strip())
'''


class PythonTool(ToolEnvironment):
    """A tool `python(code)`; it returns the output, and the value of a last expression.

    Fields:
        seconds: wall time of one call, including earlier programs.
        memory_mib_a_program: memory of one call.
        sandboxes: calls that run at once in one process.
        allow_unsafe: run programs even if this machine cannot isolate them (docs/sandbox.md).
    """

    seconds: Annotated[float, Field(gt=0, le=60)] = 6.0
    memory_mib_a_program: Annotated[int, Field(ge=32)] = 512
    sandboxes: Annotated[int, Field(ge=1)] = 2
    allow_unsafe: bool = False

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The interpreter."""
        code = {"type": "string", "description": "a program; what earlier calls defined is there"}
        parameters = {"type": "object", "properties": {"code": code}, "required": ["code"]}
        return (Tool("python", "Runs Python and returns what it prints.", parameters),)

    def open(self) -> ToolSession:
        """A new interpreter."""
        return _Interpreter(self)


class _Interpreter(ToolSession):
    def __init__(self, environment: PythonTool) -> None:
        super().__init__(environment)
        self._environment = environment
        self._programs: list[str] = []

    def reset(self, problem: Problem, seed: int) -> None:
        """Keep the seed of the programs' random numbers."""
        self._seed = seed

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The output of the program.

        Raises:
            ToolFailed: it took too long or too much memory; its definitions are dropped.
            RuntimeError: the sandbox failed.
        """
        environment = self._environment
        limits = Limits(memory=environment.memory_mib_a_program * MIB, output=MIB)
        sandbox = shared(limits, environment.sandboxes, environment.allow_unsafe)
        programs = [*self._programs, arguments["code"]]
        run = sandbox.run(_DRIVER.format(seed=self._seed, programs=json.dumps(programs)), b"", environment.seconds)
        if run.ending.outcome is Outcome.SANDBOX_ERROR:
            raise RuntimeError(f"the sandbox failed: {run.ending.detail}")
        if run.ending.outcome is not Outcome.ENDED:
            raise ToolFailed(f"{run.ending.outcome}: {run.ending.detail}")
        self._programs = programs
        return run.stdout.decode("utf-8", "replace").rstrip("\n")


LONGEST = 200  # characters of an expression
LARGEST = 10**60  # of intermediate numbers
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


class Calculator(ToolEnvironment):
    """A tool `calculator(expression)`: + - * / // % ** and brackets over decimal numbers."""

    @property
    def inline(self) -> bool:
        """Every call is bounded."""
        return True

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The calculator."""
        expression = {"type": "string", "description": "such as (3 + 4.5) * 2"}
        parameters = {"type": "object", "properties": {"expression": expression}, "required": ["expression"]}
        return (Tool("calculator", "Computes an arithmetic expression exactly.", parameters),)

    def open(self) -> ToolSession:
        """A calculator without state."""
        return _Calculator(self)


class _Calculator(ToolSession):
    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The value of the expression."""
        return calculate(arguments["expression"])


def calculate(expression: str) -> str:
    """The value of an expression: exact if it is whole, else with twelve digits.

    Raises:
        ToolFailed: it is not arithmetic, divides by zero, or becomes too large.
    """
    if len(expression) > LONGEST:
        raise ToolFailed(f"an expression has at most {LONGEST} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolFailed(f"{expression[:40]!r} is no arithmetic expression") from error
    except ZeroDivisionError as error:
        raise ToolFailed("division by zero") from error
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.12g}"


def _value(node: ast.AST) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _OPERATORS:
            return _bounded(Fraction(_OPERATORS[type(node.op)](left, right)))
    raise ValueError


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > 200:
        raise ToolFailed("an exponent is a whole number up to 200")
    return _bounded(Fraction(base**exponent))


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) > LARGEST:
        raise ToolFailed("a number is too large")
    return value


# ---------------------------------------------------------------------- written for other libraries


_NOT_TOOLS = ("reset", "step", "close", "get_reward")
_JSON: Mapping[Any, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array",
}  # fmt: skip


class OutsideClass(ToolEnvironment):
    """Wraps a class `module:Class` whose public methods are the tools; `--import` must name its module.

    `reset` receives the problem's `prompt`, `reference` and `extra` fields, as far as it takes them. The trajectory
    ends with the first turn without a call; `get_reward()` (a float in [0, 1]) is its score. The policy reads the
    exceptions of methods. If the class has neither `get_reward` nor `reward`, the run's verifier judges.

        class Guess:
            def reset(self, **row): ...            # the problem's fields; a returned text is the first message
            def guess(self, number: int) -> str:   # every other public method is a tool, described by its docstring
                ...
            def get_reward(self) -> float: ...     # of the finished trajectory; an attribute `reward` works too

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
