"""The tester: assertions run in this sandbox, where the objects of the solution are handles.

A handle can be asked for attributes and items, called, iterated, and combined with another handle; the solution
answers. It has no order relative to a value, and an operator never hands it one, so that `abs(f(2) - 4) < 1e-6` cannot
be won by an object that answers 0. It equals a value only where its type is derived from a plain one, and then that
plain value is compared. Two handles are compared by the solution, for both are
its own. Between two calls an object gives one answer to one question: it is the same number wherever it is used.

What is no value and is passed to the solution stays here too and is lent: a function can be called, an iterator gone
through, and an instance of a class that the tests define, a text stream or a pattern has its public attributes. Nothing
else of it can be reached.

Which names are the solution's is decided only by the text of the tests: a solution may lie. A builtin, a name of the
tests' prelude and a name that the tests import or define are the tests' own, so that in `assert abs(f(2) - 4) < 1e-6`
only `f` is the solution's. Where tests use nothing else than such names, the one that they call without a call of
another in its arguments is under test: `sum` in `assert abs(sum(10, 15)) == 6`.

Results go to the trusted process over a pipe of which the solution knows nothing:

    ["begin", k]   ["pass", k]   ["fail", k, why]   ["broken", k, why]   the last where the test itself cannot be used
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import symtable
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from .solution import LENT, MODULE, OPERATIONS, SYNTAX_ERRORS, ParentChannel, forget_prelude
from .wire import CodecError, FrameError, decode, encode, frame, is_array, write_all


@dataclass(frozen=True)
class Names:
    """What names tests use.

    Attributes:
        wanted: global names that they read and do not import or define.
        offered: those of them that stand for the solution's.
        read: by snippet, the names that it reads when it is run, not only in functions that nothing calls.
    """

    wanted: set[str]
    offered: set[str]
    read: list[set[str]]


def names_of(snippets: list[str], helpers: set[str], builtin: set[str]) -> Names:
    """The names of the snippets.

    Args:
        snippets: the tests, run in one namespace.
        helpers: the names that they find there, builtins among them.
        builtin: the builtins.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: a snippet is no Python.
    """
    trees = [ast.parse(snippet) for snippet in snippets]
    tables = [symtable.symtable(snippet, "<test>", "exec") for snippet in snippets]
    calls = [call for tree in trees for call in _calls(tree)]
    called = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    own = {name for table in tables for name in _bound(table, called)}
    used = [set(_used(table)) for table in tables]
    wanted = {name for names in used for name in names if not (name.startswith("__") and name.endswith("__"))} - own
    offered = wanted - helpers or _under_test(calls, wanted, builtin)
    read = [
        names if any(_run_calls(tree)) else {symbol.get_name() for symbol in table.get_symbols()}
        for tree, table, names in zip(trees, tables, used, strict=True)
    ]
    return Names(wanted, offered, read)


def _under_test(calls: list[ast.Call], wanted: set[str], builtin: set[str]) -> set[str]:
    """The name under test where all are builtins or the prelude's: a set of one, or empty where that is not clear."""
    called, outer = set(), set()
    for call in calls:
        if isinstance(call.func, ast.Name):
            called.add(call.func.id)
            if any(isinstance(inner.func, ast.Name) and inner.func.id in wanted for inner in _calls(call)[1:]):
                outer.add(call.func.id)
    innermost = (called & wanted) - outer
    for choice in (innermost - builtin, innermost):
        if len(choice) == 1:
            return choice
    return set()


def _calls(node: ast.AST) -> list[ast.Call]:
    """The calls in a piece of code, itself first where it is one."""
    return [found for found in ast.walk(node) if isinstance(found, ast.Call)]


def _run_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """The calls outside of functions and classes."""
    for statement in tree.body:
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _calls(statement)


def _tables(table: symtable.SymbolTable) -> Iterable[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _bound(module: symtable.SymbolTable, called: set[str]) -> Iterator[str]:
    """The globals that a snippet binds; one that it also calls may be the solution's before (`area = area(3)`)."""
    for table in _tables(module):
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if table is not module and not symbol.is_declared_global():
                continue
            if symbol.is_imported() or symbol.is_namespace() or (symbol.is_assigned() and name not in called):
                yield name


def _used(module: symtable.SymbolTable) -> Iterator[str]:
    """The globals that a snippet reads, in functions too."""
    for table in _tables(module):
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table is module or symbol.is_global()):
                yield symbol.get_name()


TESTS = "tests"  # the module of the tests' own classes
OPEN = (TESTS, "_io", "re")  # modules of classes whose instances show their public attributes to the solution
FOREIGN = {"np": "numpy", "pd": "pandas", "numpy": "numpy", "pandas": "pandas"}
# What tests use without importing it. Nothing here may be what a solution is asked to write: no `gcd`, no `add`.
HELPERS = """
import cmath, collections, copy, datetime, decimal, fractions, functools, heapq, itertools, json, math, operator, os
import random, re, statistics, string, sys, time, typing
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from math import inf, isclose, nan
from typing import *
"""


