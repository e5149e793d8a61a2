"""Frames and values on the wire: exact round trips, and nothing that a hostile writer sends is believed or costly."""

from __future__ import annotations

import datetime
import json
import time
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop_verify.sandbox.guest.wire import MAX_DEPTH, CodecError, FrameError, FrameReader, decode, encode, frame, parse

plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(min_value=-(10**60), max_value=10**60), st.text(),
    st.floats(allow_nan=False), st.binary(max_size=20), st.complex_numbers(allow_nan=False),
    st.fractions(), st.decimals(allow_nan=False), st.dates(), st.datetimes(), st.timedeltas(), st.just(range(1, 9, 2)),
)  # fmt: skip
keys = st.one_of(st.integers(), st.text(max_size=5), st.tuples(st.integers(), st.text(max_size=3)))
values = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.lists(inner, max_size=3).map(deque),
        st.dictionaries(keys, inner, max_size=4), st.sets(keys, max_size=4), st.frozensets(keys, max_size=4),
        st.lists(keys, max_size=4).map(Counter), st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=20,
)  # fmt: skip
json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8), st.sampled_from(["list", "dict", "int", "handle", "set", "range", "Decimal", "date"]),
    ),
    lambda inner: st.lists(inner, max_size=4), max_leaves=20,
)  # fmt: skip


def no_handles(value: Any) -> Any:
    raise CodecError("a handle")


@given(values)
def test_values_come_back_with_their_types(value: Any) -> None:
    wire = parse(json.dumps(["x", encode(value, no_handles)]).encode())[1]
    back = decode(wire, no_handles)
    assert back == value
    assert type(back) is type(value)


class Sly(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize("value", [Sly(3), object(), len, type("T", (list,), {})(), Ellipsis, int, iter([])])
def test_everything_else_is_a_handle(value: Any) -> None:
    assert encode([value], lambda it: ["handle", 7]) == ["list", [["handle", 7]]]


def test_special_floats_and_kin() -> None:
    assert str(decode(encode(float("nan"), no_handles), no_handles)) == "nan"
    assert decode(encode(-float("inf"), no_handles), no_handles) == -float("inf")
    assert decode(encode(defaultdict(int, {1: 2}), no_handles), no_handles) == {1: 2}
    assert encode(10**30, no_handles) == ["int", "0xc9f2c9cd04674edea40000000"]
    assert encode((1, "a"), no_handles) == ["tuple", [1, "a"]]
    assert encode(datetime.date(2024, 5, 6), no_handles) == ["date", "2024-05-06"]
    assert encode(Fraction(1, 2), no_handles) == ["Fraction", 1, 2]
    assert encode(Decimal("1.50"), no_handles) == ["Decimal", "1.50"]


def test_what_is_too_deep_or_goes_in_circles_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop_verify.sandbox.guest.wire.MAX_NODES", 10_000)
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = 0
    for _ in range(MAX_DEPTH + 2):
        deep = [deep]
    doubled: Any = [0]
    for _ in range(40):
        doubled = [doubled, doubled]
    for value in (circle, deep, doubled):
        with pytest.raises(CodecError):
            encode(value, no_handles)


@given(json_values)
def test_any_wire_form_is_a_value_or_a_codec_error(wire: Any) -> None:
    try:
        decode(wire, lambda handle: object())
    except CodecError:
        return


messages = st.lists(st.lists(json_values, max_size=3), max_size=5)


@given(messages, st.lists(st.integers(1, 9), min_size=1, max_size=50))
def test_frames_come_back_however_they_are_cut(sent: list[list[Any]], cuts: list[int]) -> None:
    data = b"".join(frame(message) for message in sent)
    reader, got, position = FrameReader(), [], 0
    for place in range(len(data)):
        size = cuts[place % len(cuts)]
        got += reader.feed(data[position : position + size])
        position += size
    assert got == sent


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_are_frames_or_a_frame_error(chunks: list[bytes]) -> None:
    reader = FrameReader(limit=1000)
    try:
        for chunk in chunks:
            for message in reader.feed(chunk):
                assert isinstance(message, list)
    except FrameError:
        return


@given(st.binary(max_size=60) | st.text(alphabet='[]{}",:0123456789.eE-NaIfintyrul \\', max_size=40).map(str.encode))
def test_any_body_is_an_array_or_a_frame_error(body: bytes) -> None:
    try:
        found = parse(body)
    except FrameError:
        return
    assert isinstance(found, list)


@pytest.mark.parametrize(
    "body",
    [b"", b"3", b"{}", b'[{"a": 1}]', b"[NaN]", b"[Infinity]", b"[1", b"[" * 100_000, b"[" + b"9" * 100_000 + b"]",
     b"\xff\xfe", b"null"],
)  # fmt: skip
def test_bodies_that_are_refused_at_once(body: bytes) -> None:
    began = time.thread_time()
    with pytest.raises(FrameError):
        parse(body)
    assert time.thread_time() - began < 0.5


def test_a_long_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(FrameError, match="4294967295"):
        FrameReader().feed(b"\xff\xff\xff\xff")
