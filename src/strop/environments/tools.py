"""Environments with tools: the policy calls tools, and its first turn without a call is its answer."""

from __future__ import annotations

import ast
import json
import operator
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from strop.base.types import Message, Problem, Verdict
from strop.environments.base import Environment, Reply, Session, Tool
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
