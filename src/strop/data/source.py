"""Where problems come from: the family of sources and what every source must hold to.

A source reads files or generates, so it is a piece with `load` rather than `__call__`: pieces that are called are pure.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from strop.base.pieces import Piece
from strop.base.types import InputError, Problem

ROLES = ("system", "user", "assistant")


class ProblemSource(Piece):
    """A place problems come from; a source of one's own defines `label` and `problems`."""

    @classmethod
    def from_text(cls, text: str) -> dict[str, Any]:
        """The dictionary form of a short name: `gsm8k`, `reasoning-gym:chain_sum`, `train.jsonl` (see `names`).

        Raises:
            ValueError: no such source; names the nearest.
        """
        from strop.data.names import expand_source  # which knows every source, each of which is made from this class

        return expand_source(text)

    @property
    @abstractmethod
    def label(self) -> str:
        """How messages and reports call this source, such as `train.jsonl`."""

    @abstractmethod
    def problems(self) -> Iterator[Problem]:
        """The problems one by one, always in the same order.

        Raises:
            InputError: a row is broken (the line names where), or the source cannot be read.
        """

    def load(self, limit: int | None = None) -> tuple[Problem, ...]:
        """The first `limit` problems (all by default), each of them valid, their ids unique.

        Raises:
            InputError: there is no problem at all, an id occurs twice, or what `problems` raises.
        """
        loaded = tuple(islice(self._checked(), limit))
        if not loaded:
            raise InputError(f"{self.label}: no problems in it")
        return loaded

    def _checked(self) -> Iterator[Problem]:
        seen: set[str] = set()
        for problem in self.problems():
            try:
                check_problem(problem)
            except ValueError as error:
                raise InputError(f"{self.label}: problem {problem.id!r}: {error}") from error
            if problem.id in seen:
                raise InputError(f"{self.label}: two problems have the id {problem.id!r}; ids must be unique")
            seen.add(problem.id)
            yield problem


def check_problem(problem: Problem) -> None:
    """Refuse a problem that cannot be asked or judged.

    Raises:
        ValueError: says what is wrong: an empty id, an empty prompt, a message that is not one, a missing answer.
    """
    if not problem.id:
        raise ValueError("the id is empty")
    if isinstance(problem.prompt, str):
        if not problem.prompt.strip():
            raise ValueError("the prompt is empty")
    else:
        _check_messages(problem.prompt)
    try:
        problem.question.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the prompt holds half of a surrogate pair, which is no character") from error
    reference = problem.reference
    if reference is None or (isinstance(reference, str) and not reference.strip()):
        raise ValueError("the answer is empty")
    if isinstance(reference, float) and not math.isfinite(reference):
        raise ValueError(f"the answer is {reference}")


def _check_messages(messages: Iterable[object]) -> None:
    roles: list[str] = []
    for message in messages:
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise ValueError(f"a chat message is a role and a content, not {message!r:.80}")
        if message["role"] not in ROLES:
            raise ValueError(f"unknown role {message['role']!r}; known: {', '.join(ROLES)}")
        if not isinstance(message["content"], str):
            raise ValueError("the content of a chat message must be text")
        roles.append(message["role"])
    if not roles or roles[-1] != "user":
        raise ValueError("the prompt's last message must be the user's")


def question_key(problem: Problem) -> str:
    """The text by which two problems are the same question: every run of white space counts as one space."""
    return " ".join(problem.question.split())
