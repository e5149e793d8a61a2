"""Messages on a byte stream: four bytes of length, then a JSON array.

Whoever writes may be hostile: `FrameReader` accepts arrays of arrays, texts, numbers, booleans and nulls only, of
bounded size, and never builds a dictionary from what it reads (whose keys could be chosen to collide).
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, NoReturn

HEADER = 4
MAX_FRAME = 64 * 1024 * 1024
MAX_DIGITS = 20  # longer integers travel as hexadecimal text, see codec
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
