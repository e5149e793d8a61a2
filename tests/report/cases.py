"""Rollouts made by hand, and a page taken apart."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np

from strop.base.types import Completion, Group, Problem, Rollout, Verdict, VersionSpan
from strop.model.files import byte_tokenizer
from strop_verify.verdict import Status


def row(ticket: int = 0, tokens: int = 3, status: str = "correct", **changes: Any) -> dict[str, Any]:
    """A row of the rollout table."""
    return {
        "ticket": ticket, "status": status, "token_ids": list(range(10, 10 + tokens)), "logprobs": [-0.5] * tokens,
        "entropies": [0.25] * tokens, "interrupted_at": None, "injected": [], "turns": [],
    } | changes  # fmt: skip


RIGHT = Verdict(1.0, Status.CORRECT)


def group(prompt: str, text: str, ticket: int = 0, verdict: Verdict = RIGHT) -> Group:
    """A prompt with one completion, whose tokens are the bytes of `text`."""
    tokenizer = byte_tokenizer()
    ids = np.array(tokenizer.encode(text), dtype=np.int32)
    problem = Problem(id="p", prompt=prompt, reference=prompt)
    completion = Completion(
        request_id="r", index=0, prompt_ids=np.array(tokenizer.encode(prompt), dtype=np.int32), token_ids=ids,
        logprobs=np.full(len(ids), -0.25, dtype=np.float32), versions=(VersionSpan(0, 0, len(ids)),),
        injected=np.zeros(len(ids), dtype=np.bool_), text=text, finish_reason="stop",
    )  # fmt: skip
    return Group(ticket, problem, (Rollout(problem, completion, verdict, verdict.score),))


class Parsed(HTMLParser):
    """A page taken apart: every tag with its attributes, the texts, and what scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def values(self, attribute: str) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get(attribute)) is not None]

    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}
