"""How a completion goes on: a chain of spans, some sampled by the engine, some injected.

    chain.phase                                     # tokens to inject (perhaps none), then a budget of sampled ones
    ending = chain.ending(token_ids)                # after a sampled token: a stop, the marker, the budget, or None
    reason = chain.follow(len(token_ids), ending)   # None: `chain.phase` is the next one; else why the completion ends

Every engine follows a `Chain`, one object for each sample. An engine that samples token by token asks at each token;
one that talks to a server makes a request of every phase. A `ContinuationPlan` says what the phases are: thinking up to
its marker, its budget or a forced interruption, then the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from strop.base.types import BoolArray, FinishReason, InputError, VersionSpan
from strop.engines.protocol import Sampling
from strop.engines.sampling import position_stream, uniforms
from strop.model.endings import text_of

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
        """Whether `token` may contain the last character of a stop string; a cheap test that avoids most decoding."""
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
        return text_of(self._tokenizer, [int(token) for token in tokens])


# Why a sampled span ended: a stop id or stop string, the phase's marker, or its budget. Where several hold at the same
# token, the first of them counts.
Ending = Literal["stop", "marker", "budget"]


@dataclass(frozen=True)
class Phase:
    """A span of sampled tokens and what comes before it.

    Attributes:
        budget: most tokens to sample, at least 1.
        inject: token ids to put in front: context, never trained.
        marker: a text that ends the phase as soon as the sampled tokens since the last injection hold it, or None.
    """

    budget: int
    inject: tuple[int, ...] = ()
    marker: str | None = None


@dataclass(frozen=True)
class ContinuationPlan:
    """How the samples of a request go on.

    Attributes:
        total: most tokens of a completion, injected ones included.
        thinking: most tokens of thinking, its marker included.
        answer: most tokens after thinking, or None.
        marker: the text that ends thinking; None where its end changes nothing.
        phrase: the tokens of an interruption.
        after: (a, b), where the interruption comes, or None: never.
    """

    total: int
    thinking: int
    answer: int | None = None
    marker: str | None = None
    phrase: tuple[int, ...] = ()
    after: tuple[int, int] | None = None

    @classmethod
    def of(cls, sampling: Sampling, tokenizer: PreTrainedTokenizerBase, stop_ids: tuple[int, ...]) -> ContinuationPlan:
        """The plan of `sampling`.

        Raises:
            InputError: a phrase without tokens or with one that ends a completion, or no room for it and the answer.
        """
        total, asked = sampling.max_new_tokens, sampling.interruption
        if not sampling.watches_thinking:
            return cls(total, total)
        if asked is None:
            thinking = min(total, sampling.thinking_tokens or total)
            return cls(total, thinking, sampling.answer_tokens, sampling.end_of_thinking)
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
        return cls(total, total, sampling.answer_tokens, sampling.end_of_thinking, tuple(ids), asked.after)

    def position(self, key: int) -> int | None:
        """After how many tokens the sample whose stream has `key` is interrupted, uniform in [a, b]; None: never."""
        if self.after is None:
            return None
        first, last = self.after
        uniform = float(uniforms(np.array([position_stream(key)], np.uint64), np.zeros(1, np.int64))[0])
        return first + int(uniform * (last - first + 1))


@dataclass(frozen=True)
class StopWatch:
    """The stop ids and stop strings of a request."""

    stop_ids: frozenset[int]
    stops: tuple[str, ...]
    strings: StopStrings


class Chain:
    """The position of one sample in its chain of spans.

    Attributes:
        phase: the current phase.
        phase_end: how many tokens the completion has when the budget of the phase is spent.
        sampled_from: its first token after the last injection; stop strings are looked for from there on.
        versions: which weights drew which tokens, as far as is known.
    """

    def __init__(self, plan: ContinuationPlan, key: int, watch: StopWatch) -> None:
        """The chain of the sample whose stream has `key`."""
        self.sampled_from = 0
        self.versions: list[VersionSpan] = []
        self._plan = plan
        self._position = plan.position(key)
        self._thinks = True
        self._watch = watch
        self._injections: list[tuple[int, int]] = []
        if self._position == 0:
            self._answer(0, plan.phrase)
        else:
            self._begin(0, Phase(self._position or plan.thinking, marker=plan.marker))

    def _begin(self, done: int, phase: Phase) -> None:
        self.phase = phase
        start = done + len(phase.inject)
        self.phase_end = start + phase.budget
        if phase.inject:
            self.sampled_from = start
            self._injections.append((done, start))

    def ending(self, token_ids: TokenIds) -> Ending | None:
        """How the phase ends with the last of the completion's tokens, which was sampled; None: it goes on."""
        if int(token_ids[-1]) in self._watch.stop_ids:
            return "stop"
        return self.text_ending(token_ids) or ("budget" if len(token_ids) >= self.phase_end else None)

    def text_ending(self, token_ids: TokenIds) -> Ending | None:
        """As `ending`, but only for stop strings and the marker."""
        found, marker = self._watch.strings.found, self.phase.marker
        if found(self._watch.stops, token_ids, self.sampled_from):
            return "stop"
        if marker is not None and found((marker,), token_ids, self.sampled_from):
            return "marker"
        return None

    def follow(self, done: int, ending: Ending) -> FinishReason | None:
        """Go over to the next phase after the completion's `done` tokens; or why it ends here."""
        if ending == "stop":
            return "stop"
        if not self._thinks or (ending == "budget" and self._position is None):
            return "length"
        return self._answer(done, self._plan.phrase if ending == "budget" else ())

    def _answer(self, done: int, inject: tuple[int, ...]) -> FinishReason | None:
        self._thinks = False
        budget = self._plan.total - done - len(inject)
        if self._plan.answer is not None:
            budget = min(budget, self._plan.answer)
        if budget <= 0:
            return "length"
        self._begin(done, Phase(budget, inject))
        return None

    def drawn_by(self, version: int, end: int) -> None:
        """Mark the tokens up to `end` that have no version yet as drawn by `version`; injected ones too."""
        start = self.versions[-1].end if self.versions else 0
        if end <= start:
            return
        if self.versions and self.versions[-1].version == version:
            start = self.versions.pop().start
        self.versions.append(VersionSpan(version, start, end))

    def injected(self, length: int) -> BoolArray:
        """Which tokens of a completion of `length` tokens were injected, bool [length]."""
        mask = np.zeros(length, np.bool_)
        for start, end in self._injections:
            mask[start:end] = True
        return mask

    def interrupted_at(self, length: int) -> int | None:
        """The first injected token of a completion of `length` tokens, or None."""
        first = next(iter(self._injections), None)
        return None if first is None or first[0] >= length else first[0]
