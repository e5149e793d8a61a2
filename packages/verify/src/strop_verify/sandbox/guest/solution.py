"""Foreign code in this process: a program as a real `__main__`, or a solution that answers requests.

The solution keeps its objects and answers requests about them; nothing that it says is trusted.

Requests arrive as frames, each gets one response. While a response is prepared the solution may itself ask the other
side about an object that was passed to it (`callback`).

    ["entry", name, [argument]]               call a function or a method of Solution
    ["names", [name]]                         global names: [[is there, value]]
    ["get", id, name]  ["set", id, name, v]   attributes
    ["call", id, [argument], [[name, v]]]     call; the response says which mutable arguments changed
    ["item", id, key]  ["op", name, id, …]    len, iter, next, ==, + … of objects that stayed here

    ["value", wire, [[place, wire]]]          the result, or ["argument", place] where it is an argument itself
    ["raise", type, built-in type, text, id]  an exception; id of its class where that is the solution's own
"""

from __future__ import annotations

import atexit
import builtins
import gc
import operator
import os
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from .wire import CodecError, FrameError, FrameReader, decode, encode, frame, is_array, write_all

PATH = "/tmp/main.py"
THREAD_STACK = 16 << 20
RECURSION = 50_000
# The names that solutions of programming contests use without importing them.
PRELUDE = """
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from statistics import *
from itertools import *
from functools import *
from operator import *
from io import *
from sys import *
from json import *
from decimal import *
from fractions import *
from builtins import *
from typing import *
import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics, itertools, functools, operator
import io, sys, json, os, time, decimal, fractions, typing, array, cmath
"""
PRELUDE_NAMES: list[str] = []  # those that were made builtins
SYNTAX_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)


def prepare_interpreter(packages: list[str]) -> None:
    """Make the interpreter look as if it had been started for one program; once, in the fork server.

    The names of the prelude become builtins: a fork then need not touch them, and a module holds its own names only.
    """
    names: dict[str, Any] = {}
    exec(PRELUDE, names)
    for name in sorted(names.keys() - vars(builtins).keys()):
        setattr(builtins, name, names[name])
        PRELUDE_NAMES.append(name)
    package = __name__.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    sys.argv[:] = [PATH]
    sys.path[0] = "/tmp"
    sys.path += packages
    sys.setrecursionlimit(RECURSION)
    sys.set_int_max_str_digits(0)
    threading.stack_size(THREAD_STACK)


def forget_prelude() -> None:
    """Take the names of the prelude back."""
    for name in PRELUDE_NAMES:
        delattr(builtins, name)


def compiled(source: str, optimise: int = 0) -> types.CodeType:
    """The program as code.

    Raises:
        SYNTAX_ERRORS: it is no Python.
    """
    return compile(source, PATH, "exec", dont_inherit=True, optimize=optimise)


def run_main(code: types.CodeType, source: str) -> NoReturn:
    """Run a program as `__main__` and end the process as the interpreter would."""
    with open(PATH, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(source)
    module = types.ModuleType("__main__")
    module.__dict__["__file__"] = PATH
    sys.modules["__main__"] = module
    finish(_status_of(lambda: exec(code, module.__dict__)), module)


def finish(status: int, module: types.ModuleType) -> NoReturn:
    """Wait for threads, run the exit handlers, flush what is open; much quicker than tearing the interpreter down."""
    for ending in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush):  # type: ignore[attr-defined]
        status = _status_of(ending) or status
    module.__dict__.clear()  # files that were left open are flushed when they are let go
    gc.collect()
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and not stream.closed:
            status = _status_of(stream.flush) or status
    os._exit(status)


def _status_of(action: Callable[[], Any]) -> int:
    """The exit status that `action` gives: 0, that of sys.exit, or 1 after a traceback."""
    try:
        action()
    except SystemExit as end:
        if end.code is None:
            return 0
        if isinstance(end.code, int):
            return end.code & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # whatever it is, the interpreter would print it and end with 1
        outer = error.__traceback__.tb_next if error.__traceback__ else None
        inner = outer.tb_next if outer else None  # without our own two frames
        sys.excepthook(type(error), error.with_traceback(inner), inner)
        return 1
    return 0


MODULE = "solution"
MUTABLE = (list, dict, set, bytearray, deque)
PLAIN = (int, float, str, tuple, list, dict, set, frozenset)


def plain(value: Any) -> list[Any]:
    """What an instance of a type derived from a plain one is equal to, as a list of one; else an empty list."""
    base = next((kind for kind in PLAIN if isinstance(value, kind)), None)
    return [] if base is None else [str.__str__(value) if base is str else base(value)]  # str() is the class's own


