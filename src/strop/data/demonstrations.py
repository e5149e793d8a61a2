"""Demonstrations for supervised fine-tuning: rows with a prompt and the completion to learn.

    {"prompt": "1+2=", "completion": "3"}                              each is text or chat messages
    {"messages": [{"role": "user", …}, {"role": "assistant", …}]}      the last message is the completion
    {"instruction": "Add.", "input": "1+2", "output": "3"}             an input follows the instruction

These are the shapes of TRL's and Alpaca's data sets. Only the last turn of the assistant in a chat is the completion;
the earlier ones are part of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strop.base.types import InputError, Problem
from strop.data.columns import (
    PROMPTS,
    Columns,
    NoColumn,
    Row,
    content_text,
    first_present,
    has,
    pick,
)
from strop.data.rows import FileSource, unread_line
from strop.data.source import check_problem

COMPLETION, CHAT = "completion", "messages"
ASSISTANT = "assistant"
ALPACA = {"instruction", "output"}
ONE_COLUMN = tuple(name for name in PROMPTS if name not in ("instruction", "input"))  # columns with the whole question
UNLEARNED = ("tool_calls", "function_call", "thinking", "reasoning_content", "reasoning")  # in a message


@dataclass(frozen=True)
class Demonstrations:
    """The demonstrations in a file, as problems whose reference is the completion."""

    file: FileSource

    def problems(self) -> Iterator[Problem]:
        """One problem per row.

        Raises:
            InputError: a row cannot be used; the message names its file, line and column.
        """
        for row in self.file.rows():
            try:
                yield _problem(row, self.file.columns)
            except ValueError as error:
                raise InputError(f"{row.where}: {error}") from error

    def unread(self) -> str:
        """The columns that no demonstration is made of, with the first row's values, in one line."""
        first = next(self.file.rows(), None)
        if first is None:
            return ""
        halves = ("instruction", "input")  # they are joined, or the row is refused
        return unread_line(self.file.label, *_named(first.columns, self.file.columns), asked=halves)

    def load(self) -> tuple[Problem, ...]:
        """All demonstrations.

        Raises:
            InputError: as `problems`, or there is none.
        """
        found = tuple(self.problems())
        if not found:
            raise InputError(f"{self.file.label}: no demonstrations in it")
        return found


def is_answered_before(problem: Problem) -> bool:
    """Whether the prompt has a turn of the assistant, which is not trained."""
    return not isinstance(problem.prompt, str) and any(turn["role"] == ASSISTANT for turn in problem.prompt)


def _named(cells: Mapping[str, Any], columns: Columns) -> tuple[Mapping[str, Any], Columns]:
    """A row in which prompt and completion have columns, and the names of these."""
    answer = columns.answer or COMPLETION
    if columns.prompt is None:
        cells = _with_whole_question(cells)
    prompt = columns.prompt or first_present(cells, PROMPTS) or "prompt"
    if not has(cells, answer) or pick(cells, answer) is None:
        chat = columns.prompt or CHAT
        turns = pick(cells, chat) if has(cells, chat) else None
        if isinstance(turns, list) and turns:
            cells, prompt = {**cells, chat: turns[:-1], answer: turns[-1:]}, chat
        elif answer == COMPLETION and cells.keys() >= ALPACA:
            answer = "output"
    return cells, columns.model_copy(update={"prompt": prompt, "answer": answer})


def _problem(row: Row, columns: Columns) -> Problem:
    cells, named = _named(row.columns, columns)
    try:
        if columns.prompt is None:
            named.refuse_parts(cells)
        completion = _completion(named.reference(cells))
        identity = row.where if columns.id is None else str(pick(cells, columns.id))
        problem = Problem(identity, named.question(cells), completion)
        check_problem(problem)
    except NoColumn as error:
        raise ValueError(f"{error}; name the columns with columns.prompt=COLUMN and columns.answer=COLUMN") from error
    except ValueError as error:
        both = f"columns {named.prompt!r} and {named.answer!r}"
        raise ValueError(f"{both}: {error}; fix the row or leave it out") from error
    return problem


def _with_whole_question(cells: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with instruction and input joined into one prompt, if its question is in these columns."""
    halves = [cells.get("instruction"), cells.get("input")]
    if first_present(cells, ONE_COLUMN) or not isinstance(halves[0], str) or not isinstance(halves[1], str | None):
        return cells
    return {**cells, "prompt": "\n\n".join(half for half in halves if half and half.strip())}


def _completion(said: Any) -> str:
    """The completion of a row: a text, or the content of its only message.

    Raises:
        ValueError: it is empty, or something else.
    """
    if isinstance(said, list):
        if len(said) != 1 or not isinstance(said[0], Mapping) or said[0].get("role") != ASSISTANT:
            raise ValueError(f"a completion is one message of the assistant, not {said!r:.80}")
        ignored = next((name for name in UNLEARNED if said[0].get(name)), None)
        if ignored is not None:
            raise ValueError(f"the assistant's message has {ignored!r}, but only its content is learned")
        said = content_text(said[0].get("content"))
    if not isinstance(said, str) or not said.strip():
        raise ValueError(f"the completion is empty or no text: {said!r:.60}")
    return said
