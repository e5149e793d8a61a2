"""Search over a local text as a tool: passages ranked by BM25, no server and no download."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from strop.base.types import InputError, Problem
from strop.environments.base import Tool
from strop.environments.tools import ToolEnvironment, Tools

# Robertson and Zaragoza, "The Probabilistic Relevance Framework", Section 3.5: usual values.
SATURATION, LENGTH_WEIGHT = 1.2, 0.75


class Search(ToolEnvironment):
    """One tool, `search`, of one argument, `query`; it returns the passages that match best.

    Fields:
        corpus: a file with a passage a line; of lines of JSON (.jsonl), the value of `text`, behind that of `title`.
        passages: how many a call returns.
    """

    corpus: str
    passages: Annotated[int, Field(ge=1)] = 3

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The search."""
        query = {"type": "string", "description": "a few words"}
        parameters = {"type": "object", "properties": {"query": query}, "required": ["query"]}
        return (Tool("search", "Finds passages that match a query.", parameters),)

    def open_tools(self, problem: Problem, seed: int) -> Tools:
        """The index, read once a process."""
        return _Searcher(index_of(self.corpus), self.passages)


class _Searcher(Tools):
    def __init__(self, index: Bm25, passages: int) -> None:
        self._index, self._passages = index, passages

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The passages, best first."""
        found = self._index.best(arguments["query"], self._passages)
        return "\n".join(f"[{place + 1}] {text}" for place, text in enumerate(found)) or "nothing found"


class Bm25:
    """An inverted index of passages.

    score(q, d) = Σ_w idf(w) · f (k + 1) / (f + k (1 − b + b |d| / mean |d|))
    idf(w) = ln(1 + (N − n + 0.5) / (n + 0.5))

    with f how often w stands in d, n in how many of the N passages, k = SATURATION and b = LENGTH_WEIGHT.
    """

    def __init__(self, passages: list[str]) -> None:
        self._passages = passages
        words = [_words(passage) for passage in passages]
        mean = sum(map(len, words)) / max(len(words), 1)
        self._weights: dict[str, list[tuple[int, float]]] = defaultdict(list)  # word: passages with its weight in each
        for place, own in enumerate(words):
            length = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * len(own) / mean)
            for word, count in Counter(own).items():
                self._weights[word].append((place, count * (SATURATION + 1) / (count + length)))

    def best(self, query: str, count: int) -> list[str]:
        """The `count` best passages that share a word with the query, best first, earlier ones before equals."""
        scores: dict[int, float] = defaultdict(float)
        for word in set(_words(query)):
            found = self._weights.get(word, [])
            idf = math.log(1 + (len(self._passages) - len(found) + 0.5) / (len(found) + 0.5))
            for place, weight in found:
                scores[place] += idf * weight
        ranked = sorted(scores, key=lambda place: (-scores[place], place))
        return [self._passages[place] for place in ranked[:count]]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@lru_cache(maxsize=4)
def index_of(corpus: str) -> Bm25:
    """The index of a file.

    Raises:
        InputError: it cannot be read, or a line of it is not what its name says.
    """
    path = Path(corpus).expanduser()
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"environment.corpus={corpus}: cannot be read: {error}") from error
    if path.suffix != ".jsonl":
        return Bm25(lines)
    try:
        rows = [json.loads(line) for line in lines]
        return Bm25([f"{row['title']}: {row['text']}" if "title" in row else row["text"] for row in rows])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"environment.corpus={corpus}: a line is no JSON object with `text`: {error}") from error
