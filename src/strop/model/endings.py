"""What ends a completion, and the text of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"
MOST_HELD = 3  # a character has at most four bytes
LONGEST_WINDOW, OVERLAP = 48, 8
Decode: TypeAlias = Callable[[Sequence[int]], str]
_TURN = "placeholder4turn"
_CHAT = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _TURN}, {"role": "user", "content": "!"}]


class TurnEnd(NamedTuple):
    """How a chat template ends the assistant's turn: the text, and the first added token in it, or None."""

    text: str
    token: int | None


def turn_end(tokenizer: PreTrainedTokenizerBase) -> TurnEnd:
    """The end of a turn as the tokenizer's chat template writes it; empty where there is none or it shows no turn."""
    from jinja2 import TemplateError

    if not isinstance(tokenizer.chat_template, str | dict):  # none, or an endpoint's, which it does not tell
        return TurnEnd("", None)
    try:
        text = str(tokenizer.apply_chat_template(_CHAT[:2], tokenize=False)).partition(_TURN)[2].strip()
        ids = tokenizer.encode(text, add_special_tokens=False) if text else []
        token = next((one for one in ids if one in tokenizer.added_tokens_decoder), None)
        if token is None:  # a template may write the beginning of the next turn there, which ends nothing
            earlier = str(tokenizer.apply_chat_template(_CHAT, tokenize=False)).partition(_TURN)[2].strip()
            text = commonprefix([text, earlier]).strip()
    except (TemplateError, ValueError):
        return TurnEnd("", None)
    return TurnEnd(text, token)


def end_ids(configured: object, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The ids that end every completion, in order.

    Args:
        configured: the end-of-sequence ids of the model's generation configuration: a number, a list, or None.
        tokenizer: its own end-of-sequence id counts too, and the token with which its chat template ends a turn.
    """
    listed = configured if isinstance(configured, list) else [configured]
    given = [*listed, tokenizer.eos_token_id, turn_end(tokenizer).token]
    return tuple(sorted({int(one) for one in given if isinstance(one, int)}))


def text_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], ends: Collection[int] = ()) -> str:
    """The text of token ids, without `ends` and, if there are any, padding.

    Other special tokens are written out: `</think>`, `<answer>` and `<tool_call>` are some in many tokenizers.
    """
    silent = {*ends, tokenizer.pad_token_id} if ends else ()
    said = [one for one in ids if one not in silent]
    text = tokenizer.decode(said, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


class Detokenizer:
    """The text of a growing row of tokens; a character that is not complete yet is held back.

    Only a window of the last tokens is decoded again each time, so that the cost of a token does not grow.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._given = 0  # characters of the window's text that are out

    def push(self, ids: Iterable[int]) -> str:
        """The text that the new tokens add."""
        self._window += ids
        text = self._decode(self._window)
        held = min(MOST_HELD, len(text) - len(text.rstrip(REPLACEMENT)))  # signs of bytes that may become a character
        end = max(self._given, len(text) - held)
        new = text[self._given : end]
        self._given = end
        if len(self._window) > LONGEST_WINDOW:
            self._window = self._window[-OVERLAP:]
            self._given = len(self._decode(self._window)) - held
        return new

    def finish(self) -> str:
        """The text that was held back."""
        return self._decode(self._window)[self._given :]
