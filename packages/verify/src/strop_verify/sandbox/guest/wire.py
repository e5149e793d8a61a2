"""Messages and values between tester, solution and the trusted process.

A message is four bytes of length, then a JSON array. Whoever writes may be hostile: `FrameReader` accepts only arrays
of arrays, texts, numbers, booleans and nulls, of bounded size, and never builds a dictionary from what it reads, whose
keys could be chosen to collide.

In a message built-in types go by value; everything else is a handle of an object that stays where it is. A value is
null, a boolean, a text, an integer below 2^63, a finite float, or an array `[tag, ...]`:

    [1, 2.5]           ["list", [1, 2.5]]            {"a": (1,)}     ["dict", [["a", ["tuple", [1]]]]]
    10 ** 30           ["int", "0xc9f2c9cd0..."]     float("inf")    ["float", "inf"]
    Fraction(1, 2)     ["Fraction", 1, 2]            an object       ["handle", 17, "object"]
    np.array([1])      ["array", "<i8", ["list", [1]]]

The type is asked with `type(value) is …`, so that a subclass that defines `__eq__` never counts as the value that it
pretends to be. The value types of the standard library go by value too, since a dictionary and a Counter of the same
content are equal to everyone.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, NoReturn

HEADER = 4
MAX_FRAME = 64 * 1024 * 1024
MAX_DIGITS = 20  # longer integers travel as hexadecimal text, see `encode`
_DTYPE = re.compile(r"[<>|](?:b1|[iu][1248]|f[248]|c8|c16|U\d{1,6})")  # of arrays that go by value
_BLANK = re.compile(rb"[ \t\r\n]*\[")


class FrameError(Exception):
    """The stream is not one of frames; nothing after this point can be trusted."""


class FrameReader:
    """Cuts a stream into messages: `reader.feed(data)` gives those that `data` completed."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[list[Any]]:
        """The messages completed by `data`, in order.

        Raises:
            FrameError: a frame is too long or is not a JSON array of the kind described above.
        """
        self._buffer += data
        messages, position = [], 0
        while len(self._buffer) - position >= HEADER:
            length = int.from_bytes(self._buffer[position : position + HEADER], "big")
            if length > self._limit:
                raise FrameError(f"a frame of {length} bytes, more than {self._limit}")
            end = position + HEADER + length
            if len(self._buffer) < end:
                break
            messages.append(parse(bytes(self._buffer[position + HEADER : end])))
            position = end
        del self._buffer[:position]
        return messages


def parse(body: bytes) -> list[Any]:
    """The array that the body of a frame holds.

    Raises:
        FrameError: it holds anything else.
    """
    if _BLANK.match(body) is None:
        raise FrameError("a frame that is not a JSON array")
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_refuse_object,
            parse_constant=_refuse_constant,
            parse_int=_short_int,
        )
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame that is not usable JSON: {str(error)[:100]}") from error
    if not isinstance(value, list):  # the parser reads nothing else after an opening bracket
        raise FrameError("a frame that is not a JSON array")
    return value


def frame(message: list[Any]) -> bytes:
    """A message as bytes on the stream."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    return len(body).to_bytes(HEADER, "big") + body


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, however often the kernel takes a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _refuse_object(pairs: Any) -> NoReturn:
    raise ValueError("an object, where only arrays may be")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _short_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


MAX_DEPTH = 100
MAX_NODES = 2_000_000
SMALL = 1 << 63

Export = Callable[[Any], list[Any]]  # an object that is no value → ["handle", id, …] or ["back", id]
Import = Callable[[list[Any]], Any]  # the reverse

_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset", deque: "deque"}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "OrderedDict", Counter: "Counter", defaultdict: "dict"}
_DATES: dict[type, str] = {datetime.date: "date", datetime.time: "time", datetime.datetime: "datetime"}
_BUILD_SEQUENCE: dict[str, Callable[[list[Any]], Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque,
}  # fmt: skip
_BUILD_MAPPING: dict[str, Callable[[dict[Any, Any]], Any]] = {
    "dict": dict, "OrderedDict": OrderedDict, "Counter": Counter,
}  # fmt: skip
_READ_DATE: dict[str, Callable[[str], Any]] = {
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "datetime": datetime.datetime.fromisoformat,
}


class CodecError(Exception):
    """The value is too large or too deep, or the wire form is not valid."""


class ValueEncoder:
    """Writes one value; `export` gives the wire form of an object that does not go by value."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._nodes = 0

    def encode(self, value: Any, depth: int = 0) -> Any:
        """The wire form of `value`.

        Raises:
            CodecError: more than MAX_NODES parts, or deeper than MAX_DEPTH.
        """
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise CodecError(f"a value of more than {MAX_NODES} parts")
        if depth > MAX_DEPTH:
            raise CodecError(f"a value nested deeper than {MAX_DEPTH}")
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -SMALL < value < SMALL else ["int", hex(value)]
        if kind is float:
            return value if math.isfinite(value) else ["float", repr(value)]
        if kind in _SEQUENCES:
            return [_SEQUENCES[kind], [self.encode(part, depth + 1) for part in value]]
        if kind in _MAPPINGS:
            pairs = [[self.encode(key, depth + 1), self.encode(part, depth + 1)] for key, part in value.items()]
            return [_MAPPINGS[kind], pairs]
        return self._rare(value, kind)

    def _rare(self, value: Any, kind: type) -> Any:
        if kind is bytes or kind is bytearray:
            return [kind.__name__, value.hex()]
        if kind is complex:
            return ["complex", self.encode(value.real), self.encode(value.imag)]
        if kind is range:
            return ["range", self.encode(value.start), self.encode(value.stop), self.encode(value.step)]
        if kind is Fraction:
            return ["Fraction", self.encode(value.numerator), self.encode(value.denominator)]
        if kind is Decimal:
            return ["Decimal", str(value)]
        if kind in _DATES:
            return [_DATES[kind], value.isoformat()]
        if kind is datetime.timedelta:
            return ["timedelta", value.days, value.seconds, value.microseconds]
        if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            item = value.item()  # a scalar is equal to the Python value that it is; of a long double there is none
            return self._export(value) if type(item) is kind else self.encode(item)
        if is_array(value) and _DTYPE.fullmatch(value.dtype.str):
            return ["array", value.dtype.str, self.encode(value.tolist())]
        return self._export(value)


