r"""Conditions after an answer: over which integers a name runs, `k \in \mathbb{Z}`, "where n is an integer"."""

from __future__ import annotations

from collections.abc import Sequence

from strop_verify.math.expressions import Node, Token
from strop_verify.math.token_lists import closing_place, is_symbol
from strop_verify.math.wordings import HEDGES, words

_INTEGERS = ("positive", "nonnegative", "non-negative", "natural", "negative", "odd", "even", "nonzero")
_SUBSETS = {"^+": "positive", "_+": "positive", "_>0": "positive", "_≥0": "nonnegative", "_≥1": "positive"}


def index_of(piece: Sequence[Token]) -> tuple[str, Node] | None:
    r"""k, and which integers it is, where a piece says `k \in \mathbb{Z}` or "where k is an integer"."""
    said = [token.text.lower() for token in piece]
    no_name = "ℤℕℝ" if "∈" in said else "aℤℕℝ"  # the article
    alone = (each.text for each in piece if len(each.text) == 1 and each.text.isalpha() and each.text not in no_name)
    names = [*alone, *(each.text for each in piece if each.kind == "letter" and len(each.text) > 1)]
    which = "ℤ" if {"integer", "integers"}.intersection(said) else "constant" if "constant" in said else ""
    if "∈" in said:
        place = said.index("∈") + 1
        kind, rest = said[place] if place < len(said) else "", [each for each in piece[place + 1 :] if each.text != ")"]
        which = (subset_of(rest) if rest else kind) if kind == "ℤ" else kind if kind in ("ℕ", "ℝ") and not rest else ""
    else:  # for integers n ≥ 2
        which += "".join(token.text for token in piece if which and (token.kind == "number" or token.text in "<>≤≥≠="))
    if set(said) & set(HEDGES.split()):
        return None
    which = next((word for word in said if word in _INTEGERS), which)
    return (names[0], words(which)) if len(names) == 1 and which else None


def begins_condition(found: Sequence[Token], place: int) -> bool:
    r"""Whether "where …", "for …" or, in parentheses, `k \in …` begins at a place and goes on to the end."""
    if found[place].text != "(":
        return found[place].text in ("for", "where")
    rest = found[place:]
    return closing_place(rest) == len(rest) - 1 and any(is_symbol(token, "∈") for token in rest)


def subset_of(found: Sequence[Token]) -> str:
    """Which numbers of a set an index of it says: `_{>0}`, `^+`."""
    return _SUBSETS.get("".join(token.text for token in found if token.text not in ("{", "}", "(", ")")), "")
