"""From tokens to text, piece by piece: never half a character, never the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"
_BYTES_OF_A_CHARACTER = 4
_LONGEST_WINDOW, _OVERLAP = 48, 8


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], special: bool = False) -> str:
    """The text of token ids, without the special tokens unless `special`."""
    text = tokenizer.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


class Detokenizer:
    """The text of a growing row of tokens; a character that is not complete yet is held back.

    Only a window of the last tokens is decoded again each time, so that the cost of a token does not grow.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._given = 0  # characters of the window's text that are out
        self.written = 0  # characters that are out altogether
        self.held = 0  # signs at the end that may still become a character

    def push(self, ids: Iterable[int]) -> str:
        """What the new tokens add."""
        self._window += ids
        text = decode(self._tokenizer, self._window)
        self.held = held = 0
        # A character has at most four bytes: of the signs that stand for undecodable bytes the last three may still
        # become one.
        while held < min(_BYTES_OF_A_CHARACTER - 1, len(text)) and text[-1 - held] == REPLACEMENT:
            held += 1
        end = max(self._given, len(text) - held)
        new = text[self._given : end]
        self._given, self.held = end, held
        self.written += len(new)
        if len(self._window) > _LONGEST_WINDOW:
            self._window = self._window[-_OVERLAP:]
            self._given = len(decode(self._tokenizer, self._window)) - held
        return new

    def finish(self) -> str:
        """What was held back."""
        text = decode(self._tokenizer, self._window)
        new = text[self._given :]
        self._given = len(text)
        return new


class Offsets:
    """Where in the text each token of a growing row begins, in characters."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._detokenizer = Detokenizer(tokenizer)

    def push(self, token_id: int) -> int:
        """Where the next token begins; one that goes on with a character, where that begins."""
        detokenizer = self._detokenizer
        begun, end = detokenizer.written, detokenizer.written + detokenizer.held
        detokenizer.push([token_id])
        return end if detokenizer.written + detokenizer.held > end else begun


class TextStream:
    """The text of a completion while it is written: ends before the first stop string.

    What may be the beginning of one is held back until it is not.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: tuple[str, ...]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = stops
        self._held = ""
        self.stopped: str | None = None  # the stop string that ended it

    def push(self, ids: Iterable[int]) -> str:
        """The text that the new tokens let out."""
        return self._let_out(self._detokenizer.push(ids), last=False)

    def finish(self) -> str:
        """The rest, once there are no more tokens."""
        return self._let_out(self._detokenizer.finish(), last=True)

    def _let_out(self, new: str, last: bool) -> str:
        if self.stopped is not None:
            return ""
        text = self._held + new
        found = first_stop(text, self._stops)
        if found is not None:
            cut, self.stopped = found
            return text[:cut]
        keep = 0 if last else beginning_of_stop(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Where the first stop string begins, and which it is."""
    places = [(place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    return min(places, default=None)


def beginning_of_stop(text: str, stops: tuple[str, ...]) -> int:
    """How many of the last characters may be the beginning of a stop string."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest


class Pieces:
    """How single tokens are written in log-prob lists: with the space that they bring, bytes where they are no text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, list[int] | None]] = {}
        # A decoder may drop a space in front of its first token; behind another token it does not.
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._before_text = decode(tokenizer, self._before, special=True)

    def __call__(self, token_id: int) -> str:
        """The token as text; `bytes:\\xe2\\x82` where it is a part of a character."""
        return self._of(token_id)[0]

    def utf8(self, token_id: int) -> list[int] | None:
        """The token's bytes; None where the tokenizer does not say."""
        return self._of(token_id)[1]

    def _of(self, token_id: int) -> tuple[str, list[int] | None]:
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._find(token_id)
        return found

    def _find(self, token_id: int) -> tuple[str, list[int] | None]:
        text = decode(self._tokenizer, [*self._before, token_id], special=True)
        text = text[len(self._before_text) :]
        if REPLACEMENT not in text:
            return text, list(text.encode())
        raw = _raw_bytes(str(self._tokenizer.convert_ids_to_tokens(token_id)))
        if raw is None:
            return text, None
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), list(raw)


def _raw_bytes(token: str) -> bytes | None:
    """The bytes of a token of a byte-level vocabulary, or of a byte-fallback token such as `<0xE2>`."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            return None
    alphabet = _byte_alphabet()
    return bytes(alphabet[letter] for letter in token) if all(letter in alphabet for letter in token) else None


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others follow from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
