"""Families of answers, one for each integer, as sets: two unions of progressions are compared modulo their period."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from strop_verify.math import expressions as ex
from strop_verify.math.conventions import by_name
from strop_verify.math.evaluate import Undefined
from strop_verify.math.expressions import Node, TooMuch
from strop_verify.math.normal_form import Field, Form, added, scaled

_MOST_MEMBERS = 256  # of one period
Vector = tuple[Form, ...]
Progression = tuple[Vector, Vector]  # the points start + k·step for each integer k


def same_members(first: Sequence[Node], second: Sequence[Node]) -> bool | None:
    """Whether two unions of families over all integers have the same members; None where that is not known."""
    families = (*first, *second)
    named = [members(family.args[0]) for family in families]
    field = Field(whole=frozenset(family.value for family in families))
    found: list[tuple[bool, Progression]] = []
    for place, ((_, parts), family) in enumerate(zip(named, families, strict=True)):
        try:
            progressions = _progressions(field, parts, family.value)
        except (Undefined, TooMuch):
            return None
        found += [(place < len(first), each) for each in progressions]
        if not progressions or len(parts) != len(found[0][1][0]):
            return None
    unit = found[0][1][1]
    turns = [abs(turn) for _, (_, step) in found if (turn := _ratio(field, step, unit))]
    if len(turns) < len(found) or len({names for names, _ in named if names}) > 1:
        return None
    period = Fraction(math.lcm(*(each.numerator for each in turns)), math.gcd(*(each.denominator for each in turns)))
    if sum(period / each for each in turns) > _MOST_MEMBERS:
        return None
    origins: list[Vector] = []  # starts that are no multiple of the step apart
    residues: tuple[set[tuple[int, Fraction]], ...] = (set(), set())
    for (is_first, (start, _)), turn in zip(found, turns, strict=True):
        gaps = (
            [added(one, scaled(other, -1)) for one, other in zip(start, origin, strict=True)]
            for origin in (*origins, start)
        )
        offsets = (_ratio(field, gap, unit) for gap in gaps)
        at, offset = next((at, offset) for at, offset in enumerate(offsets) if offset is not None)
        origins += [start][at < len(origins) :]
        residues[is_first].update((at, (offset + step * turn) % period) for step in range(int(period / turn)))
    return residues[0] == residues[1] or (False if len(origins) == 1 else None)


def members(body: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The names of the components of a member, where it says them, and the components."""
    if body.op == "list" and all(map(ex.label, body.args)):  # x = 2 + 3t, y = 1 - 2t
        parts = by_name(body.args)
        return tuple(part.args[0] for part in parts), tuple(part.args[-1] for part in parts)
    label = ex.label(body)
    value = body if label is None else body.args[-1]
    names = () if label is None else label.args or (label,)
    return names, value.args if value.op == "tuple" else (value,)


def _progressions(field: Field, parts: Sequence[Node], index: str) -> list[Progression]:
    """The progression that the members are, or those for even and for odd numbers: of `(-1)^k a + kπ`; else none."""
    for count in (1, 2):
        numbers = [ex.plus(ex.times(ex.number(count), ex.name(index)), ex.number(rest)) for rest in range(count)]
        lines = [[_line(field, ex.replaced(part, ex.name(index), each), index) for part in parts] for each in numbers]
        if all(None not in line for line in lines):
            return [tuple(zip(*line, strict=True)) for line in lines]
    return []


def _line(field: Field, part: Node, index: str) -> tuple[Form, Form] | None:
    """Where a linear function of a name begins, and its step; None for any other function."""
    start, step = Form(), Form()
    for mono, factor in field.of(part).items():
        within = [place for place in mono if index in ex.names_in(field.atoms[place[0]].node)]
        if len(within) > 1 or any(field.atoms[atom].kind != "name" or exponent != 1 for atom, exponent in within):
            return None
        (step if within else start)[tuple(place for place in mono if place not in within)] = factor
    return start, step


def _ratio(field: Field, vector: Sequence[Form], unit: Vector) -> Fraction | None:
    """The rational number that one vector is times another; None where none is known."""
    place = next((place for place, each in enumerate(unit) if each), None)
    form = {(): Fraction(0)} if place is None else field.quotient(vector[place], unit[place])
    found = form.get((), Fraction(0))
    same = not set(form) - {()} and all(each == scaled(by, found) for each, by in zip(vector, unit, strict=True))
    return found if same else None
