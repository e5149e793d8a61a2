"""Requests inside an engine: their limits, the check against them, and the state of one that waits or runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from strop.base.types import InputError, IntArray
from strop.engines.continuation import Chain, ContinuationPlan, StopStrings, StopWatch
from strop.engines.protocol import Request, Sampling
from strop.engines.sampling import stream_key
from strop.model.attention_kinds import longest_sequence


@dataclass(frozen=True)
class RequestLimits:
    """The longest prompt + completion, the vocabulary, and the ids that end every completion."""

    max_tokens: int
    vocabulary: int
    end_ids: tuple[int, ...]

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        vocabulary: int,
        end_ids: object,
        tokenizer: PreTrainedTokenizerBase,
        max_tokens: int | None,
    ) -> RequestLimits:
        """The limits of a model, whose own longest sequence `max_tokens` may shorten.

        Args:
            config: the model's, as transformers writes it.
            end_ids: the end-of-sequence ids of its generation configuration: a number, a list, or None.
            tokenizer: its own end-of-sequence id counts too.

        Raises:
            InputError: the model cannot do as many tokens, or does not say how many it can do.
        """
        longest = longest_sequence(config)
        if max_tokens is None and longest is None:
            raise InputError("the model does not say how long a sequence may be: set engine.max_tokens")
        if max_tokens is not None and longest is not None and max_tokens > longest:
            raise InputError(f"engine.max_tokens {max_tokens} is beyond the model's {longest} positions")
        given = [*(end_ids if isinstance(end_ids, list) else [end_ids]), tokenizer.eos_token_id]
        ends = tuple(sorted({int(one) for one in given if isinstance(one, int)}))
        return cls(max_tokens or int(longest or 0), vocabulary, ends)

    def refuse_sequence(self, ids: IntArray, spare: int = 0) -> None:
        """Refuse tokens that an engine cannot score which needs so many `spare` places after them.

        Raises:
            InputError: there are none, too many, or unknown ones.
        """
        if not 1 <= len(ids) <= self.max_tokens - spare:
            raise InputError(f"a sequence of {len(ids)} tokens cannot be scored: at most {self.max_tokens - spare}")
        if ids.min() < 0 or ids.max() >= self.vocabulary:
            raise InputError(f"token ids {ids.min()} to {ids.max()} are outside the {self.vocabulary} known")

    def stop_ids(self, sampling: Sampling) -> tuple[int, ...]:
        """Every id that ends a completion drawn like this."""
        return tuple(sorted({*self.end_ids, *sampling.stop_token_ids}))


@dataclass(eq=False)
class SlotEntry:
    """A submitted request: its next samples wait, `donor` is the slot that last held its prompt."""

    request: Request
    ids: NDArray[np.int64]
    stop_ids: tuple[int, ...]
    plan: ContinuationPlan
    watch: StopWatch
    next_index: int = 0
    donor: int | None = None

    @property
    def waiting(self) -> int:
        """Samples that have not been given a slot yet."""
        return self.request.n - self.next_index

    @property
    def prefix(self) -> NDArray[np.int64]:
        """The prompt but its last token, which the first decoding step feeds."""
        return self.ids[:-1]


class RunningSequence:
    """One running sample."""

    def __init__(self, entry: SlotEntry, index: int) -> None:
        self.entry = entry
        self.index = index
        self.key = stream_key(entry.request.seed, index)
        self.chain = Chain(entry.plan, self.key, entry.watch)


def checked(
    request: Request, limits: RequestLimits, tokenizer: PreTrainedTokenizerBase, strings: StopStrings
) -> SlotEntry:
    """The request ready to wait for a slot; `strings` are those of `tokenizer`.

    Raises:
        InputError: one line that names the request and what it asks too much of.
    """
    name, sampling = f"request {request.id}", request.sampling
    ids = np.asarray(request.prompt_ids)
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
        raise InputError(f"{name}: the prompt must be a non-empty row of token ids, not {ids.dtype} {ids.shape}")
    if ids.min() < 0 or ids.max() >= limits.vocabulary:
        raise InputError(f"{name}: prompt ids {ids.min()} to {ids.max()} are outside the {limits.vocabulary} known")
    if len(ids) + sampling.max_new_tokens > limits.max_tokens:
        raise InputError(
            f"{name}: {len(ids)} prompt tokens + max_new_tokens {sampling.max_new_tokens} exceed the engine's "
            f"{limits.max_tokens}; shorten one of them"
        )
    if request.n < 1:
        raise InputError(f"{name}: n = {request.n}, ask for at least one sample")
    strange = [one for one in sampling.stop_token_ids if not 0 <= one < limits.vocabulary]
    if strange:
        raise InputError(f"{name}: stop_token_ids {strange} are outside the {limits.vocabulary} known")
    stop_ids = limits.stop_ids(sampling)
    plan = ContinuationPlan.of(sampling, tokenizer, stop_ids)
    return SlotEntry(
        request, ids.astype(np.int64), stop_ids, plan, StopWatch(frozenset(stop_ids), sampling.stop, strings)
    )
