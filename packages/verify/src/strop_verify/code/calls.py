"""Tests by calling a function: one process for all tests, asked one call at a time, the values compared here."""

from __future__ import annotations

import math
import os
import reprlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from strop_verify.code.outcome import Outcome, ProgramSettings, Tally, outcome_of
from strop_verify.code.tests import Tests
from strop_verify.sandbox.guest.wire import MAX_DEPTH, CodecError, encode
from strop_verify.sandbox.limits import Kind
from strop_verify.sandbox.pool import Slot
from strop_verify.sandbox.process import WATCH_SECONDS, SandboxProcess, pump, send

SEQUENCES = ("list", "tuple", "deque")
MAPPINGS = ("dict", "OrderedDict", "Counter")


def matches(expected: Any, wire: Any, tolerance: float | None = None, depth: int = 0) -> bool:
    """Whether `wire` is the value `expected`, which came from JSON: tuples count as lists, integer keys as texts.

    A handle matches nothing. Numbers are equal as Python has it (1 == 1.0 == True).
    """
    if depth > MAX_DEPTH:
        return False
    if isinstance(expected, list | tuple):
        items = _items(wire, SEQUENCES)
        return (
            items is not None
            and len(items) == len(expected)
            and all(matches(one, other, tolerance, depth + 1) for one, other in zip(expected, items, strict=True))
        )
    if isinstance(expected, dict):
        return _matches_mapping(expected, wire, tolerance, depth)
    if expected is None or isinstance(expected, str):
        return type(expected) is type(wire) and bool(expected == wire)
    number = _number(wire)
    if number is None:
        return False
    if expected == number:
        return True
    return tolerance is not None and _close(expected, number, tolerance)


def _matches_mapping(expected: dict[str, Any], wire: Any, tolerance: float | None, depth: int) -> bool:
    pairs = _items(wire, MAPPINGS)
    if pairs is None or len(pairs) != len(expected):
        return False
    seen = set()
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            return False
        key = pair[0]
        name = str(key) if type(key) is int else key  # JSON has no other keys than texts
        if not isinstance(name, str) or name not in expected or name in seen:
            return False
        if not matches(expected[name], pair[1], tolerance, depth + 1):
            return False
        seen.add(name)
    return True


def _items(wire: Any, tags: tuple[str, ...]) -> list[Any] | None:
    tagged = isinstance(wire, list) and len(wire) == 2 and wire[0] in tags and isinstance(wire[1], list)
    return wire[1] if tagged else None


def _number(wire: Any) -> int | float | None:
    if isinstance(wire, int | float):
        return wire
    if isinstance(wire, list) and len(wire) == 2 and isinstance(wire[1], str):
        try:
            if wire[0] == "int":
                return int(wire[1], 16)
            if wire[0] == "float":
                return float(wire[1])
        except ValueError:
            return None
    return None


def _close(expected: Any, number: int | float, tolerance: float) -> bool:
    try:
        return math.isclose(expected, number, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an integer beyond the floats
        return False


Failure = tuple[Outcome, str]


class Conversation:
    """A solution that answers calls."""

    def __init__(self, process: SandboxProcess, requests: int) -> None:
        self._process, self._requests = process, requests

    def answer(self, request: list[Any] | None, seconds: float) -> list[Any] | Failure:
        """The next message of the solution, or how it failed; without a request it is the one after loading."""
        if request is not None:
            send(self._process, self._requests, request)
        asked = time.monotonic()
        while not self._process.messages and not self._process.finished:
            # The clock stands still until the sandbox is ready.
            begun = self._process.began if request is None else asked
            left = WATCH_SECONDS if begun is None else begun + seconds - time.monotonic()
            if left <= 0:
                self._process.end(Kind.TIMEOUT, f"more than {seconds:g} s")
            pump([self._process], max(left, 0.001))
        if self._process.messages:
            return self._process.messages.popleft()
        return outcome_of(self._process.ending)


@contextmanager
def conversation(slot: Slot, program: str, seconds: float) -> Iterator[Conversation]:
    """A sandbox process in which the solution waits for calls."""
    request_in, request_out = os.pipe()
    answer_in, answer_out = os.pipe()
    os.set_blocking(request_out, False)
    try:
        channels = (request_in, answer_out)
        with slot.process("solution", program, b"", seconds, channels, report=answer_in) as process:
            os.close(request_in)
            os.close(answer_out)
            request_in = answer_out = -1
            yield Conversation(process, request_out)
    finally:
        for descriptor in (request_in, answer_out, request_out):
            if descriptor >= 0:
                os.close(descriptor)


def run_calls(slot: Slot, program: str, tests: Tests, settings: ProgramSettings, tally: Tally) -> None:
    """Call the function with every test's arguments; after a call that ended the process the rest get a new one."""
    place = 0
    while place < len(tests) and not tally.over:
        if tally.seconds <= 0:
            tally.out_of_time(place)
            return
        with conversation(slot, program, settings.total(len(tests))) as solution:
            place = _run_some(solution, tests, settings, tally, place)


def _run_some(solution: Conversation, tests: Tests, settings: ProgramSettings, tally: Tally, place: int) -> int:
    """Tests from `place` on until one ends the process; the place of the next."""
    loaded = solution.answer(None, tally.seconds)
    failure = _failure(loaded, "loaded")
    if failure is not None:
        for left in range(place, len(tests)):
            tally.failed(left, *failure)
        return len(tests)
    while place < len(tests) and not tally.over:
        if tally.seconds <= 0:
            tally.out_of_time(place)
            return len(tests)
        reply = solution.answer(_request(tests, place), tally.seconds)
        failure = _failure(reply, "value")
        if failure is not None:
            tally.failed(place, *failure)
        elif matches(tests.outputs[place], reply[1], settings.tolerance):
            tally.passed()
        else:
            tally.failed(place, Outcome.WRONG, f"{shown(reply[1])} for {shown(tests.outputs[place])}")
        place += 1
        if isinstance(reply, tuple):
            return place
    return place


def _request(tests: Tests, place: int) -> list[Any]:
    return ["entry", tests.function, [encode(value, _refuse) for value in tests.inputs[place]]]


def _failure(reply: list[Any] | Failure, wanted: str) -> Failure | None:
    """What went wrong, where `reply` is not the `wanted` message."""
    if isinstance(reply, tuple):
        return reply
    if reply and reply[0] == wanted and (wanted == "loaded" or len(reply) >= 2):
        return None
    if len(reply) >= 4 and reply[0] == "raise":
        outcome = Outcome.MEMORY if reply[1] == "MemoryError" else Outcome.RUNTIME_ERROR
        name, text = (part if isinstance(part, str) else shown(part) for part in (reply[1], reply[3]))
        return outcome, f"{name}: {text}"[:300]
    return Outcome.KILLED, "an answer of no known kind"


def shown(value: Any) -> str:
    """A value for a message, however deep or long it is."""
    text = reprlib.repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _refuse(value: Any) -> list[Any]:
    raise CodecError(f"an argument of type {type(value).__name__}")  # tests come from JSON and hold none
