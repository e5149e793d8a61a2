"""Judging during generation: completions go in with `submit`, verdicts come out of `poll`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strop.base.types import Completion, Observation, Problem, Verdict
from strop.verifiers.base import Verifier

Key = tuple[str, int]


class Responder(Protocol):
    """What answers completions: a judge with a verdict on each, an environment perhaps with an observation first.

    Behind an observation the next turn is sampled; the completion of that turn is submitted under the same key. The
    order of answers is free.

    Attributes:
        several_turns: whether observations may come.
        speaks_first: whether every sample is to `begin` with an observation, which is its prompt.
        turn_tokens: most tokens of one turn, shorter than the whole completion's budget; None: only that budget.
    """

    several_turns: bool = False
    speaks_first: bool = False
    turn_tokens: int | None = None

    @property
    def pending(self) -> int:
        """Completions submitted whose answer was not yet polled."""
        ...

    def begin(self, key: Key, problem: Problem, seed: int) -> None:
        """Ask for the prompt of a sample, where the environment speaks first; the answer is an observation."""
        return None

    def submit(self, key: Key, problem: Problem, completion: Completion, seed: int = 0) -> None:
        """Begin to judge a completion, or one turn of it; an environment draws from `seed`, a verifier ignores it."""
        ...

    def poll(self) -> Sequence[tuple[Key, Verdict | Observation]]:
        """The answers that are there; does not wait."""
        ...

    def forget(self, request_id: str) -> None:
        """Nobody wants the samples of this request any more; verdicts on them may still come."""
        return None

    def wait(self, seconds: float) -> None:
        """Sleep until an answer is there, at most `seconds`; for callers that have nothing else to do."""
        ...

    def close(self) -> None:
        """End what runs."""
        ...


class Judge(Responder, Protocol):
    """Judges completions: every answer is a verdict."""

    def poll(self) -> list[tuple[Key, Verdict]]:
        """The verdicts that are there; does not wait."""
        ...


class InlineJudge(Judge):
    """Judges in the calling process, at `poll`: right for verifiers that are quick and cannot hang."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._queue: list[tuple[Key, Problem, Completion]] = []

    @property
    def pending(self) -> int:
        """Completions submitted and not yet judged."""
        return len(self._queue)

    def submit(self, key: Key, problem: Problem, completion: Completion, seed: int = 0) -> None:
        """Queue a completion."""
        self._queue.append((key, problem, completion))

    def poll(self) -> list[tuple[Key, Verdict]]:
        """Judge everything queued."""
        queue, self._queue = self._queue, []
        return [(key, self._verifier(problem, c.text, c.truncated)) for key, problem, c in queue]

    def wait(self, seconds: float) -> None:
        """Nothing to wait for: `poll` does the work."""

    def close(self) -> None:
        """Nothing to end."""