def solution_names(snippets: list[str]) -> set[str]:
    """The names in tests that stand for the solution's."""
    names: dict[str, Any] = {"type": type}
    exec(HELPERS, names)
    return names_of(snippets, {*vars(builtins), *names, *FOREIGN}, set(vars(builtins))).offered


def modules_of(snippets: list[str]) -> set[str]:
    """The modules that tests import before anything else can happen, without the solution's."""
    found = set()
    for statement in (each for snippet in snippets for each in ast.parse(snippet).body):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            found.add(statement.module or "")
    return {name.partition(".")[0] for name in found} - {MODULE}


READS = ("get", "item", "op")
EFFECTS = ("iter", "next", "delitem")  # operations that may change something
PUBLIC_DUNDERS = ("__name__", "__doc__", "__dict__", "__qualname__")


class SolutionLost(BaseException):
    """The solution is gone or talks nonsense; not an Exception, so that no test catches it by accident."""


class RemoteExit(Exception):
    """The solution asked the interpreter to end."""


class RemoteObject:
    """The solution as the tests see it."""

    def __init__(self, channel: ParentChannel) -> None:
        self._channel = channel
        self._lent: list[Any] = []  # objects of the tests that were passed to the solution
        self._places: dict[int, int] = {}  # in that list, by id
        self._exceptions: dict[int, type[BaseException]] = {}
        self._answers: dict[str, Any] = {}  # to what was asked since the last request that may change something
        self.lost = ""
        self.used = False  # whether the tests have met anything of the solution's

    def start(self) -> None:
        """Wait until the solution's module has run.

        Raises:
            Exception: what it raised.
        """
        message = self._receive()
        if message[0] != "loaded":
            self._raise(message)

    def ask(self, *request: Any) -> Any:
        """One request and its answer, see `solution`.

        Raises:
            RuntimeError: the answer is a StopIteration to anything but `next`, which `map` and `all` would take for the
                end of what they were to go through.
        """
        self.used = self.used or request[0] not in ("names", "methods")
        reads = request[0] in READS and request[1] not in EFFECTS
        if not reads:
            self._answers.clear()
        question = json.dumps(request) if reads else ""
        if question not in self._answers:
            self._answers[question] = self._exchange(list(request))
        return self._value(self._answers[question])

    def call(self, number: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call an object; what the call changed in its arguments is changed here too."""
        self.used = True
        self._answers.clear()
        pairs = [[name, self.write(value)] for name, value in keywords.items()]
        response = self._exchange(["call", number, [self.write(value) for value in arguments], pairs])
        for place, wire in response[2]:
            _replace(arguments[place], self.read(wire))
        match response[1]:
            case ["argument", int(place)] if 0 <= place < len(arguments):
                return arguments[place]
        return self._value(response)

    def write(self, value: Any) -> Any:
        """The wire form of a value or handle of this side."""
        return encode(value, self._export)

    def read(self, wire: Any) -> Any:
        """The value or handle of a wire form."""
        return decode(wire, self._import)

    def _exchange(self, request: list[Any]) -> list[Any]:
        try:
            self._channel.send(request)
        except OSError as error:
            self._lose(str(error), error)
        while True:
            message = self._receive()
            if message[0] == "value" and len(message) == 3:
                return message
            if message[0] == "raise":
                self._raise(message, ends=request[:2] == ["op", "next"])
            if message[0] != "callback":
                self._lose("an answer of no known kind")
            self._channel.send(self._called_back(message))

    def _receive(self) -> list[Any]:
        try:
            message = self._channel.receive()
        except (OSError, EOFError, FrameError) as error:
            self._lose(str(error), error)
        if not message:
            self._lose("an empty answer")
        return message

    def _value(self, response: list[Any]) -> Any:
        try:
            return self.read(response[1])
        except CodecError as error:
            self._lose(str(error), error)

    def _called_back(self, message: list[Any]) -> list[Any]:
        try:
            _, name, number, wires, pairs = message
            if not isinstance(number, int) or not 0 <= number < len(self._lent):
                self._lose("a question about an object that was never passed")
            arguments = [self.read(wire) for wire in wires]
            keywords = {str(key): self.read(wire) for key, wire in pairs}
            return ["returned", self.write(_asked(self._lent[number], name, arguments, keywords))]
        except Exception as error:  # the object is the test's and may raise anything; the solution sees it
            return ["raised", type(error).__name__, str(error)[:1000]]

    def _raise(self, message: list[Any], ends: bool = False) -> NoReturn:
        try:
            _, name, base, text, own = message
            kind = self.exception(name, base, own)
        except (ValueError, TypeError) as error:
            self._lose(str(error), error)
        if issubclass(kind, StopIteration | StopAsyncIteration) and not ends:
            raise RuntimeError(f"the solution raised {kind.__name__}")
        raise kind(text)

    def exception(self, name: str, base: str, own: int | None) -> type[BaseException]:
        """The exception class to raise here for one of the solution's; never one that ends the tester."""
        found = vars(builtins).get(base)
        parent = found if isinstance(found, type) and issubclass(found, Exception) else RemoteExit
        if parent in (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError):
            parent = ValueError  # their constructors take more than a text
        if own is None:
            return parent
        if own not in self._exceptions:
            self._exceptions[own] = type(str(name), (parent,), {})
        return self._exceptions[own]

    def _export(self, value: Any) -> list[Any]:
        if type(value) is Handle:
            return ["handle", _number_of(value)]
        if self._places.setdefault(id(value), len(self._lent)) == len(self._lent):
            self._lent.append(value)
        return ["back", self._places[id(value)]]

    def _import(self, wire: list[Any]) -> Any:
        tag, number, *rest = wire
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise CodecError("not a handle")
        if tag == "back":
            return self._lent[number]
        base, name = rest
        if base is not None:
            return self.exception(str(name), str(base), number)
        handle = Handle(self, number)
        return _coroutine(handle) if name == "coroutine" else handle

    def _lose(self, why: str, cause: BaseException | None = None) -> NoReturn:
        self.lost = self.lost or why or "the solution is gone"
        raise SolutionLost(self.lost) from cause


def _asked(value: Any, name: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """The answer to the solution's question about an object that was lent to it.

    Raises:
        AttributeError: an attribute that is not public, or of an object that shows none.
    """
    if name == "call":
        return value(*arguments, **keywords)
    if name not in ("get", "set"):
        return LENT[name](value, *arguments)
    attribute = str(arguments[0])
    if attribute.startswith("_") or type(value).__module__ not in OPEN:
        raise AttributeError(f"{type(value).__name__!r} object of the tests shows no attribute {attribute!r}")
    return getattr(value, attribute) if name == "get" else setattr(value, attribute, arguments[1])


class Handle:
    """An object of the solution's."""

    __slots__ = ("__remote", "__number")
    __doc__: Any = property(lambda self: self.__getattr__("__doc__"))

    def __init__(self, remote: RemoteObject, number: int) -> None:
        object.__setattr__(self, "_Handle__remote", remote)
        object.__setattr__(self, "_Handle__number", number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in PUBLIC_DUNDERS:
            raise AttributeError(f"a handle has no {name}")
        return self.__remote.ask("get", self.__number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__remote.ask("set", self.__number, name, self.__remote.write(value))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.__remote.call(self.__number, arguments, keywords)

    def __eq__(self, other: object) -> bool:
        if type(other) is not Handle:
            same = self._combine("plain")
            return type(same) is list and same == [other]
        return _number_of(other) == self.__number or self._combine("eq", other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(("handle", self.__number))

    def __getitem__(self, key: Any) -> Any:
        return self.__remote.ask("item", self.__number, self.__remote.write(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        remote = self.__remote
        remote.ask("setitem", self.__number, remote.write(key), remote.write(value))

    def __delitem__(self, key: Any) -> None:
        self.__remote.ask("op", "delitem", ["handle", self.__number], self.__remote.write(key))

    def __contains__(self, value: object) -> bool:
        raise TypeError("a handle is not asked whether it contains a value; compare its items")

    def __exit__(self, *_: object) -> None:
        self._combine("exit")

    def __instancecheck__(self, instance: Any) -> bool:
        return type(instance) is Handle and self.__remote.ask(
            "op", "isinstance", ["handle", _number_of(instance)], ["handle", self.__number]
        ) is True

    def _combine(self, name: str, *others: object) -> Any:
        """An operator on objects of the solution; a value never goes along."""
        if any(type(other) is not Handle for other in others):
            return NotImplemented
        wires = [["handle", _number_of(other)] for other in (self, *others)]
        return self.__remote.ask("op", name, *wires)


async def _coroutine(handle: Handle) -> Any:
    """A coroutine of the solution's as one of the tests': it is run there, to its end, when it is awaited."""
    return handle._combine("await")


def _number_of(handle: Any) -> int:
    number: int = object.__getattribute__(handle, "_Handle__number")
    return number


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *others: self._combine(name, *others)


def _type_of(value: Any, *parts: Any) -> Any:
    """`type` for the tests: of an object of the solution's its class there, which has a name."""
    return value._combine("type") if type(value) is Handle and not parts else type(value, *parts)


_UNARY = {"len", "iter", "next", "bool", "str", "repr", "int", "float", "abs", "neg", "pos", "reversed", "enter"}
_BINARY = set(OPERATIONS) - _UNARY - {"type", "isinstance", "eq", "ne", "delitem", "exit", "plain", "await"}
for _name in sorted(_UNARY | _BINARY):
    setattr(Handle, f"__{_name}__", _operator(_name))


def _replace(target: Any, value: Any) -> None:
    """Give a mutable argument the content that it has on the other side."""
    if type(target) is not type(value):
        raise SolutionLost("an argument changed its type")
    if isinstance(target, list | bytearray) or is_array(target):
        target[:] = value
    elif isinstance(target, dict | set):
        target.clear()
        target.update(value)
    else:  # a deque
        target.clear()
        target.extend(value)


class AssertionTests:
    """Snippets of assertions, run one after another in one namespace together with the names of a solution."""

    def __init__(self, snippets: list[str], remote: RemoteObject) -> None:
        self._snippets, self._remote = snippets, remote
        self._names: dict[str, Any] = {"__name__": TESTS, "type": _type_of}
        exec(HELPERS, self._names)
        self._helpers = {*vars(builtins), *self._names, *FOREIGN}
        self._borrowed: dict[str, Any] = {}  # names that now stand for the solution's
        self._offered: set[str] = set()  # names that may stand for the solution's
        self._read: list[set[str]] = []

    def compile(self) -> list[types.CodeType]:
        """The snippets as code; also decides which of their names are the solution's.

        Raises:
            SYNTAX_ERRORS: one of them is no Python.
        """
        found = names_of(self._snippets, self._helpers, set(vars(builtins)))
        self._offered, self._read = found.offered, found.read
        for name in sorted(found.wanted & set(FOREIGN) - self._offered):
            try:
                self._names[name] = __import__(FOREIGN[name])
            except ImportError:  # then the name is missing, and the test says so
                continue
        return [compile(snippet, "<test>", "exec", dont_inherit=True) for snippet in self._snippets]

    def meet(self) -> None:
        """Wait until the solution's module has run."""
        self._remote.start()
        sys.modules[MODULE] = _SolutionModule(self._remote)

    def run(self, place: int, code: types.CodeType) -> str:
        """Run a snippet; "" if it passed, else why not."""
        try:
            self._borrow(self._read[place])
            exec(code, self._names)
        except BaseException as error:  # every way out but the end of the snippet is a failure
            return self._remote.lost or f"{type(error).__name__}: {error}"[:300]
        if not self._remote.used:
            return "NameError: the solution defines nothing that the tests use"
        for name, value in list(self._borrowed.items()):
            if self._names.get(name) is not value:
                del self._borrowed[name]  # bound anew by the test
        return self._remote.lost

    def _borrow(self, read: set[str]) -> None:
        made_here = set(self._names) - set(self._borrowed) - self._helpers
        names = sorted(self._offered - made_here)
        for name, (there, value) in zip(names, self._remote.ask("names", names), strict=True):
            if there is True:
                self._names[name] = self._borrowed[name] = value
            elif name == "Solution":
                self._names[name] = self._borrowed[name] = value = self._remote.ask("methods")
            else:
                if name in self._borrowed:
                    del self._names[name], self._borrowed[name]
                continue
            if type(value) is not Handle and name in read:
                self._remote.used = True  # a value is all there is to ask for


class _SolutionModule(types.ModuleType):
    """For tests that say `from solution import f`."""

    def __init__(self, remote: RemoteObject) -> None:
        super().__init__(MODULE)
        self._remote = remote

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        ((there, value),) = self._remote.ask("names", [name])
        if there is not True:
            raise AttributeError(f"the solution has no {name}")
        self._remote.used = self._remote.used or type(value) is not Handle
        return value


def run(source: str, channels: list[int]) -> NoReturn:
    """Run the tests that `source` holds as JSON, `[snippets, stop at the first failure]`, and report on each."""
    forget_prelude()  # its names could be what the solution was asked to write
    snippets, stop = json.loads(source)
    reading, writing, report = channels
    remote = RemoteObject(ParentChannel(reading, writing))
    tests = AssertionTests(snippets, remote)

    def report_on(*message: Any) -> None:
        write_all(report, frame(list(message)))

    try:
        codes = tests.compile()
    except SYNTAX_ERRORS as error:
        report_on("broken", 0, f"{type(error).__name__}: {error}"[:300])
        os._exit(0)
    report_on("begin", 0)
    try:
        tests.meet()
    except BaseException as error:  # whatever the solution's module raised
        report_on("fail", 0, remote.lost or f"{type(error).__name__}: {error}"[:300])
        os._exit(0)
    for place, code in enumerate(codes):
        report_on("begin", place)
        why = tests.run(place, code)
        report_on(*(("fail", place, why) if why else ("pass", place)))
        if why and (stop or remote.lost):
            break
    os._exit(0)
