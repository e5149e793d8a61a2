"""Demonstrations as people have them: texts, TRL's chat messages for prompt or completion, or whole conversations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strop.data.columns import pick
from strop.data.rows import BrokenRow, JsonLines, Row
from strop.data.usual import has

CONVERSATION = "messages"


class Demonstrations(JsonLines):
    """A file with one demonstration a line: a prompt, text or chat messages, and the completion to be learned.

    The completion is text, or a list of one message, the assistant's. A row of `messages` alone is a conversation whose
    last message is the completion; what the assistant said before that belongs to the prompt and is not learned.
    """

    def records(self) -> Iterator[Row | BrokenRow]:
        """One record a line, its completion as text."""
        for record in super().records():
            if isinstance(record, BrokenRow):
                yield record
                continue
            try:
                yield record._replace(columns=self._as_text(record.columns))
            except ValueError as error:
                yield BrokenRow(record.where, str(error))

    def _as_text(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        name = self.columns.answer or "completion"
        if not has(row, name) and self.columns.prompt is None and isinstance(row.get(CONVERSATION), list):
            *before, last = row[CONVERSATION] or [None]
            return {**row, "prompt": before, name: _said([last], CONVERSATION)}
        found = pick(row, name) if has(row, name) else None
        if isinstance(found, list):
            return {**row, name: _said(found, name)}
        return row


def _said(messages: list[Any], name: str) -> str:
    """What the assistant says in the only message."""
    last = messages[-1] if messages else None
    if len(messages) == 1 and isinstance(last, Mapping) and last.get("role") == "assistant":
        if isinstance(last.get("content"), str):
            return str(last["content"])
        raise ValueError(f"{name}: the assistant's content must be text")
    if name == CONVERSATION:
        raise ValueError(f"{name}: the last message must be the assistant's, which is what is learned")
    raise ValueError(
        f"{name} must be text or one message of the assistant; put the messages before its last one into the prompt"
    )
