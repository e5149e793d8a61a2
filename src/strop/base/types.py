"""The data that passes between the parts of strop.

Every object is immutable and keeps its per-token fields aligned in one place, so that nothing can be re-ordered apart.
Shapes: T completion tokens, L tokens of a whole sequence (prompt then completion), G samples a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from strop_verify import verdict
from strop_verify.verdict import VerifyError

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
ExpertArray = NDArray[np.uint8] | NDArray[np.int16]

Status = verdict.Status


class StropError(VerifyError):
    """A problem the user can solve. Its message is one line with the problem and a solution.

    The command line prints only the message and exits with `exit_code`; a script that `strop.train` ends and a
    notebook print it the same way.
    """


class InputError(StropError):
    """A setting, a file or a flag that cannot be used as given."""

    exit_code = 2


def first_line(error: Exception) -> str:
    """The first line of another library's error message, shortened; its type if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


class Message(TypedDict):
    """One turn of a chat prompt."""

    role: str
    content: str


Prompt = str | tuple[Message, ...]


@dataclass(frozen=True)
class Problem:
    """A question with a verifiable reference.

    Example: `Problem(id="chain_sum-17", prompt="3+5-2=", reference="6", domain="math", source="chain_sum")`.

    `prompt` is plain text or chat messages; `reference` is what the verifier compares with (an answer, or tests).
    `extra` holds JSON-able facts a verifier or a report may want (a worked solution, a difficulty). `verbatim` says
    that the prompt is the beginning of a text for a base model to continue, with nothing put between.
    """

    id: str
    prompt: Prompt
    reference: Any
    domain: str = "math"
    source: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    verbatim: bool = False

    @property
    def question(self) -> str:
        """The text by which two problems are the same question."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(message["content"] for message in self.prompt if message["role"] != "system")


class VersionSpan(NamedTuple):
    """Completion tokens `start <= t < end` were sampled by weight version `version`."""

    version: int
    start: int
    end: int


class Restart(NamedTuple):
    """The turn that begins at `start` among a completion's tokens was sampled behind `prompt_ids`, int32 [K]."""

    start: int
    prompt_ids: IntArray


class TokenSequence(NamedTuple):
    """Completion tokens `start <= t < end` were sampled behind `prompt_ids`, int32 [K], and are trained behind it."""

    prompt_ids: IntArray
    start: int
    end: int


FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, eq=False)
class Completion:
    """One sample of an engine for a request.

    Example (T = 3, the last id being EOS): `token_ids=[17, 4, 2]`, `logprobs=[-0.1, -1.2, -0.01]`,
    `versions=(VersionSpan(7, 0, 2), VersionSpan(8, 2, 3))`, `injected=[False, False, False]`, `finish_reason="stop"`.

    Attributes:
        request_id: the request this answers; `index` says which of its `n` samples.
        prompt_ids: int32 [prompt tokens], exactly as submitted.
        token_ids: int32 [T]; the EOS token or the tokens of a stop string are included, and trained.
        logprobs: float32 [T]; natural log-prob of each sampled token under logits / temperature over the whole
            vocabulary; 0.0 where `injected`; NaN where the engine does not know it (under top-k or top-p on vLLM).
        versions: spans that cover 0..T without gap, in order.
        injected: bool [T]; tokens forced into the context by an interruption or an environment, never trained.
        text: the decoded completion, special tokens left out.
        finish_reason: `stop` (EOS, stop id, stop string, or a turn's own limit), `length` (budget spent), `abort`
            (cancelled).
        interrupted_at: index of the first token that an interruption injected, or None.
        entropies: float32 [T], nats, of the distributions that `logprobs` are of; 0.0 where `injected`. None where the
            engine does not know them.
        routed_experts: [prompt tokens + T - 1, layers, k], uint8 where it holds their numbers, else int16: the experts
            that computed each token but the last in each layer that has some; None where the engine was not asked for
            them (`model.replay_routing`).
        turns: where each turn after the first begins, the index of its first sampled token; empty for a single turn.
        restarts: turns before which the chat template rewrote earlier ones (`environment.history=separate`), so that
            they were sampled behind another prompt than all tokens before them.
        last_turn_at: index into `text` at which the last turn begins.
    """

    request_id: str
    index: int
    prompt_ids: IntArray
    token_ids: IntArray
    logprobs: FloatArray
    versions: tuple[VersionSpan, ...]
    injected: BoolArray
    text: str
    finish_reason: FinishReason
    interrupted_at: int | None = None
    entropies: FloatArray | None = None
    routed_experts: ExpertArray | None = None
    turns: tuple[int, ...] = ()
    restarts: tuple[Restart, ...] = ()
    last_turn_at: int = 0

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.logprobs), len(self.injected)}
        if self.entropies is not None:
            lengths.add(len(self.entropies))
        if len(lengths) != 1:
            raise ValueError(f"completion {self.request_id}: per-token fields of different lengths {sorted(lengths)}")
        edges = [0, *(span.end for span in self.versions)]
        if [span.start for span in self.versions] != edges[:-1] or edges[-1] != len(self.token_ids):
            raise ValueError(f"completion {self.request_id}: version spans {self.versions} leave gaps or overlap")

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled; injected ones are left out."""
        return int(len(self.token_ids) - self.injected.sum())

    @property
    def truncated(self) -> bool:
        """Whether the budget ended the completion rather than the policy."""
        return self.finish_reason == "length"

    @property
    def had_no_room(self) -> bool:
        """Whether the environment answered and the budget left no room for another turn."""
        return self.truncated and 0 < self.last_turn_at == len(self.text)

    @property
    def last_turn(self) -> str:
        """The text of the last turn, which the verifier judges."""
        return self.text[self.last_turn_at :]

    @property
    def sequences(self) -> tuple[TokenSequence, ...]:
        """What is trained: one sequence, the whole; or, divided at the restarts, several, in order.

        What the environment said before a restart belongs to none: its tokens are in the prompt of that restart.
        """
        found: list[TokenSequence] = []
        prompt_ids, start = self.prompt_ids, 0
        for restart in self.restarts:
            sampled = np.flatnonzero(~self.injected[start : restart.start])
            found.append(TokenSequence(prompt_ids, start, start + int(sampled[-1]) + 1 if len(sampled) else start))
            prompt_ids, start = restart.prompt_ids, restart.start
        return (*found, TokenSequence(prompt_ids, start, len(self.token_ids)))


@dataclass(frozen=True)
class Verdict(verdict.Verdict):
    """A verifier's judgement of one completion, with what reward functions and environments add to it.

    Attributes:
        reward: what reward functions of the user's own returned, any finite number; None from verifiers.
        turn_scores: what an environment gave for each turn it answered, in order, any finite numbers; the score is
            apart from them. Empty where there are none.
        malformed_calls: calls of tools in the trajectory that could not be read or did not fit the tool.
    """

    reward: float | None = None
    turn_scores: tuple[float, ...] = ()
    malformed_calls: int = 0

    @property
    def value(self) -> float:
        """The number by which completions differ: the reward of the user's own functions, else the score."""
        return self.score if self.reward is None else self.reward


@dataclass(frozen=True, eq=False)
class Observation:
    """What an environment says between two turns: `token_ids`, int32 [K], put behind what was sampled, and as text.

    The tokens are injected: they have log-prob 0 and are never trained. The next turn is sampled behind all tokens so
    far; or behind `prompt_ids`, where there are some: the chat as the model's template renders it by now.
    """

    token_ids: IntArray
    text: str
    prompt_ids: IntArray | None = None


@dataclass(frozen=True, eq=False)
class Rollout:
    """A completion of a problem with its verdict, the shaped reward, and the prompt int32 [K] behind which a teacher
    reads it, where that is not the completion's own (`algorithm.reference.prompt`)."""

    problem: Problem
    completion: Completion
    verdict: Verdict
    reward: float
    teacher_prompt_ids: IntArray | None = None


@dataclass(frozen=True, eq=False)
class Group:
    """A problem and its G rollouts; `ticket` is its place in the order of admission."""

    ticket: int
    problem: Problem
    rollouts: tuple[Rollout, ...]

    @property
    def usable(self) -> tuple[Rollout, ...]:
        """The rollouts with a usable verdict: the verifier did not fail."""
        return tuple(rollout for rollout in self.rollouts if rollout.verdict.usable)


MAX_SAMPLES = 1 << 20  # of a prompt