def _awaited(coroutine: Any) -> Any:
    import asyncio  # here: few programs need it

    return asyncio.run(coroutine)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "len": len, "iter": iter, "next": next, "bool": bool, "str": str, "repr": repr, "int": int, "float": float,
    "abs": abs, "type": type, "neg": operator.neg, "pos": operator.pos, "reversed": reversed,
    "isinstance": isinstance, "plain": plain, "await": _awaited,
    "enter": lambda manager: manager.__enter__(), "exit": lambda manager: manager.__exit__(None, None, None),
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow, "matmul": operator.matmul,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "delitem": operator.delitem,
}  # fmt: skip


class ParentChannel:
    """Frames over a pair of pipes; reads block."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._frames = FrameReader()
        self._queue: deque[list[Any]] = deque()

    def send(self, message: list[Any]) -> None:
        """Write a message."""
        write_all(self._writing, frame(message))

    def receive(self) -> list[Any]:
        """The next message.

        Raises:
            EOFError: the other side is gone.
            FrameError: the other side sends nonsense.
        """
        while not self._queue:
            data = os.read(self._reading, 1 << 16)
            if not data:
                raise EOFError("the other side has closed the channel")
            self._queue.extend(self._frames.feed(data))
        return self._queue.popleft()


class Borrowed:
    """An object of the tester's: a function to call, an iterator, or an instance of a class that the tests define."""

    __slots__ = ("__ask", "__number")

    def __init__(self, ask: Callable[..., Any], number: int) -> None:
        object.__setattr__(self, "_Borrowed__ask", ask)
        object.__setattr__(self, "_Borrowed__number", number)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.__ask("call", self.__number, arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        return self.__ask("get", self.__number, (name,))

    def __setattr__(self, name: str, value: Any) -> None:
        self.__ask("set", self.__number, (name, value))


def _lent_operation(name: str) -> Callable[..., Any]:
    def asked(self: Any, *arguments: Any) -> Any:
        return object.__getattribute__(self, "_Borrowed__ask")(name, borrowed_number(self), arguments)

    return asked


def borrowed_number(value: Borrowed) -> int:
    """The tester's number of an object."""
    number: int = object.__getattribute__(value, "_Borrowed__number")
    return number


# What may be asked of the tester's objects besides calls and attributes.
LENT: dict[str, Callable[..., Any]] = {
    "iter": iter, "next": next, "len": len, "bool": bool, "str": str, "repr": repr, "getitem": operator.getitem,
    "contains": operator.contains,
}  # fmt: skip
for _name in LENT:
    setattr(Borrowed, f"__{_name}__", _lent_operation(_name))


class SolutionServer:
    """Answers requests about the objects of one solution."""

    def __init__(self, names: dict[str, Any], channel: ParentChannel) -> None:
        self._names, self._channel = names, channel
        self._objects: list[Any] = []  # by handle; kept alive, so that ids of objects stay theirs
        self._handles: dict[int, int] = {}
        self._borrowed: dict[int, Borrowed] = {}  # one for each of the tester's, so that it is itself

    def serve(self) -> None:
        """Until the other side closes."""
        while True:
            try:
                request = self._channel.receive()
            except EOFError:
                return
            self._channel.send(self._respond(request))

    def call_back(
        self, name: str, number: int, arguments: tuple[Any, ...], keywords: dict[str, Any] | None = None
    ) -> Any:
        """Ask the other side about its object `number`, serving its requests meanwhile."""
        pairs = [[key, self._write(value)] for key, value in (keywords or {}).items()]
        self._channel.send(["callback", name, number, [self._write(value) for value in arguments], pairs])
        while True:
            message = self._channel.receive()
            if message[0] == "returned":
                return self._read(message[1])
            if message[0] == "raised":
                found = vars(builtins).get(message[1])
                kind = found if isinstance(found, type) and issubclass(found, Exception) else RuntimeError
                raise kind(message[2])
            self._channel.send(self._respond(message))

    def failure(self, error: BaseException) -> list[Any]:
        """An exception as a response."""
        kind = type(error)
        base = next((cls for cls in kind.__mro__ if cls.__module__ == "builtins"), Exception)
        own = None if base is kind else self._export(kind)[1]
        try:
            text = str(error)[:1000]
        except Exception as inner:  # its __str__ is the solution's
            text = f"unprintable ({type(inner).__name__})"
        return ["raise", kind.__name__, base.__name__, text, own]

    def _respond(self, request: list[Any]) -> list[Any]:
        try:
            name, *parts = request
            arguments = [self._read(wire) for wire in parts[1]] if name in ("entry", "call") else []
            before = [self._write(value) if type(value) in MUTABLE or is_array(value) else None for value in arguments]
            if name == "entry":
                result = self._entry(parts[0])(*arguments)
            elif name == "call":
                keywords = {key: self._read(wire) for key, wire in parts[2]}
                result = self._objects[parts[0]](*arguments, **keywords)
            else:
                result = self._simple(name, parts)
            same = (place for place, old in enumerate(before) if name == "call" and old and arguments[place] is result)
            place = next(same, None)
            export = self._export_value if name == "entry" else self._export
            written = encode(result, export) if place is None else ["argument", place]
            response = ["value", written, list(self._changes(arguments, before))]
        except BaseException as error:  # whatever the solution raises is its answer
            return self.failure(error)
        return response

    def _simple(self, name: str, parts: list[Any]) -> Any:
        if name == "names":
            return [(self._defines(wanted), self._names.get(wanted)) for wanted in parts[0]]
        if name == "methods":
            return self._solution_class()
        if name == "get":
            return getattr(self._objects[parts[0]], parts[1])
        if name == "set":
            return setattr(self._objects[parts[0]], parts[1], self._read(parts[2]))
        if name == "item":
            return self._objects[parts[0]][self._read(parts[1])]
        if name == "setitem":
            self._objects[parts[0]][self._read(parts[1])] = self._read(parts[2])
            return None
        return OPERATIONS[parts[0]](*(self._read(wire) for wire in parts[1:]))

    def _changes(self, arguments: list[Any], before: list[Any]) -> Iterator[list[Any]]:
        for place, (value, old) in enumerate(zip(arguments, before, strict=True)):
            if old is not None:
                new = self._write(value)
                if new != old:
                    yield [place, new]

    def _defines(self, name: str) -> bool:
        """Whether the solution itself made the name; the prelude's are builtins."""
        return name in self._names and not name.startswith("__")

    def _entry(self, name: str) -> Callable[..., Any]:
        """The function under test: a method of Solution, or a plain function, also where a method was asked for."""
        method = name.rpartition(".")[2].removesuffix("()")
        solution = self._names.get("Solution")
        if isinstance(solution, type) and hasattr(solution, method):
            found: Callable[..., Any] = getattr(solution(), method)
            return found
        if not self._defines(method):
            raise NameError(f"name '{method}' is not defined")
        function: Callable[..., Any] = self._names[method]
        return function

    def _solution_class(self) -> Callable[[], Any]:
        """For tests that say `Solution().name` of a solution that is a bare function."""
        functions = {name: value for name, value in self._names.items() if self._defines(name) and callable(value)}
        return lambda: types.SimpleNamespace(**functions)

    def _write(self, value: Any) -> Any:
        return encode(value, self._export)

    def _read(self, wire: Any) -> Any:
        return decode(wire, self._import)

    def _export(self, value: Any) -> Any:
        if type(value) is Borrowed:
            return ["back", borrowed_number(value)]
        number = self._handles.get(id(value))
        if number is None:
            number = self._handles[id(value)] = len(self._objects)
            self._objects.append(value)
        kind = "class" if isinstance(value, type) else "object"
        base = None
        if kind == "class" and issubclass(value, BaseException):
            base = next(cls.__name__ for cls in value.__mro__ if cls.__module__ == "builtins")
        return ["handle", number, base, type(value).__name__]

    def _export_value(self, value: Any) -> Any:
        """Of a result that is only compared: what a named tuple, a member of an IntEnum or the like is equal to."""
        same = plain(value)
        return encode(same[0], self._export_value) if same else self._export(value)

    def _import(self, wire: list[Any]) -> Any:
        if wire[0] == "handle":
            return self._objects[wire[1]]
        return self._borrowed.setdefault(wire[1], Borrowed(self.call_back, wire[1]))


def run(code: types.CodeType, channels: list[int]) -> NoReturn:
    """Run the solution's module, then serve its objects; the process ends with the channel."""
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    channel = ParentChannel(*channels)
    server = SolutionServer(module.__dict__, channel)
    try:
        try:
            exec(code, module.__dict__)
            message: list[Any] = ["loaded"]
        except BaseException as error:  # the module failed; the other side hears of it
            message = server.failure(error)
        channel.send(message)
        if message[0] == "loaded":
            server.serve()
    except (OSError, FrameError, CodecError):  # the other side is gone, or the solution wrote into its channel
        os._exit(1)
    os._exit(0)
