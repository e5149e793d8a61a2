"""Stop strings: found in the decoded tail of a completion, also where they span tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

TokenIds = Sequence[int] | NDArray[np.int64]


class StopStrings:
    """Looks for stop strings as tokens arrive; one object for all requests of an engine.

    The tail that is decoded has one token for every byte of the longest stop string and a few more, because a token is
    at least a byte, and a decoder may drop a space in front of its first token.
    """

    _SPARE = 4
    _REMEMBERED = 256  # sets of stop strings; an endpoint meets ever new ones

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}
        self._endings: dict[tuple[str, ...], dict[int, bool]] = {}

    def found(self, stops: tuple[str, ...], token_ids: TokenIds, since: int = 0) -> bool:
        """Whether a stop string ends within the last of `token_ids`; those before `since` are not looked at."""
        if not stops or not self.may_end(stops, int(token_ids[-1])):
            return False
        longest = max(len(stop.encode()) for stop in stops) + self._SPARE
        text = self._decode(token_ids[max(since, len(token_ids) - longest) :])
        return any(stop in text for stop in stops)

    def may_end(self, stops: tuple[str, ...], token: int) -> bool:
        """A cheap test that spares decoding most tails: can `token` hold the last character of a stop string?"""
        if stops not in self._endings and len(self._endings) >= self._REMEMBERED:
            self._endings.clear()
        known = self._endings.setdefault(stops, {})
        if token not in known:
            known[token] = self._holds_an_end(stops, token)
        return known[token]

    def _holds_an_end(self, stops: tuple[str, ...], token: int) -> bool:
        if token not in self._pieces:
            self._pieces[token] = self._decode([token])
        piece = self._pieces[token]
        # A lone token may decode to the replacement sign (part of a character) and may lose spaces at its ends.
        return "\ufffd" in piece or any(stop[-1] in piece or stop[-1].isspace() for stop in stops)

    def _decode(self, tokens: TokenIds) -> str:
        ids = [int(token) for token in tokens]
        text = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text
