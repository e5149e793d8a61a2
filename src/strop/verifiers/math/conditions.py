r"""Conditions after an answer: over which integers a name runs, `k \in \mathbb{Z}`, "where n is an integer"."""

from __future__ import annotations

from collections.abc import Sequence

from strop.verifiers.math.expressions import Node, Token
from strop.verifiers.math.token_lists import closing_place, is_symbol
from strop.verifiers.math.wordings import words

_INTEGERS = ("positive", "nonnegative", "non-negative", "natural", "negative", "odd", "even", "nonzero")
_SUBSETS = {"^+": "positive", "_+": "positive", "_>0": "positive", "_≥0": "nonnegative", "_≥1": "positive"}


def index_of(piece: Sequence[Token]) -> tuple[str, Node] | None:
    r"""k, and which integers it is, where a piece says `k \in \mathbb{Z}` or "where k is an integer"."""
    names = [
        token.text
        for token in piece
        if token.kind == "letter" or (len(token.text) == 1 and token.text.isalpha() and token.text != "a")
    ]
    said = [token.text.lower() for token in piece]
    names = [each for each in names if each not in "ℤℕℝ"]
    which = "ℤ" if {"integer", "integers"}.intersection(said) else "constant" if "constant" in said else ""
    if "∈" in said:
        place = said.index("∈") + 1
        kind, rest = said[place] if place < len(said) else "", [each for each in piece[place + 1 :] if each.text != ")"]
        which = (subset_of(rest) if rest else kind) if kind == "ℤ" else kind if kind in ("ℕ", "ℝ") and not rest else ""
    which = next((word for word in said if word in _INTEGERS), which)
    return (names[0], words(which)) if len(names) == 1 and which else None


def begins_condition(found: Sequence[Token]) -> bool:
    r"""Whether "where …", "for …" or, in parentheses, `k \in …` begins here and goes on to the end."""
    closed = is_symbol(found[0], "(") and closing_place(found) == len(found) - 1
    return found[0].text in ("for", "where") or (closed and any(is_symbol(token, "∈") for token in found))


def subset_of(found: Sequence[Token]) -> str:
    """Which numbers of a set an index of it says: `_{>0}`, `^+`."""
    return _SUBSETS.get("".join(token.text for token in found if token.text not in ("{", "}", "(", ")")), "")
