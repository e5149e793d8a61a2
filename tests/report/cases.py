"""Rollouts and scored batches made by hand, and a page taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import numpy as np

from strop.base.types import Completion, Group, Problem, Rollout, Status, Verdict, VersionSpan
from strop.model.byte_tokenizer import byte_tokenizer
from strop.report.scoring import Batch, RolloutRow
from strop.report.snapshots import Snapshot


def row(ticket: int = 0, reward: float = 0.0, tokens: int = 3, status: str = "correct", **changes: Any) -> RolloutRow:
    """A row of the rollout table."""
    found: RolloutRow = {
        "ticket": ticket, "reward": reward, "status": status, "prompt_ids": [5, 6],
        "token_ids": list(range(10, 10 + tokens)), "logprobs": [-0.5] * tokens,
        "interrupted_at": None, "injected_tokens": 0,
        "versions": [{"version": 0, "start": 0, "end": tokens}],
    }  # fmt: skip
    return found | changes


def batch(
    rows: Sequence[RolloutRow], entropy: Sequence[float], recorded: Sequence[float] = (), logprob: Sequence[float] = (),
    token_id: Sequence[int] = (),
) -> Batch:  # fmt: skip
    """Scored tokens of `rows`, in order."""
    count = len(entropy)
    return Batch(
        rows=rows,
        rollout=np.repeat(np.arange(len(rows)), [len(each["token_ids"]) for each in rows]).astype(np.int32),
        token_id=np.array(token_id or range(count), dtype=np.int32),
        recorded=np.array(recorded or [-0.5] * count, dtype=np.float32),
        logprob=np.array(logprob or [-0.5] * count, dtype=np.float32),
        entropy=np.array(entropy, dtype=np.float32),
        step=4,
        snapshot=Snapshot("the final model", 4, 4, None),
        left_out=0,
    )


def group(prompt: str, text: str, ticket: int = 0) -> Group:
    """A prompt with one completion, whose tokens are the bytes of `text`."""
    tokenizer = byte_tokenizer()
    ids = np.array(tokenizer.encode(text), dtype=np.int32)
    problem = Problem(id="p", prompt=prompt, reference=prompt)
    completion = Completion(
        request_id="r", index=0, prompt_ids=np.array([5, 6], dtype=np.int32), token_ids=ids,
        logprobs=np.full(len(ids), -0.25, dtype=np.float32), versions=(VersionSpan(0, 0, len(ids)),),
        injected=np.zeros(len(ids), dtype=np.bool_), text=text, finish_reason="stop",
    )  # fmt: skip
    return Group(ticket, problem, (Rollout(problem, completion, Verdict(1.0, Status.CORRECT), 1.0),))


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
