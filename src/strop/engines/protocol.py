"""The engine protocol: token ids in, completions out, weights swapped between steps.

    engine.submit(Request(id="g17", prompt_ids=ids, sampling=Sampling(max_new_tokens=64), n=8, seed=3))
    while engine.unfinished:
        for completion in engine.step():      # each of the n samples is reported as it finishes
            ...

An engine is synchronous: one `step` samples one token for every running sequence, or collects the tokens that a server
has drawn. Streaming and asyncio are adapters around it. A request that an engine cannot honour raises at `submit`; it
is never silently altered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, Self, TypeAlias, runtime_checkable

from pydantic import Field, model_validator

from strop.base.pieces import OneOrMore, Settings
from strop.base.types import Completion, FloatArray, IntArray, StropError

if TYPE_CHECKING:
    from torch import Tensor


Count = Annotated[int, Field(ge=1)]
NonEmpty = Annotated[str, Field(min_length=1)]

# ScaleRL, Section 4.
PHRASE = "Okay, time is up. Let me stop thinking and formulate an answer now. </think>"


class Interruption(Settings):
    """A forced end of thinking: the tokens of `phrase` replace the model's next tokens.

    Attributes:
        after: (a, b); the phrase comes after n thinking tokens. n is uniform over a, a + 1, …, b and depends only on
            the sample's (seed, i). A completion that ends its thinking within n tokens is not interrupted.
        phrase: encoded separately and appended to the sampled tokens. Its tokens are context: log-prob 0, `injected`,
            never trained. Thinking is over after it, whether it contains the marker or not.
    """

    after: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]
    phrase: NonEmpty = PHRASE

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.after[0] > self.after[1]:
            raise ValueError(f"after={list(self.after)}: give the earliest position first")
        return self


class Sampling(Settings):
    """How tokens are drawn. Recorded log-probs are always of logits / temperature over the whole vocabulary.

    `temperature = 0` is greedy (log-probs then at temperature 1); `top_p = 1` and `top_k = None` leave the
    distribution whole, as training wants it.

    Thinking is everything from the first completion token to the end of the first `end_of_thinking` in the completion's
    text, whether the prompt or the completion opened it; the answer is what follows. Both have budgets within the
    whole completion's, and a completion that spends one ends with `length`.

    Attributes:
        max_new_tokens: of the whole completion, injected tokens included.
        thinking_tokens: most tokens of thinking, its end marker included. None: no bound.
        answer_tokens: most tokens after the marker, or after an interruption's phrase. None: no bound.
        end_of_thinking: the marker.
        interruption: a forced end of thinking. None: never.
        stop: strings that end a completion; looked for only in sampled tokens, never in or across an injected phrase.
    """

    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=1)] | None = None
    max_new_tokens: Count = 128
    stop: OneOrMore[NonEmpty] = ()
    stop_token_ids: OneOrMore[Annotated[int, Field(ge=0)]] = ()
    thinking_tokens: Count | None = None
    answer_tokens: Count | None = None
    end_of_thinking: NonEmpty = "</think>"
    interruption: Interruption | None = None

    @model_validator(mode="after")
    def _budgets_agree(self) -> Self:
        parts = {"thinking_tokens": self.thinking_tokens, "answer_tokens": self.answer_tokens}
        given = {name: tokens for name, tokens in parts.items() if tokens is not None}
        if sum(given.values()) > self.max_new_tokens:
            asked = " + ".join(f"{name}={tokens}" for name, tokens in given.items())
            raise ValueError(f"{asked} exceed max_new_tokens={self.max_new_tokens}; raise it to {sum(given.values())}")
        if self.interruption is not None:
            last = self.interruption.after[1]
            if self.thinking_tokens is not None and last > self.thinking_tokens:
                raise ValueError(
                    f"interruption.after={list(self.interruption.after)} reaches beyond "
                    f"thinking_tokens={self.thinking_tokens}; lower the one or raise the other"
                )
            self.fits(1)
        return self

    def fits(self, phrase_tokens: int) -> None:
        """Refuse a `max_new_tokens` that the latest interruption and the answer after it would not fit into.

        Raises:
            ValueError: one line that names the keys.
        """
        if self.interruption is None:
            return
        least = self.interruption.after[1] + phrase_tokens + (self.answer_tokens or 1)
        if least > self.max_new_tokens:
            answer = "an answer" if self.answer_tokens is None else f"answer_tokens={self.answer_tokens}"
            raise ValueError(
                f"interruption.after={list(self.interruption.after)}, its phrase of {phrase_tokens} tokens or more "
                f"and {answer} need max_new_tokens={least} at least, it is {self.max_new_tokens}"
            )

    @property
    def watches_thinking(self) -> bool:
        """Whether the end of thinking changes what happens to a completion."""
        return not (self.thinking_tokens is None and self.answer_tokens is None and self.interruption is None)

    @property
    def truncates(self) -> bool:
        """Whether some tokens can never be drawn, so that recorded log-probs are not the sampling distribution's."""
        return self.top_p < 1 or self.top_k is not None or self.temperature == 0


