"""Propositions: letters joined by ¬, ∧, ∨, → and ↔. Two are equal where their truth tables are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

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
Values = dict[str, bool]
Formula = Callable[[Values], bool]


def proposition(found: Sequence[Token]) -> Node | None:
    """The truth table of a proposition over the letters that it depends on; None where it is none."""
    texts = [token.text for token in found if token.text not in ("{", "}")]
    letters = sorted({text for text in texts if text not in _SIGNS and text not in "()[]"})
    named = letters and all(len(each) == 1 and each.isalpha() for each in letters)
    if not named or len(letters) > _MOST_LETTERS or not _SIGNS.intersection(texts):
        return None
    place, formula = _joined(texts, 0, 0)
    if formula is None or place < len(texts):
        return None
    for letter in letters[:]:  # one that makes no difference is left out
        rows = [dict(zip(letters, row, strict=True)) for row in product((False, True), repeat=len(letters))]
        if len(letters) > 1 and all(formula(row | {letter: True}) == formula(row | {letter: False}) for row in rows):
            letters.remove(letter)
            formula = partial(lambda whole, fixed, values: whole(values | fixed), formula, {letter: False})
    rows = [dict(zip(letters, row, strict=True)) for row in product((False, True), repeat=len(letters))]
    return Node("proposition", (), (tuple(letters), tuple(map(formula, rows))))


def _joined(texts: Sequence[str], place: int, level: int) -> tuple[int, Formula | None]:
    """Where a formula at a place ends, and what it is."""
    if level == len(_JOINS):
        return _single(texts, place)
    signs, join = _JOINS[level]
    place, first = _joined(texts, place, level + 1)
    while first is not None and place < len(texts) and texts[place] in signs:
        place, second = _joined(texts, place + 1, level if signs[0] == "→" else level + 1)
        first = None if second is None else _both(join, first, second)
    return place, first


def _both(join: Callable[[bool, bool], bool], first: Formula, second: Formula) -> Formula:
    return lambda values: join(first(values), second(values))


def _single(texts: Sequence[str], place: int) -> tuple[int, Formula | None]:
    text = texts[place] if place < len(texts) else ""
    if text in _NOT:
        place, inner = _single(texts, place + 1)
        return place, None if inner is None else _both(lambda one, other: not one, inner, inner)
    if text in ("(", "["):
        place, inner = _joined(texts, place + 1, 0)
        closed = place < len(texts) and texts[place] in (")", "]")
        return place + 1, inner if closed else None
    return (place + 1, lambda values: values[text]) if len(text) == 1 and text.isalpha() else (place, None)
