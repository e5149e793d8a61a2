"""Environments with tools: the policy calls tools, and its first turn without a call is its answer."""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from strop.base.types import InputError, Message, Problem, Verdict
from strop.environments.base import Environment, Reply, Session, Tool
from strop_verify.sandbox.limits import MIB, Kind, Limits
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
    def open_tools(self, problem: Problem, seed: int) -> Tools:
        """The object that answers the calls of one trajectory."""

    def open(self) -> Session:
        """A session that answers calls."""
        return ToolSession(self)


class Tools(ABC):
    """Answers the calls of one trajectory; it may have state.

    Attributes:
        first: the first text, see `Session.reset`.
    """

    first: str | None = None

    @abstractmethod
    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The result of a call whose arguments fit the tool's schema.

        Raises:
            ToolFailed: the call fails; the message is the answer.
        """

    def close(self) -> None:
        """Release resources."""
        return None


class ToolSession(Session):
    """Reads and answers calls, and counts mistakes.

    Attributes:
        opened: answers the calls; set by `reset`.
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
        """The results of the turn's calls; without a call the trajectory ends."""
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
        """The trajectory ends."""
        return self.ended(reply)

    def ended(self, reply: str) -> Verdict | None:
        """The verdict on a trajectory whose last turn is `reply`; None: the run's verifier judges that turn."""
        return None

    def close(self) -> None:
        """Close the tools."""
        if self.opened is not None:
            self.opened.close()

    def _result(self, call: ToolCall | Malformed) -> tuple[str, bool]:
        """The answer to a call, and whether the call was a mistake."""
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

    def open_tools(self, problem: Problem, seed: int) -> Tools:
        """A new interpreter."""
        return _Interpreter(self, seed)


class _Interpreter(Tools):
    def __init__(self, environment: PythonTool, seed: int) -> None:
        self._environment, self._seed = environment, seed
        self._programs: list[str] = []

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
        if run.ending.kind is Kind.SANDBOX_ERROR:
            raise RuntimeError(f"the sandbox failed: {run.ending.detail}")
        if run.ending.kind is not Kind.ENDED:
            raise ToolFailed(f"{run.ending.kind}: {run.ending.detail}")
        self._programs = programs
        return run.stdout.decode("utf-8", "replace").rstrip("\n")


# Robertson and Zaragoza, "The Probabilistic Relevance Framework", Section 3.5: usual values.
SATURATION, LENGTH_WEIGHT = 1.2, 0.75


class Search(ToolEnvironment):
    """A tool `search(query)`; it returns the passages that match best (BM25).

    Fields:
        corpus: a file with one passage per line, or JSON lines with `text` and perhaps `title`.
        passages: number of passages per call.
    """

    corpus: str
    passages: Annotated[int, Field(ge=1)] = 3

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The search."""
        query = {"type": "string", "description": "a few words"}
        parameters = {"type": "object", "properties": {"query": query}, "required": ["query"]}
        return (Tool("search", "Finds passages that match a query.", parameters),)

    def open_tools(self, problem: Problem, seed: int) -> Tools:
        """The index, which is read once per process."""
        return _Searcher(index_of(self.corpus), self.passages)


class _Searcher(Tools):
    def __init__(self, index: Bm25, passages: int) -> None:
        self._index, self._passages = index, passages

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The passages, best first."""
        found = self._index.best(arguments["query"], self._passages)
        return "\n".join(f"[{place + 1}] {text}" for place, text in enumerate(found)) or "nothing found"


class Bm25:
    """An inverted index of passages.

    score(q, d) = Σ_w idf(w) · f (k + 1) / (f + k (1 − b + b |d| / mean |d|))
    idf(w) = ln(1 + (N − n + 0.5) / (n + 0.5))

    with f how often w stands in d, n in how many of the N passages, k = SATURATION and b = LENGTH_WEIGHT.
    """

    def __init__(self, passages: list[str]) -> None:
        self._passages = passages
        words = [_words(passage) for passage in passages]
        mean = sum(map(len, words)) / max(len(words), 1)
        self._weights: dict[str, list[tuple[int, float]]] = defaultdict(list)  # word: passages with its weight in each
        for place, own in enumerate(words):
            length = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * len(own) / mean)
            for word, count in Counter(own).items():
                self._weights[word].append((place, count * (SATURATION + 1) / (count + length)))

    def best(self, query: str, count: int) -> list[str]:
        """The `count` best passages that share a word with the query, best first, earlier ones before equals."""
        scores: dict[int, float] = defaultdict(float)
        for word in set(_words(query)):
            found = self._weights.get(word, [])
            idf = math.log(1 + (len(self._passages) - len(found) + 0.5) / (len(found) + 0.5))
            for place, weight in found:
                scores[place] += idf * weight
        ranked = sorted(scores, key=lambda place: (-scores[place], place))
        return [self._passages[place] for place in ranked[:count]]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@lru_cache(maxsize=4)
def index_of(corpus: str) -> Bm25:
    """The index of a file.

    Raises:
        InputError: the file cannot be read, or a line of JSON is malformed.
    """
    path = Path(corpus).expanduser()
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"environment.corpus={corpus}: cannot be read: {error}") from error
    if path.suffix != ".jsonl":
        return Bm25(lines)
    try:
        rows = [json.loads(line) for line in lines]
        return Bm25([f"{row['title']}: {row['text']}" if "title" in row else row["text"] for row in rows])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"environment.corpus={corpus}: a line is no JSON object with `text`: {error}") from error


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

    def open_tools(self, problem: Problem, seed: int) -> Tools:
        """A calculator has no state."""
        return _Calculator()


class _Calculator(Tools):
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
