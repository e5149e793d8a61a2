"""Judging beside generating: completions go in with `submit`, verdicts come out of `poll`."""

from __future__ import annotations

from typing import Protocol

from strop.base.types import Completion, Problem, Verdict
from strop.verifiers.base import Verifier

Key = tuple[str, int]


class Judge(Protocol):
    """Judges completions; the order of verdicts is free."""

    @property
    def pending(self) -> int:
        """Completions submitted whose verdict was not yet polled."""
        ...

    def submit(self, key: Key, problem: Problem, completion: Completion) -> None:
        """Begin to judge a completion."""
        ...

    def poll(self) -> list[tuple[Key, Verdict]]:
        """The verdicts that are there; does not wait."""
        ...

    def wait(self, seconds: float) -> None:
        """Sleep until a verdict is there, at most `seconds`; for callers that have nothing else to do."""
        ...

    def close(self) -> None:
        """End what runs."""
        ...


class InlineJudge:
    """Judges in the calling process, at `poll`: right for verifiers that are quick and cannot hang."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._queue: list[tuple[Key, Problem, Completion]] = []

    @property
    def pending(self) -> int:
        """Completions submitted and not yet judged."""
        return len(self._queue)

    def submit(self, key: Key, problem: Problem, completion: Completion) -> None:
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
