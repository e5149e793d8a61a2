"""Demonstrations for supervised fine-tuning: rows with a prompt and the completion to learn.

    {"prompt": "1+2=", "completion": "3"}                              each is text or chat messages
    {"messages": [{"role": "user", …}, {"role": "assistant", …}]}      the last message is the completion
    {"instruction": "Add.", "input": "1+2", "output": "3"}             an input follows the instruction

These are the shapes of TRL's and Alpaca's data sets. Only the last turn of the assistant in a chat is the completion;
the earlier ones are part of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.base.near import nearest
from strop.base.types import InputError, Problem
from strop.data.columns import HALVES, PROMPTS, Columns, Row, first_present, has, pick, refuse_unseen
from strop.data.rows import JsonLines
from strop.data.source import check_problem

COMPLETION, CHAT = "completion", "messages"
ASSISTANT = "assistant"
ALPACA = {"instruction", "output"}
ONE_COLUMN = tuple(name for name in PROMPTS if name not in HALVES)  # columns with the whole question
# Other names of the completion's column, which messages suggest.
ELSEWHERE = ("response", "output", "solution", "Solution", "answer", "chosen", "generation", "target")
UNLEARNED = ("tool_calls", "function_call", "thinking", "reasoning_content", "reasoning")  # in a message


@dataclass(frozen=True)
class Demonstrations:
    """The demonstrations in a file, as problems whose reference is the completion."""

    file: JsonLines

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


def _problem(row: Row, columns: Columns) -> Problem:
    cells = _whole_question(row.columns, columns)
    answer, chat = columns.answer or COMPLETION, columns.prompt or CHAT
    whole_chat = has(cells, chat) and isinstance(pick(cells, chat), list)
    if answer == COMPLETION and not has(cells, answer) and not whole_chat and cells.keys() >= ALPACA:
        answer = "output"
    said: Any = columns.model_copy(update={"answer": answer}).reference(cells) if has(cells, answer) else None
    learned = answer
    if said is None and whole_chat:
        whole, learned = pick(cells, chat), chat
        cells, said = {**cells, chat: whole[:-1]}, whole[-1:]
    elif not has(cells, answer):
        raise ValueError(_absent(cells, answer, chat))
    completion = _text(said, learned)
    prompt = chat if learned == chat else columns.prompt or first_present(cells, PROMPTS) or "prompt"
    if not has(cells, prompt):
        raise ValueError(f"no column {prompt!r}; {nearest(prompt, cells)}; set columns.prompt=COLUMN, of the prompts")
    if columns.prompt is None and learned != chat:
        refuse_unseen(cells, prompt, f"columns.prompt={prompt}")
    identity = row.where if columns.id is None else str(pick(cells, columns.id))
    try:
        problem = Problem(identity, columns.model_copy(update={"prompt": prompt}).question(cells), completion)
        check_problem(problem)
    except ValueError as error:
        raise ValueError(f"column {prompt!r}: {error}; fix the row or leave it out") from error
    return problem


def _whole_question(cells: Mapping[str, Any], columns: Columns) -> Mapping[str, Any]:
    """The row with instruction and input joined into one prompt, if its question is in these columns."""
    if columns.prompt is not None or first_present(cells, ONE_COLUMN) or not isinstance(cells.get("instruction"), str):
        return cells
    halves = [cells["instruction"], cells.get("input")]
    if not isinstance(halves[1], str | None):
        raise ValueError(f"column 'input': a text, not {halves[1]!r:.60}; or set columns.prompt=COLUMN, of the prompts")
    return {**cells, "prompt": "\n\n".join(half for half in halves if half and half.strip())}


def _text(said: Any, column: str) -> str:
    """The completion of a row: a text, or the content of its only message.

    Raises:
        ValueError: it is empty, or something else.
    """
    text = _content(said, column) if isinstance(said, list) and said else said
    if text in (None, []) or (isinstance(text, str) and not text.strip()):
        raise ValueError(f"column {column!r}: the completion is empty; fill it in, or leave the row out")
    if not isinstance(text, str):
        raise ValueError(
            f"column {column!r}: a completion is text or a message of the assistant, not {text!r:.60}; set "
            "columns.answer=COLUMN, the column of the completions"
        )
    return text


def _content(messages: Sequence[Any], column: str) -> Any:
    """The content of the only message of a completion."""
    if len(messages) != 1:
        raise ValueError(
            f"column {column!r}: a completion is one message of the assistant, not {len(messages)}; write one row for "
            "each, with the messages before it as its prompt"
        )
    message = messages[0]
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
        raise ValueError(f"column {column!r}: a message is a role and a content, not {message!r:.60}; rename its keys")
    if message["role"] != ASSISTANT:
        raise ValueError(
            f"column {column!r}: the last message has the role {message['role']!r}, not assistant; end the row with a "
            "message of the assistant, or leave it out"
        )
    ignored = next((name for name in UNLEARNED if message.get(name)), None)
    if ignored is not None:
        raise ValueError(
            f"column {column!r}: the assistant's message has {ignored!r}, but only its content is learned; write it "
            "into the content"
        )
    return message["content"]


def _absent(cells: Mapping[str, Any], answer: str, chat: str) -> str:
    if has(cells, chat) and isinstance(pick(cells, chat), str):
        return f"column {chat!r}: a chat is a list of messages, not a text; write the list without quotes around it"
    meant = next((name for name in ELSEWHERE if has(cells, name)), "COLUMN")
    return (
        f"no column {answer!r}, and no chat in {chat!r} (has {', '.join(cells) or 'nothing'}); set "
        f"columns.answer={meant}, the column of the completions, or columns.prompt=COLUMN where one holds whole chats"
    )
