"""Demonstrations as people have them: texts, TRL's chat messages for prompt or completion, or whole conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.base.types import Prompt
from strop.data.rows import Columns, as_prompt
from strop.data.usual import has

CONVERSATION = "messages"


class DemonstrationColumns(Columns):
    """The columns of a prompt, text or chat messages, and of the completion to be learned.

    The completion is text, or a list of one message, the assistant's. A row of `messages` alone is a conversation whose
    last message is the completion; what the assistant said before that belongs to the prompt and is not learned.
    """

    def named(self, row: Mapping[str, Any]) -> DemonstrationColumns:
        """These columns: each row has names of its own."""
        return self

    def asked(self, row: Mapping[str, Any]) -> Prompt:
        """The prompt of a row. Raises `ValueError` where there is none."""
        if self._is_conversation(row):
            return as_prompt(row[CONVERSATION][:-1])
        plain = Columns(**self.model_dump())
        return plain.named(row).asked(row)

    def reference(self, row: Mapping[str, Any]) -> Any:
        """The completion of a row. Raises `ValueError` where there is none that can be learned."""
        if self._is_conversation(row):
            return _said(row[CONVERSATION][-1:], CONVERSATION)
        found = super().reference(row)
        return _said(found, self.answer or "answer") if isinstance(found, list) else found

    def _is_conversation(self, row: Mapping[str, Any]) -> bool:
        lacks = self.prompt is None and not has(row, self.answer or "answer")
        return lacks and isinstance(row.get(CONVERSATION), list)


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
