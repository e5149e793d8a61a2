"""The words of many languages, from `words.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
COPULAS, HEDGES = (frozenset(WORDS[each].split()) for each in ("copulas", "hedges"))
CONJUNCTIONS = {word: each for each in ("and", "or") for word in WORDS[each].split()}


def by_word(concept: str, apart: str | None = None) -> dict[str, Any]:
    """What each word of a table in `words.toml` stands for, a number or a text."""
    meant = ((int(key) if key.lstrip("-").isdigit() else key, words) for key, words in WORDS[concept].items())
    return {word.strip(): meaning for meaning, words in meant for word in words.split(apart)}
