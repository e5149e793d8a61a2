"""Propositions: letters joined by ¬, ∧, ∨, → and ↔. Two are equal where their truth tables are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, product

from strop_verify.math.expressions import Node, Token

_NOT = ("neg", "lnot", "¬")
# From the loosest on; an arrow binds to the right.
_JOINS: tuple[tuple[tuple[str, ...], Callable[[bool, bool], bool]], ...] = (
    (("↔",), lambda one, other: one == other),
    (("→", "⇒"), lambda one, other: not one or other),
    (("or",), lambda one, other: one or other),
    (("⊕",), lambda one, other: one != other),
    (("and",), lambda one, other: one and other),
)
_SIGNS = frozenset((*_NOT, *(sign for signs, _ in _JOINS for sign in signs)))
_MOST_LETTERS = 6


def proposition(found: Sequence[Token]) -> Node | None:
    """The truth table of a proposition over the letters that it depends on; None where it is none."""
    texts = ["(" if token.text == "[" else ")" if token.text == "]" else token.text for token in found]
    texts = [text for text in texts if text not in ("{", "}")]
    letters = sorted({text for text in texts if text not in _SIGNS and text not in "()"})
    named = letters and all(len(each) == 1 and each.isalpha() for each in letters)
    if not named or len(letters) > _MOST_LETTERS or not _SIGNS.intersection(texts):
        return None
    unset = dict.fromkeys(letters, False)
    try:
        for letter in letters[:]:  # one that makes no difference is left out
            rest = [each for each in letters if each != letter]
            tables = [_table(texts, rest, unset | {letter: value}) for value in (False, True)]
            letters = rest if rest and tables[0] == tables[1] else letters
        return Node("proposition", (), (tuple(letters), _table(texts, letters, unset)))
    except (KeyError, IndexError):
        return None


def _table(texts: Sequence[str], letters: Sequence[str], fixed: dict[str, bool]) -> tuple[bool, ...]:
    rows = product((False, True), repeat=len(letters))
    return tuple(_value(texts, fixed | dict(zip(letters, row, strict=True))) for row in rows)


def _value(texts: Sequence[str], values: dict[str, bool]) -> bool:
    """The truth of a formula; raises `KeyError` or `IndexError` where it is none."""
    depths = list(accumulate((text == "(") - (text == ")") for text in texts))
    for signs, join in _JOINS:
        places = [at for at, text in enumerate(texts) if text in signs and not depths[at]]
        if places:
            at = places[0] if "→" in signs else places[-1]
            return join(_value(texts[:at], values), _value(texts[at + 1 :], values))
    if texts[0] in _NOT:
        return not _value(texts[1:], values)
    if texts[0] == "(" and texts[-1] == ")":
        return _value(texts[1:-1], values)
    return values[" ".join(texts)]
