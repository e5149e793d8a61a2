"""The family of problem sources: checks that every source passes, and short names of sources.

A source reads files or generates problems, so it is a piece with `load` rather than a pure `__call__`.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from html.entities import html5  # the names of its symbols are those of LaTeX
from itertools import islice
from typing import Any, ClassVar

from pydantic import ValidationError

from strop.base.near import nearest
from strop.base.pieces import Piece, choices, find
from strop.base.types import InputError, Problem

# Short names, file suffixes, and the pieces that they stand for.
SHORT_NAMES: dict[str, dict[str, Any]] = {
    "chain_sum": {"piece": "ChainSum"},
    "gsm8k": {"piece": "HubDataset", "dataset": "openai/gsm8k", "subset": "main"},
}
SUFFIXES = {
    ".jsonl": "JsonLines", ".jsonl.gz": "JsonLines", ".parquet": "ParquetFile", ".json": "JsonFile", ".csv": "CsvFile",
    ".tsv": "CsvFile",
}  # fmt: skip
FORMS = ("reasoning-gym:TASK", "hub:NAME", "OWNER/NAME", "FOLDER", *(f"FILE{suffix}" for suffix in SUFFIXES))
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

ROLES = ("system", "user", "assistant")

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
_SPACE = re.compile(r"[\t\n]([A-Za-z]+)")
_ESCAPES = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}  # of JSON


class ProblemSource(Piece):
    """A source of problems. Subclasses define `label` and `problems`."""

    modules: ClassVar[tuple[str, ...]] = (
        "strop.data.generators",
        "strop.data.rows",
        "strop.environments.base",
    )

    @classmethod
    def from_text(cls, text: str) -> dict[str, Any]:
        """The dictionary form of a short name: `gsm8k`, `reasoning-gym:chain_sum`, `train.jsonl`.

        Raises:
            ValueError: no such source; names the nearest.
        """
        return expand_source(text)

    @property
    def needs_answers(self) -> bool:
        """Whether a problem without an answer is refused; user-defined rewards may not need one."""
        return True

    @property
    @abstractmethod
    def label(self) -> str:
        """The name of this source in messages and reports, such as `train.jsonl`."""

    @abstractmethod
    def problems(self) -> Iterator[Problem]:
        """The problems one by one, always in the same order.

        Raises:
            InputError: a row is broken (the message names its place), or the source cannot be read.
        """

    def load(self, limit: int | None = None) -> tuple[Problem, ...]:
        """The first `limit` problems (by default all), which are valid and have unique ids.

        Raises:
            InputError: there is no problem, an id occurs twice, or as `problems` raises.
        """
        loaded = tuple(islice(self._checked(), limit))
        if not loaded:
            raise InputError(f"{self.label}: no problems in it")
        return loaded

    def _checked(self) -> Iterator[Problem]:
        seen: set[str] = set()
        for problem in self.problems():
            try:
                check_problem(problem, self.needs_answers)
            except ValueError as error:
                raise InputError(f"{self.label}: problem {problem.id!r}: {error}") from error
            if problem.id in seen:
                raise InputError(f"{self.label}: two problems have the id {problem.id!r}; ids must be unique")
            seen.add(problem.id)
            yield problem


def check_problem(problem: Problem, needs_answer: bool = True) -> None:
    """Refuse a problem that cannot be asked or judged; without `needs_answer` its reference may be None.

    Raises:
        ValueError: the id or the prompt is empty, a message is malformed, the answer is missing or holds a control
            character.
    """
    if not problem.id:
        raise ValueError("the id is empty")
    if isinstance(problem.prompt, str):
        if not problem.prompt.strip():
            raise ValueError("the prompt is empty")
    else:
        _check_messages(problem.prompt)
    reference = problem.reference
    try:
        f"{problem.question}{reference if isinstance(reference, str) else ''}".encode()
    except UnicodeEncodeError as error:
        raise ValueError("prompt or answer holds half of a surrogate pair, which is no character") from error
    if isinstance(reference, str) and (found := _CONTROL.search(reference)):
        raise ValueError(f"the answer holds {_unescaped(reference, found.start())}")
    if (reference is None and needs_answer) or (isinstance(reference, str) and not reference.strip()):
        raise ValueError("the answer is empty; fill it in, or leave such rows out (by the source's `where`)")
    if isinstance(reference, float) and not math.isfinite(reference):
        raise ValueError(f"the answer is {reference}")


def damage(problem: Problem) -> str | None:
    r"""What a backslash that was not doubled in JSON left in a problem: a line break and `u`, where `\nu` was meant.

    None where there is no sign of it. A line break or tab is one in front of the rest of a command of LaTeX; in the
    words of a question that rest is neither a letter nor a word, in its formulas it may also be that of any symbol.
    """
    from strop_verify.math import latex  # here: the verifier comes with it

    commands = latex.GREEK | latex.FUNCTIONS | latex.TEXT | latex.NOTHING | frozenset(latex.SAME)
    reference = problem.reference if isinstance(problem.reference, str) else ""
    for text, words in ((reference, frozenset()), (problem.question, latex.SHORT_WORDS)):
        for found in (*_CONTROL.finditer(text), *_SPACE.finditer(text)):
            place, rest = found.start(), found[1] if found.lastindex else ""
            meant = _ESCAPES.get(found[0][0], "") + rest
            formula = text.count("$", 0, place) % 2 == 1 and not text[place - 1].isalnum()
            word = rest in words or (len(rest) == 1 and bool(words))
            if not rest or (meant in commands and (formula or not word)) or (formula and f"{meant};" in html5):
                return _unescaped(text, place)
    return None


def _unescaped(text: str, place: int) -> str:
    """What stands at a place of a text, and which command was probably meant."""
    behind = text[place + 1 :][:12]
    letter = _ESCAPES.get(text[place])
    meant = "" if letter is None else f": was it \\{letter}{behind}, whose backslash was not doubled in JSON?"
    return f"the control character {text[place]!r} in front of {behind!r}{meant}"


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
    """The question with every run of white space as one space: equal keys are the same question."""
    return " ".join(problem.question.split())


def problem_key(problem: Problem) -> tuple[str, str]:
    """Question and reference: equal keys are the same problem."""
    return question_key(problem), repr(problem.reference)


def question_digest(problem: Problem) -> str:
    """A hash of `question_key`, 16 hexadecimal digits."""
    return hashlib.blake2b(question_key(problem).encode(), digest_size=8).hexdigest()


def parse_source(text: str, **settings: Any) -> ProblemSource:
    """The source that a short name stands for, with these settings.

    Example: `parse_source("reasoning-gym:chain_sum")`, `parse_source("data/train.parquet")`,
    `parse_source("openai/gsm8k")` (a data set of the hub).

    Raises:
        InputError: there is no such source.
    """
    try:
        return ProblemSource.model_validate({**expand_source(text), **settings})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(f"source {text!r}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except ValueError as error:
        raise InputError(str(error)) from error


def expand_source(text: str) -> dict[str, Any]:
    """The dictionary form `{"piece": …}` of a short name, not yet validated; raises `ValueError` if there is none."""
    word, colon, rest = text.partition(":")
    if text in SHORT_NAMES or text in choices(ProblemSource):
        return dict(SHORT_NAMES.get(text, {"piece": text}))
    if colon and word in ("reasoning-gym", "reasoning_gym"):
        return {"piece": "ReasoningGym", "task": rest}
    if colon and word == "hub":
        return {"piece": "HubDataset", "dataset": rest}
    suffix = next((suffix for suffix in SUFFIXES if text.endswith(suffix)), None)
    if suffix is not None:
        return {"piece": SUFFIXES[suffix], "path": text}
    if colon:
        return {"piece": find(ProblemSource, text).piece_name()}
    if os.path.isdir(folder := os.path.expanduser(text)):  # unlike Path.is_dir, for a text of any length
        return {"piece": "HubDataset", "dataset": folder}
    if _HUB_NAME.fullmatch(text) and not text.endswith((".txt", ".arrow")):
        return {"piece": "HubDataset", "dataset": text}
    if os.path.isfile(text):
        raise ValueError(f"no source is called {text!r}; the files that are read end in {', '.join(SUFFIXES)}")
    raise ValueError(f"no source is called {text!r}; {nearest(text, (*SHORT_NAMES, *FORMS))}")
