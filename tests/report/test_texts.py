"""Untrusted text: visible and encodable; tokens as pieces that make up the text again."""

from hypothesis import given
from hypothesis import strategies as st

from strop.model.files import byte_tokenizer
from strop.report.runs import clip, visible
from strop.report.samples import pieces


def test_control_characters_and_directions_are_written_out() -> None:
    assert visible("a\x00\x1b[31m\x7f\u202eb\u200b\ud800") == "a␀␛[31m␡⟨U+202E⟩b⟨U+200B⟩⟨U+D800⟩"
    assert visible("line\n\tnext\xa0end") == "line\n\tnext end"


@given(st.text(alphabet=st.characters(), max_size=60))
def test_whatever_is_written_is_text(text: str) -> None:
    found = visible(text)
    found.encode("utf-8")
    assert all(letter in "\n\t" or letter.isprintable() for letter in found)


def test_clip_keeps_what_fits() -> None:
    assert clip("abcd", 4) == "abcd"
    assert clip("abcde", 4) == "abc…"


def test_the_last_token_of_a_character_has_it() -> None:
    tokenizer = byte_tokenizer()
    assert pieces(tokenizer, tokenizer.encode("aé€")) == ["a", "", "é", "", "", "€"]


@given(st.text(max_size=30))
def test_pieces_make_up_the_text(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = [token for token in tokenizer.encode(text) if token < 256]
    found = pieces(tokenizer, ids)
    assert len(found) == len(ids)
    assert "".join(found) == tokenizer.decode(ids)


def test_half_a_character_at_the_end_is_shown() -> None:
    tokenizer = byte_tokenizer()
    assert pieces(tokenizer, tokenizer.encode("€")[:2]) == ["", "\N{REPLACEMENT CHARACTER}"]
