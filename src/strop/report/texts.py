"""Tokens as pieces of text, and untrusted text made visible.

Completions are whatever a model wrote: markup, scripts, control characters, half characters. The template escapes
markup; `visible` does the rest.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

CONTEXT = 8  # tokens before one that decide how it is written (a leading space, the start of a character)
BROKEN = "\N{REPLACEMENT CHARACTER}"


def visible(text: str) -> str:
    """The text with characters that are invisible or turn the text around written as their number."""
    return "".join(map(_visible, text))


def plain(text: str, length: int) -> str:
    """A text on one line of at most `length` characters, for a figure."""
    return clip(" ".join(visible(text).split()), length)


def _visible(letter: str) -> str:
    if letter in "\n\t" or letter.isprintable():
        return letter
    code = ord(letter)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\N{SYMBOL FOR DELETE}"
    # Spaces of other widths are harmless; directions, joiners, surrogates and unassigned characters are not.
    return " " if unicodedata.category(letter) == "Zs" else f"⟨U+{code:04X}⟩"


def clip(text: str, length: int) -> str:
    """At most `length` characters of it."""
    return text if len(text) <= length else text[: length - 1] + "…"


def pieces(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The text that each token adds to the ones before it.

    Where several tokens make one character, the last of them has it and the others have none.
    """
    found: list[str] = []
    begin = 0  # the first token whose text is not given out yet
    for end in range(1, len(ids) + 1):
        context = ids[max(0, begin - CONTEXT) : begin]
        before = _decode(tokenizer, context)
        whole = _decode(tokenizer, [*context, *ids[begin:end]])
        added = whole[len(before) :] if whole.startswith(before) else _decode(tokenizer, ids[begin:end])
        # Half a character is waited for, but not longer than a character can be.
        if added.endswith(BROKEN) and end < len(ids) and end - begin < 4:
            found.append("")
            continue
        found.append(added)
        begin = end
    return found


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    text = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return str(text)
