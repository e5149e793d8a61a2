"""Coverage-guided fuzzing of what reads foreign text: answers, program output, frames and values from the sandbox.

    pip install atheris                          # not a dependency: its wheels are for some Pythons only
    python bench/fuzz.py answers --seconds 60    # answers | mathematics | output | frames | values

Each target holds what must be true of any input: nothing but the documented error is raised, an answer is read in time,
equal output is equal, a value that was read back is the value. Prints one JSON line; exits 1 with the input on a find.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable

import atheris

with atheris.instrument_imports(include=["strop"]):
    from strop_verify.code.runners import difference
    from strop_verify.extract import extract_answer
    from strop_verify.math import MathSettings
    from strop_verify.math.compare import compare_readings
    from strop_verify.math.expressions import TooMuch, refuse_answer
    from strop_verify.math.grammar import Reading
    from strop_verify.math.prose import Finder
    from strop_verify.sandbox.guest.wire import CodecError, FrameError, FrameReader, decode, encode

SECONDS_AN_INPUT = 2.0
WHERE = ("boxed", "answer_tag", "last_number", "any")


def answers(data: bytes) -> None:
    """An answer is found and read, in time, whatever the policy wrote."""
    text = data.decode("utf-8", "replace")
    begin = time.perf_counter()
    for where in WHERE:
        extract_answer(text, where)  # type: ignore[arg-type]
    for where in WHERE[:2] + WHERE[3:]:
        _read(text, where)
    assert time.perf_counter() - begin < SECONDS_AN_INPUT, "slow"


def mathematics(data: bytes) -> None:
    """Two answers are held against each other in time, without an error; none is proved to differ from itself."""
    first, _, second = data.decode("utf-8", "replace").partition("\n")
    begin = time.perf_counter()
    readings = [_read(rf"\boxed{{{text}}}", "boxed") for text in (first, second)]
    known = [each for each in readings if each is not None]
    for one in known:
        for other in known:
            proof = compare_readings(one, other, MathSettings())
            assert "in the comparison" not in proof.why, proof.why
            assert one is not other or proof.outcome != "different", "an answer differs from itself"
    assert time.perf_counter() - begin < SECONDS_AN_INPUT, "slow"


def _read(text: str, where: str) -> Reading | None:
    try:
        found = Finder().find(text, where)
    except (TooMuch, RecursionError):
        return None
    return found if isinstance(found, Reading) and refuse_answer(found.answer) is None else None


def output(data: bytes) -> None:
    """Comparing output raises nothing, and output equals itself."""
    provider = atheris.FuzzedDataProvider(data)
    tokens, tolerance = provider.ConsumeBool(), 1e-6 if provider.ConsumeBool() else None
    expected = provider.ConsumeUnicodeNoSurrogates(provider.ConsumeIntInRange(0, 400))
    written = provider.ConsumeUnicodeNoSurrogates(sys.maxsize)
    difference(expected, written, tolerance, tokens)
    assert difference(written, written, tolerance, tokens) == "", "output differs from itself"


def frames(data: bytes) -> None:
    """A stream of frames, cut anywhere, gives messages or a `FrameError`; the cut changes nothing."""
    cut = data[0] if data else 0
    ways: list[list[object] | str] = []
    for parts in ((data[1:],), (data[1 : 1 + cut], data[1 + cut :])):
        reader = FrameReader()
        messages: list[object] = []
        try:
            for part in parts:
                messages += reader.feed(part)
            ways.append(messages)
        except FrameError:
            ways.append("error")
    assert ways[0] == ways[1], "the cut decides"


def values(data: bytes) -> None:
    """A value from the sandbox is read or refused with `CodecError`; what was read can be written and read again."""
    try:
        wire = json.loads(data)
    except (ValueError, RecursionError):
        return
    try:
        value = decode(wire, lambda number: number)
    except CodecError:
        return
    again = decode(json.loads(json.dumps(encode(value, _no_handle))), lambda number: number)
    assert repr(again) == repr(value), "a value changed on its way"


def _no_handle(value: object) -> int:
    return 0


TARGETS: dict[str, Callable[[bytes], None]] = {
    "answers": answers, "mathematics": mathematics, "output": output, "frames": frames, "values": values,
}  # fmt: skip


def main() -> None:
    """Fuzz one target for some seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    chosen = parser.parse_args()
    target, count, end = TARGETS[chosen.target], 0, time.monotonic() + chosen.seconds

    def once(data: bytes) -> None:
        nonlocal count
        count += 1
        target(data)
        if time.monotonic() > end:
            print(json.dumps({"bench": "fuzz", "target": chosen.target, "inputs": count, "seconds": chosen.seconds}))
            sys.stdout.flush()
            os._exit(0)  # an exception would count as a find

    # Its own time limit ends the process without a word; ours prints the line first.
    atheris.Setup([sys.argv[0], "-max_len=4096", f"-max_total_time={chosen.seconds + 30}"], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