class EngineLost(StropError):
    """The server or process behind an engine is gone, hangs, or sends invalid answers; another one may serve.

    A worker that raises it is replaced, and its requests are generated again.
    """


@dataclass(frozen=True, eq=False)
class Request:
    """`n` completions of one prompt; sample i is drawn from the stream of uniforms of (seed, i), whatever its slot.

    `watched`: a reader follows it by `Streaming.drawn` and wants each token as soon as it is drawn.
    `keeps`: later requests may continue its samples; `continues`: the `trajectory` that this one continues.
    """

    id: str
    prompt_ids: IntArray
    sampling: Sampling
    seed: int
    n: int = 1
    watched: bool = False
    keeps: bool = False
    continues: str | None = None

    def trajectory(self, index: int) -> str:
        """The name under which sample `index` is continued."""
        return self.continues or f"{self.id}/{index}"


@dataclass(frozen=True)
class Capabilities:
    """The limits of an engine.

    Attributes:
        max_tokens: the longest prompt + completion.
        slots: sequences that run at once.
        whole_logprobs: whether log-probs under top-k or top-p are of the whole vocabulary; else they are NaN.
        end_ids: the ids that end every completion; its text is without them.
    """

    max_tokens: int
    slots: int | None = None
    whole_logprobs: bool = True
    end_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Health:
    """`ok` is False when the engine must not be used any more; `detail` says why."""

    ok: bool
    detail: str
    running: int
    waiting: int


KvMode = Literal["keep", "recompute"]
WeightSource: TypeAlias = "Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]"


class Engine(Protocol):
    """A generator as the loop sees it."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def weight_version(self) -> int: ...

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not yet reported, running or waiting."""
        ...

    def submit(self, request: Request) -> None:
        """Queue a request. Raises `InputError` where it cannot be honoured (too long, unknown stop …)."""
        ...

    def step(self) -> list[Completion]:
        """The completions that finished.

        The embedded engine draws one token for every running sequence. A server draws by itself: its engine returns the
        completions since the last step, and waits a moment if there are none.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """Cancel a request; the next `step` reports its tokens so far with finish_reason `abort`.

        A request that the engine does not have (any more) is ignored.
        """
        ...

    def update_weights(self, source: WeightSource, version: int, kv: KvMode = "keep") -> None:
        """Replace every parameter, or none; running sequences go on, and their next tokens carry `version`.

        `kv = "keep"` leaves the cached keys and values of older weights; `"recompute"` prefills them again.
        """
        ...

    def verify_weights(self, probe_ids: IntArray) -> FloatArray:
        """Log-probs [L - 1] of the tokens of `probe_ids` [L] after the first, to be compared with the trainer's."""
        ...

    def health(self) -> Health: ...

    def close(self) -> None: ...


@dataclass(frozen=True, eq=False)
class Drawn:
    """The tokens that a running sample drew since the last look: int32 [S] tokens and their float32 [S] log-probs."""

    request_id: str
    index: int
    token_ids: IntArray
    logprobs: FloatArray


@runtime_checkable
class Streaming(Protocol):
    """An optional feature of an engine: the tokens of running samples can be read between steps."""

    def drawn(self, since: Mapping[tuple[str, int], int]) -> list[Drawn]:
        """The tokens that each running sample (request id, sample) of `since` drew after its first so many tokens.

        A sample that waits, or has been reported, is left out.
        """
        ...
