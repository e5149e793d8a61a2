"""Quantities: an expression with its unit, percent sign, counted things or words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from strop_verify.math import expressions as ex
from strop_verify.math.expressions import Node, Token, Unreadable
from strop_verify.math.parser import Cursor, Parser
from strop_verify.math.units import CURRENCY, MULTIPLES, Unit, counts, read_unit
from strop_verify.math.wordings import HEDGES, is_symbol, text_of, words

_CLOSING = re.compile(r"(?:^| )(?:in total|in all|total|altogether|overall|answer|old)$")
_ANY = ("real", "reals", "number", "numbers", "integer", "integers", "value", "values", "of", "positive", "natural")
_NEGATIVE = ("minus", "negative")
_UNIT_LETTERS = frozenset((*"msghlLJNWVAKCF", "Omega", "mu"))


class Measure(NamedTuple):
    """What an expression is measured in or counts, and the words that belong to it."""

    unit: Unit | None = None
    percent: bool = False
    thing: str = ""
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        unit = "" if self.unit is None else f"[{self.unit}] "
        return f"{unit}{'% ' * self.percent}{self.thing} {' '.join(self.words)}".strip()


def measured(node: Node, measure: Measure) -> Node:
    """An expression with its measure; without one where there is nothing to say."""
    return node if measure == Measure() else Node("measure", (node,), measure)


def quantity_of(found: Sequence[Token]) -> Node | None:
    """An expression with what it counts or is measured in; None where that is not all."""
    found = list(found)
    if found and found[0].text.lower() in _NEGATIVE:
        found[0] = Token("symbol", "-")
    for place in range(1, len(found) - 1):  # 2 h 30 min
        if found[place].text in ("h", "d") and found[place - 1].kind == found[place + 1].kind == "number":
            found[place] = found[place]._replace(kind="word")
    found = _without_fractions_of_units(found)
    money = (place for place in {0, 1, len(found) - 1} if found[place : place + 1] and _is_currency(found[place]))
    sign = next(money, None)
    measure = Measure(unit=None if sign is None else read_unit([found.pop(sign)]))
    percent = bool(found) and is_symbol(found[-1], "%")
    parser = Parser(found[: len(found) - percent])
    try:
        node = parser.expression()
    except Unreadable:
        return None
    rest = list(parser.tokens[parser.place :])
    while rest and rest[0].text.lower().removesuffix("s") in MULTIPLES:
        node = ex.times(node, ex.number(MULTIPLES[rest.pop(0).text.lower().removesuffix("s")]))
    said = text_of(rest).lower()
    for words_ in ("percent", "percentage", "pct", "per cent", "%"):
        if said == words_ or said.startswith(f"{words_} "):
            percent, rest = True, rest[len(words_.split()) :]
    if said in ("per mille", "permille"):
        node, rest = ex.over(node, ex.number(1000)), []
    if rest and rest[0].text in ("degrees", "degree", "deg"):
        node, rest = ex.call("degree", node), rest[1:]
    scale = {"c": "celsius", "f": "fahrenheit"}.get(rest[0].text.lower(), rest[0].text.lower()) if rest else ""
    if node.op == "degree" and scale in ("celsius", "fahrenheit"):
        node, rest = node.args[0], [rest[0]._replace(text=scale), *rest[1:]]
    return _with_rest(node, measure._replace(percent=percent), rest)


def _without_fractions_of_units(found: list[Token]) -> list[Token]:
    r"""`9.8 \frac{\text{m}}{\text{s}^2}` as `9.8 m / s^2`."""
    place = next((place for place, token in enumerate(found) if place and token.text == "frac"), len(found))
    groups = Cursor(found, place + 1)
    try:
        top, bottom = groups.inside("{"), groups.inside("{")
    except Unreadable:
        return found
    upright = all(token.kind == "word" for token in (*top[:1], *bottom[:1]))
    if not upright or read_unit(top) is None or read_unit(bottom) is None:
        return found
    return [*found[:place], *top, Token("symbol", "/"), *bottom, *found[groups.place :]]


def _with_rest(node: Node, measure: Measure, rest: list[Token]) -> Node | None:
    """An expression with the unit, the things or the words that follow it."""
    following = [place for place, token in enumerate(rest) if place and token.kind == "number" and token.space]
    if following and not is_symbol(rest[following[0] - 1], "^", "{"):
        return _compound(node, read_unit(rest[: following[0]]), quantity_of(rest[following[0] :]))
    rest = [token for token in rest if not is_symbol(token, "(", ")")]
    end = (
        next((end for end in range(len(rest), 0, -1) if read_unit(rest[:end]) is not None), 0)
        if measure.unit is None
        else 0
    )
    measure = measure._replace(unit=read_unit(rest[:end])) if end else measure
    if any(token.kind not in ("word", "letter") and not is_symbol(token, ".", "-") for token in rest[end:]):
        return None
    said = tuple(
        _CLOSING.sub("", " ".join(token.text.lower() for token in rest[end:] if token.kind != "symbol")).split()
    )
    each = said[:2] in (("for", "all"), ("for", "any"), ("for", "every"))
    if each and all(len(word) == 1 or word in _ANY for word in said[2:]):  # f(x) = 2x for all x
        said = ()
    if said and measure.unit is None and counts(said):
        return measured(node, measure._replace(thing=said[-1]))
    if (
        said
        and measure.unit is not None
        and (said[0] in ("of", "in", "each") or counts(said))
        and not set(said) & set(HEDGES.split())
    ):
        return measured(node, measure)  # 5 liters of water
    return measured(node, measure._replace(words=words(" ".join(said)).value if said else ()))


def _compound(node: Node, unit: Unit | None, second: Node | None) -> Node | None:
    """`2 hours 30 minutes`: a quantity and one in a smaller unit of the same dimension."""
    smaller = second.value.unit if second is not None and second.op == "measure" and not second.value.words else None
    if second is None or unit is None or smaller is None or smaller.dimension != unit.dimension:
        return None
    share = smaller.factor / unit.factor
    return measured(ex.plus(node, ex.times(second.args[0], ex.number(share))), Measure(unit)) if share < 1 else None


def _is_currency(token: Token) -> bool:
    return is_symbol(token, *CURRENCY) or token.text.lower() in ("usd", "eur", "gbp", "inr", "rs")


def in_letters(found: Sequence[Token]) -> Node | None:
    """A number whose unit is written in bare letters, `5m`, `3 m/s`: for answers to a reference without names."""
    for place in range(1, len(found)):
        bare = [token.text for token in found[place:] if token.kind == "letter"]
        unit = read_unit(found[place:]) if set(bare) <= _UNIT_LETTERS and found[place].text != "*" else None
        node = quantity_of(found[:place]) if unit is not None else None
        if node is not None and not ex.names_in(node) and node.op != "measure":
            return measured(node, Measure(unit))
    return None
