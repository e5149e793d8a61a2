"""Following a completion's thinking: where it is to be interrupted, with which tokens, and what may follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from strop.base.types import InputError
from strop.engines.protocol import Sampling
from strop.engines.sampling import position_stream, uniforms


@dataclass(frozen=True, eq=False)
class Thinking:
    """The budget and end of a request's thinking.

    Attributes:
        marker: the text that ends it, alone in a tuple.
        budget: most tokens before the end of thinking is known, within the whole completion's budget.
        answer_tokens: most tokens after it, or None.
        total: most tokens of the whole completion.
        phrase: int64 [K], the tokens of an interruption; none without one.
        after: (a, b), or None without an interruption.
    """

    marker: tuple[str]
    budget: int
    answer_tokens: int | None
    total: int
    phrase: NDArray[np.int64]
    after: tuple[int, int] | None

    @classmethod
    def of(cls, sampling: Sampling, tokenizer: PreTrainedTokenizerBase, stop_ids: tuple[int, ...]) -> Thinking | None:
        """The plan of `sampling`, or None where thinking is nothing special.

        Raises:
            InputError: a phrase without tokens or with one that ends a completion, or no room for it and the answer.
        """
        if not sampling.watches_thinking:
            return None
        total, asked = sampling.max_new_tokens, sampling.interruption
        marker = (sampling.end_of_thinking,)
        if asked is None:
            budget = min(total, sampling.thinking_tokens or total)
            nothing = np.zeros(0, np.int64)
            return cls(marker, budget, sampling.answer_tokens, total, nothing, None)
        ids = tokenizer.encode(asked.phrase, add_special_tokens=False)
        ending = sorted(set(ids) & set(stop_ids))
        if not ids or ending:
            what = f"holds token ids {ending}, which end a completion" if ids else "has no tokens"
            raise InputError(f"sampling.interruption.phrase {asked.phrase!r} {what}; choose another")
        try:
            sampling.fits(len(ids))
        except ValueError as error:
            raise InputError(f"sampling: {error}") from error
        # The interruption comes before a budget of thinking could bind.
        return cls(marker, total, sampling.answer_tokens, total, np.array(ids, np.int64), asked.after)

    def position(self, key: int) -> int | None:
        """After how many tokens the sample whose stream has `key` is interrupted, uniform in [a, b]; None: never."""
        if self.after is None:
            return None
        first, last = self.after
        uniform = float(uniforms(np.array([position_stream(key)], np.uint64), np.zeros(1, np.int64))[0])
        return first + int(uniform * (last - first + 1))

    def budget_after(self, tokens: int) -> int:
        """Most tokens of a completion whose thinking took its first `tokens`."""
        return self.total if self.answer_tokens is None else min(self.total, tokens + self.answer_tokens)
