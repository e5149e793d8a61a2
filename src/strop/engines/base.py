"""The common part of engines that sample token ids: the limits of requests, open requests, failures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from strop.base import progress
from strop.base.types import Completion, ExpertArray, FinishReason, FloatArray, InputError, IntArray, StropError
from strop.engines.continuation import Chain, ContinuationPlan, StopStrings, StopWatch
from strop.engines.protocol import Capabilities, Drawn, EngineLost, Request, Sampling
from strop.engines.sampling import stream_key
from strop.model import endings
from strop.model.attention_kinds import longest_sequence

if TYPE_CHECKING:
    from strop.model.policy import Policy


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
        """The limits of a model. `max_tokens` may be shorter than the model's longest sequence.

        Args:
            config: the model's, as transformers writes it.
            end_ids, tokenizer: see `endings.end_ids`.

        Raises:
            InputError: the model cannot do as many tokens, or does not say how many it can do.
        """
        longest = longest_sequence(config)
        if max_tokens is None and longest is None:
            raise InputError("the model does not say how long a sequence may be: set engine.max_tokens")
        if max_tokens is not None and longest is not None and max_tokens > longest:
            raise InputError(f"engine.max_tokens {max_tokens} is beyond the model's {longest} positions")
        return cls(max_tokens or int(longest or 0), vocabulary, endings.end_ids(end_ids, tokenizer))

    @classmethod
    def of_policy(cls, policy: Policy, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None) -> RequestLimits:
        """The limits of a policy's model; see `of`."""
        generation = policy.model.generation_config
        end_ids = None if generation is None else generation.eos_token_id
        return cls.of(policy.model.config.to_dict(), policy.vocabulary, end_ids, tokenizer, max_tokens)

    def refuse_sequence(self, ids: IntArray, spare: int = 0) -> None:
        """Refuse tokens that cannot be scored by an engine which needs `spare` free positions after them.

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
    """A submitted request, some of whose samples wait; `donor` is the slot that last held its prompt."""

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
    """The entry of a request that is within the limits; `strings` are those of `tokenizer`.

    Raises:
        InputError: one line that names the request and the limit.
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


Row = Sequence[float] | NDArray[np.int64] | NDArray[np.float32]


