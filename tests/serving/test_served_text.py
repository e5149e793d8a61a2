"""Text piece by piece: whatever the pieces, it adds up to the whole, and nothing of a stop string gets out."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from tests.tiny import byte_tokenizer

from strop.model.endings import Detokenizer, text_of
from strop.serving.server import Pieces, TextStream, first_stop

TOKENIZER = byte_tokenizer(("\\boxed{",))
DECODE = partial(text_of, TOKENIZER, ends=(256,))
BYTES = st.lists(st.integers(0, 257), max_size=120)
WORDS = st.text("ab€😀 ", max_size=60)
STOPS = st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3).map(tuple)


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def pieces(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@given(BYTES, st.lists(st.integers(0, 1000), max_size=10))
def test_any_bytes_in_any_pieces_add_up_to_their_text(ids: list[int], cuts: list[int]) -> None:
    detokenizer = Detokenizer(DECODE)
    out = "".join(detokenizer.push(piece) for piece in pieces(ids, cuts)) + detokenizer.finish()
    assert out == DECODE(ids)


@given(WORDS)
def test_a_character_comes_whole(text: str) -> None:
    detokenizer = Detokenizer(DECODE)
    for token in ids_of(text):
        assert "\ufffd" not in detokenizer.push([token])
    assert detokenizer.finish() == ""


def test_a_long_row_is_decoded_in_windows_only() -> None:
    detokenizer = Detokenizer(DECODE)
    ids = ids_of("né " * 3000)
    out = "".join(detokenizer.push([token]) for token in ids) + detokenizer.finish()
    assert out == "né " * 3000 and len(detokenizer._window) < 64


@given(WORDS, STOPS, st.lists(st.integers(0, 1000), max_size=20))
def test_a_stream_ends_before_the_first_stop_string(text: str, stops: tuple[str, ...], cuts: list[int]) -> None:
    ids = ids_of(text)
    whole = ""
    stream = TextStream(DECODE, stops)
    for piece in pieces(ids, cuts):
        whole += stream.push(piece)
        assert first_stop(whole, stops) is None
    whole += stream.finish()
    found = first_stop(text, stops)
    if found is None:
        assert whole == text and stream.stopped is None
    else:
        # An engine ends with the token that completes a stop string; given more at once, the earliest one counts.
        assert stream.stopped in stops and first_stop(whole, stops) is None and text.startswith(whole)
        at_once = TextStream(DECODE, stops)
        assert at_once.push(ids) + at_once.finish() == text[: found[0]]


def test_what_may_begin_a_stop_string_is_held_back_until_it_is_none() -> None:
    stream = TextStream(DECODE, ("</answer>",))
    assert [stream.push(ids_of(part)) for part in ("4 <", "/ans", "!</answe", "r> tail")] == ["4 ", "", "</ans!", ""]
    assert stream.stopped == "</answer>" and stream.finish() == ""


def test_pieces_say_what_single_tokens_are() -> None:
    said = Pieces(TOKENIZER)
    assert all("\ufffd" not in said(token) for token in ids_of("€"))
    assert [said(ids_of(text)[0]) for text in ("\\boxed{", " ")] == ["\\boxed{", " "]
    assert said(TOKENIZER.eos_token_id) == "<eos>"
