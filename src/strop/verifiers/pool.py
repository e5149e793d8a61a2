"""Judging beside generating: completions go in with `submit`, verdicts come out of `poll`."""

from __future__ import annotations

from typing import Protocol

from strop.types import Completion, Problem, Verdict
from strop.verifiers.base import Verifier

Key = tuple[str, int]


class Judge(Protocol):
    """Judges completions; the order of verdicts is free."""

    @property
    def pending(self) -> int:
        """Completions submitted whose verdict was not yet polled."""
        ...

    def submit(self, key: Key, problem: Problem, completion: Completion) -> None: ...

    def poll(self) -> list[tuple[Key, Verdict]]: ...

    def close(self) -> None: ...


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

    def close(self) -> None:
        """Nothing to end."""