def is_array(value: Any) -> bool:
    """Whether a value is an array of numpy, and not of a class that is derived from it."""
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def encode(value: Any, export: Export) -> Any:
    """The wire form of `value`, see `ValueEncoder.encode`."""
    return ValueEncoder(export).encode(value)


def decode(wire: Any, resolve: Import) -> Any:
    """The value of a wire form; `resolve` is asked for every handle.

    Only for a process with limits: a set or dictionary of chosen keys can take very long to build.

    Raises:
        CodecError: the wire form is not valid.
    """
    try:
        return _decode(wire, resolve, 0)
    except (ValueError, TypeError, OverflowError, ArithmeticError, InvalidOperation, IndexError) as error:
        raise CodecError(f"not a value: {str(error)[:100]}") from error


def _decode(wire: Any, resolve: Import, depth: int) -> Any:
    if wire is None or isinstance(wire, bool | int | float | str):
        return wire
    if depth > MAX_DEPTH + 1:
        raise CodecError(f"a value nested deeper than {MAX_DEPTH}")
    if not isinstance(wire, list) or not wire or not isinstance(wire[0], str):
        raise CodecError("not a value")
    tag, *parts = wire
    if tag in ("handle", "back"):
        return resolve(wire)
    if tag in _BUILD_SEQUENCE:
        (items,) = parts
        return _BUILD_SEQUENCE[tag]([_decode(item, resolve, depth + 1) for item in _array(items)])
    if tag in _BUILD_MAPPING:
        (items,) = parts
        pairs = ((_decode(key, resolve, depth + 1), _decode(part, resolve, depth + 1)) for key, part in _array(items))
        return _BUILD_MAPPING[tag](dict(pairs))
    if tag == "array":
        dtype, items = parts
        if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
            raise CodecError("not an array of numbers or texts")
        import numpy as np

        return np.array(_decode(items, resolve, depth + 1), dtype)
    return _decode_rare(tag, parts, resolve)


def _decode_rare(tag: str, parts: list[Any], resolve: Import) -> Any:
    if tag == "int":
        return int(_text(parts), 16)
    if tag == "float":
        return float(_text(parts))
    if tag == "bytes":
        return bytes.fromhex(_text(parts))
    if tag == "bytearray":
        return bytearray.fromhex(_text(parts))
    if tag == "Decimal":
        return Decimal(_text(parts))
    if tag in _READ_DATE:
        return _READ_DATE[tag](_text(parts))
    numbers = [_number(_decode(part, resolve, MAX_DEPTH)) for part in parts]
    if tag == "complex":
        real, imaginary = numbers
        return complex(real, imaginary)
    if tag == "range":
        return range(*numbers)
    if tag == "Fraction":
        numerator, denominator = numbers
        return Fraction(numerator, denominator)
    if tag == "timedelta":
        days, seconds, microseconds = numbers
        return datetime.timedelta(days, seconds, microseconds)
    raise CodecError(f"no value is tagged {tag[:30]!r}")


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise CodecError("not an array of parts")
    return value


def _text(parts: list[Any]) -> str:
    (text,) = parts
    if not isinstance(text, str):
        raise CodecError("not a text")
    return text


def _number(value: Any) -> Any:
    if not isinstance(value, int | float):
        raise CodecError("not a number")
    return value
