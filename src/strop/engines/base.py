"""The engine protocol: token ids in, completions out, weights swapped between steps.

    engine.submit(Request(id="g17", prompt_ids=ids, sampling=Sampling(max_new_tokens=64), n=8, seed=3))
    while engine.unfinished:
        for completion in engine.step():      # each of the n samples is reported as it finishes
            ...

An engine is synchronous: one `step` samples one token for every running sequence. Streaming and asyncio are adapters
around it. A request an engine cannot honour raises at `submit`, it is never silently altered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field
from torch import Tensor

from strop.pieces import OneOrMore, Settings
from strop.types import Completion, FloatArray, IntArray


class Sampling(Settings):
    """How tokens are drawn. Recorded log-probs are always of logits / temperature over the whole vocabulary.

    `temperature = 0` is greedy (log-probs then at temperature 1); `top_p = 1` and `top_k = None` leave the
    distribution whole, as training wants it.
    """

    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=1)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] = 128
    stop: OneOrMore[Annotated[str, Field(min_length=1)]] = ()
    stop_token_ids: OneOrMore[Annotated[int, Field(ge=0)]] = ()

    @property
    def truncates(self) -> bool:
        """Whether some tokens can never be drawn, so that recorded log-probs are not the sampling distribution's."""
        return self.top_p < 1 or self.top_k is not None or self.temperature == 0


@dataclass(frozen=True, eq=False)
class Request:
    """`n` completions of one prompt; sample i is drawn from the stream of uniforms of (seed, i), whatever its slot."""

    id: str
    prompt_ids: IntArray
    sampling: Sampling
    seed: int
    n: int = 1


@dataclass(frozen=True)
class Capabilities:
    """What an engine can honour: the longest prompt + completion, and its optional features."""

    max_tokens: int
    stop_strings: bool = True
    interruptions: bool = False
    in_flight_updates: bool = True


@dataclass(frozen=True)
class Health:
    """`ok` is False when the engine must not be used any more; `detail` says why."""

    ok: bool
    detail: str
    running: int
    waiting: int


PauseMode = Literal["keep", "abort"]
KvMode = Literal["keep", "recompute"]
WeightSource = Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]


class Engine(Protocol):
    """What the loop knows of a generator."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def weight_version(self) -> int: ...

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not yet reported, running or waiting."""
        ...

    def submit(self, request: Request) -> None:
        """Queue a request. Raises `InputError` where it cannot be honoured (too long, unknown stop, paused …)."""
        ...

    def step(self) -> list[Completion]:
        """Advance every running sequence by a token; the completions that finished."""
        ...

    def cancel(self, request_id: str) -> None:
        """Forget a request; what was sampled is reported by the next `step` with finish_reason `abort`."""
        ...

    def pause(self, mode: PauseMode = "keep") -> None:
        """Stop stepping; `keep` leaves running sequences in their slots, `abort` cancels them."""
        ...

    def resume(self) -> None:
        """Undo `pause`."""
        ...

    def update_weights(self, source: WeightSource, version: int, kv: KvMode = "keep") -> None:
        """Swap in every parameter, or none; running sequences go on, their next tokens carry `version`.

        `kv = "keep"` leaves the cached keys and values of older weights; `"recompute"` prefills them again.
        """
        ...

    def verify_weights(self, probe_ids: IntArray) -> FloatArray:
        """Log-probs [L - 1] of the tokens of `probe_ids` [L] after the first, to be held against the trainer's."""
        ...

    def health(self) -> Health: ...

    def close(self) -> None: ...