class BaseEngine(ABC):
    """The part of `strop.engines.protocol.Engine` that does not depend on how tokens are drawn."""

    def __init__(
        self,
        limits: RequestLimits,
        slots: int,
        tokenizer: PreTrainedTokenizerBase,
        version: int,
        whole_logprobs: bool = True,
    ) -> None:
        self._limits = limits
        self._at_once = slots
        self._whole_logprobs = whole_logprobs
        self._tokenizer = tokenizer
        self._strings = StopStrings(tokenizer)
        self._version = version
        self._failure: StropError | None = None
        self._open: dict[str, int] = {}  # samples not yet reported, by the id of their request
        self._drawn = self._most = 0  # tokens drawn since it was idle, and what they can become in the end
        self._reports: list[Completion] = []

    @property
    def capabilities(self) -> Capabilities:
        """The limits of the engine."""
        most = self._limits.max_tokens
        return Capabilities(most, self._at_once, self._whole_logprobs, self._limits.end_ids)

    @property
    def weight_version(self) -> int:
        """The version of the weights that draw."""
        return self._version

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not yet reported."""
        return sum(self._open.values())

    def check(self, sampling: Sampling) -> None:
        """Refuse sampling options that no request could use here, before there is a request.

        Raises:
            InputError: see `ContinuationPlan.of`.
        """
        ContinuationPlan.of(sampling, self._tokenizer, self._limits.stop_ids(sampling))

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InputError: the engine has failed, the id is in use, or the request is outside its limits.
        """
        self._refuse_if_failed()
        if request.id in self._open:
            raise InputError(f"request {request.id}: a request of this id is unfinished; use another id")
        self._enqueue(checked(request, self._limits, self._tokenizer, self._strings))
        if not self._open:
            self._drawn = self._most = 0
        self._most += request.n * request.sampling.max_new_tokens
        self._open[request.id] = request.n

    def cancel(self, request_id: str) -> None:
        """Forget a request; the next `step` reports its samples, finish_reason `abort`, those never started empty."""
        if request_id in self._open:
            self._abort(request_id)

    @abstractmethod
    def verify_weights(self, probe_ids: IntArray) -> FloatArray:
        """Log-probs [L - 1] of `probe_ids` [L] after the first, temperature 1, from this engine's weights and head.

        Raises:
            InputError: there are no tokens, too many, or some that the model does not know.
        """

    def drawn(self, since: Mapping[tuple[str, int], int]) -> list[Drawn]:
        """The tokens that running samples drew since; see `strop.engines.protocol.Streaming`."""
        found = []
        for entry, index, token_ids, logprobs in self._in_flight():
            start = since.get((entry.request.id, index))
            if start is not None and start < len(token_ids):
                new = np.array(token_ids[start:], np.int32), np.array(logprobs[start:], np.float32)
                found.append(Drawn(entry.request.id, index, *new))
        return found

    @abstractmethod
    def _in_flight(self) -> Iterator[tuple[SlotEntry, int, Row, Row]]:
        """Request, sample, tokens and log-probs of each running sample."""

    @abstractmethod
    def _enqueue(self, entry: SlotEntry) -> None:
        """Queue a checked request."""

    @abstractmethod
    def _abort(self, request_id: str) -> None:
        """Drop an unfinished request, and report its samples as aborted."""

    def _drew(self, tokens: int) -> None:
        """Record that running samples drew so many tokens, or ended."""
        self._drawn += tokens
        progress.part("tokens", self._drawn, self._most, at_most=True)

    def _reported(self) -> list[Completion]:
        """The completions to return now."""
        if self._reports:
            self._drew(0)
        reports, self._reports = self._reports, []
        for completion in reports:
            self._open[completion.request_id] -= 1
            if not self._open[completion.request_id]:
                del self._open[completion.request_id]
        return reports

    def _refuse_if_failed(self) -> None:
        if self._failure is not None:
            kind = EngineLost if isinstance(self._failure, EngineLost) else InputError
            raise kind(f"this engine cannot go on ({self._failure}); make a new one")

    def _refuse_older(self, version: int) -> None:
        if version < self._version:
            raise InputError(f"weights of version {version} are older than the engine's {self._version}")

    def _report(
        self,
        entry: SlotEntry,
        index: int,
        chain: Chain | None,
        token_ids: NDArray[np.int64],
        logprobs: NDArray[np.float32],
        reason: FinishReason,
        entropies: NDArray[np.float32] | None = None,
        routed_experts: ExpertArray | None = None,
    ) -> None:
        """Let the next step return a completion; `chain` is None if the sample was never started."""
        length = len(token_ids)
        if routed_experts is not None and routed_experts.max(initial=0) < 255:  # a number more must fit too
            routed_experts = routed_experts.astype(np.uint8)
        self._most -= entry.request.sampling.max_new_tokens - length
        if chain is not None:
            chain.drawn_by(self._version, length)
        self._reports.append(
            Completion(
                request_id=entry.request.id,
                index=index,
                prompt_ids=entry.request.prompt_ids,
                token_ids=token_ids.astype(np.int32),
                logprobs=logprobs.astype(np.float32),
                versions=() if chain is None else tuple(chain.versions),
                injected=np.zeros(length, np.bool_) if chain is None else chain.injected(length),
                text=endings.text_of(self._tokenizer, token_ids.tolist(), self._limits.end_ids),
                finish_reason=reason,
                interrupted_at=None if chain is None else chain.interrupted_at(length),
                entropies=entropies,
                routed_experts=routed_experts,
            )
        )
