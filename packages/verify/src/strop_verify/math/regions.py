"""Sets of real numbers: intervals, inequalities in one name, finite sets, their unions and differences.

A set is kept as the points at which membership may change, in order, and whether each of them and each gap between them
belongs to it. Two sets are the same where these are, after points at which nothing changes are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from strop_verify.math import expressions as ex
from strop_verify.math.evaluate import Undefined, Vague, sign_of
from strop_verify.math.expressions import Node, TooMuch
from strop_verify.math.normal_form import Field, Form
from strop_verify.math.proof import compare
from strop_verify.math.wordings import words

_FLIPPED = {"=": "=", "<": ">", ">": "<", "≤": "≥", "≥": "≤", "≠": "≠"}
_HOLDS: dict[str, Callable[[int], bool]] = {
    "<": lambda s: s < 0, ">": lambda s: s > 0, "≤": lambda s: s <= 0, "≥": lambda s: s >= 0, "≠": lambda s: s != 0,
    "=": lambda s: s == 0,
}  # fmt: skip


class Unsolved(Exception):
    """A set that cannot be described by its points."""


class Line(NamedTuple):
    """A set of real numbers.

    Attributes:
        points: where membership may change, in increasing order.
        inside: 2n+1 flags: the gap before the first point, that point, the next gap, …
        variable: the name that it is a set of values of, where there is one.
    """

    points: tuple[Node, ...]
    inside: tuple[bool, ...]
    variable: str | None = None


def line(answer: Node) -> Line:
    """The set that an answer describes; raises `Unsolved` where its points cannot be found and put in order."""
    if answer.op == "interval" or (answer.op == "tuple" and len(answer.args) == 2):
        low, high = answer.args
        return _interval(low, high, answer.value or (False, False))
    ops = {part.op for part in answer.args} if answer.op in ("list", "set") else set()
    if ops & {"relation", "interval"} and ops <= {"relation", "interval", "tuple"}:
        parts = list(map(line, answer.args))
        both = joined(parts, all)
        conditions = all(part.op == "relation" for part in answer.args) and any(both.inside)
        return both if conditions else joined(parts, any)  # x > 1, x ≠ 4; but x < 2, x > 3
    if answer.op == "set":
        return joined([Line((point,), (False, True, False)) for point in answer.args], any)
    if answer.op == "words" and answer.value in (("none",), ("ℝ",)):
        return Line((), (answer.value == ("ℝ",),))
    if answer.op == "relation":
        return _relation(answer)
    rules: dict[str, Callable[[Sequence[bool]], bool]] = {
        "∪": any, "∩": all, "∖": lambda flags: flags[0] and not any(flags[1:]),
    }  # fmt: skip
    if answer.op not in rules:
        raise Unsolved
    return joined(list(map(line, answer.args)), rules[answer.op])


def pieces(function: Node) -> list[tuple[Node, Line]]:
    """The values of a function by cases, each with where it holds; any other function holds everywhere."""
    rest, found = words("otherwise"), list[tuple[Node, Line]]()
    for value, condition in [each.args for each in function.args] if function.op == "cases" else [(function, rest)]:
        others = [part for _, part in found]
        found.append((value, joined(others, lambda flags: not any(flags)) if condition == rest else line(condition)))
    return found


def shared(first: list[tuple[Node, Line]], second: list[tuple[Node, Line]]) -> Iterator[tuple[Node, Node]]:
    """The values of two functions by cases wherever a case of each holds: with their bars resolved, or at a point."""
    for (value, part), (other, also) in product(first, second):
        both = joined([part, also], all)
        if any(both.inside[::2]):
            yield _without_bars(value, both), _without_bars(other, both)
            continue
        for point in (each for each, inside in zip(both.points, both.inside[1::2], strict=True) if inside):
            yield tuple(ex.replaced(each, ex.name(str(both.variable)), point) for each in (value, other))  # type: ignore


def _without_bars(value: Node, region: Line) -> Node:
    for bars in [each for each in ex.parts(value) if each.op == "abs"]:
        for inner in (bars.args[0], ex.minus(bars.args[0])):
            if same(joined([region, _solved(inner, "≥", ex.ZERO)], all), region):
                value = ex.replaced(value, bars, inner)
    return value


def same(first: Line, second: Line) -> bool:
    """Whether two sets are proved to be the same."""
    (points, inside), (others, also) = _reduced(first), _reduced(second)
    return inside == also and all(compare(one, other).equal for one, other in zip(points, others, strict=True))


def _interval(low: Node, high: Node, closed: tuple[bool, bool]) -> Line:
    finite = not ex.is_infinite(low) and not ex.is_infinite(high)
    if finite and _order(low, high) >= 0:
        raise Unsolved  # its ends are in the wrong order: it is a pair
    above = Line((), (True,)) if low == ex.minus(ex.INFINITY) else Line((low,), (False, closed[0], True))
    below = Line((), (True,)) if high == ex.INFINITY else Line((high,), (True, closed[1], False))
    return joined([above, below], all)


def joined(parts: list[Line], rule: Callable[[Sequence[bool]], bool]) -> Line:
    """The set of the points for which a rule holds of their membership in the parts."""
    names = {part.variable for part in parts} - {None}
    if len(names) > 1:
        raise Unsolved
    points: list[Node] = []
    among: dict[Node, Node] = {}  # the point of these that each point is
    for point in (point for part in parts for point in part.points if point not in among):
        orders = [_order(point, known) for known in points]
        among[point] = points[orders.index(0)] if 0 in orders else point
        if 0 not in orders:
            points.insert(sum(order > 0 for order in orders), point)
    places = [[2 * points.index(among[point]) + 1 for point in part.points] for part in parts]
    each_in = list(zip(parts, places, strict=True))
    flags = [rule([_member(*each, place) for each in each_in]) for place in range(2 * len(points) + 1)]
    return Line(tuple(points), tuple(flags), next(iter(names), None))


def _member(part: Line, places: list[int], place: int) -> bool:
    """Whether a point or gap of a finer division, where the points of a set have their places, lies in the set."""
    return part.inside[2 * sum(each < place for each in places) + (place in places)]


def _reduced(given: Line) -> tuple[list[Node], list[bool]]:
    points: list[Node] = []
    inside = [given.inside[0]]
    for point, at, after in zip(given.points, given.inside[1::2], given.inside[2::2], strict=True):
        if not inside[-1] == at == after:
            points.append(point)
            inside += [at, after]
    return points, inside


def _sign(node: Node) -> int:
    """The sign of a constant; raises `Unsolved` if it is not known."""
    if ex.names_in(node):
        raise Unsolved
    for precision in (80, 400):
        known = sign_of(node, precision)
        if known is not None:
            return known
    if compare(node, ex.ZERO).equal:
        return 0
    raise Unsolved


def _order(first: Node, second: Node) -> int:
    return 0 if first == second else _sign(ex.plus(first, ex.minus(second)))


def _relation(given: Node) -> Line:
    if given.value in (("∈",), ("∉",)) and given.args[0].op == "name":
        inside, within = line(given.args[1]), given.value == ("∈",)
        return Line(inside.points, tuple(each is within for each in inside.inside), str(given.args[0].value))
    if not set(given.value) <= set(_HOLDS):
        raise Unsolved
    if given.value == ("≠",) and ex.holds(given, "±", "∓"):
        return joined(list(map(_relation, ex.variants(given))), all)
    return joined([_solved(*each) for each in zip(given.args, given.value, given.args[1:], strict=False)], all)


def _solved(left: Node, op: str, right: Node) -> Line:
    """The solutions of an inequality: linear, quadratic, or of one absolute value of something linear."""
    names = ex.names_in(left) | ex.names_in(right)
    if len(names) != 1:
        raise Unsolved
    variable = next(iter(names))
    if ex.is_infinite(left) or ex.is_infinite(right):  # -∞ < x < 1
        return Line((), (True,), variable)
    field = Field()
    try:
        form = field.difference(left, right)
        bars = [mono for mono in form if any(field.atoms[atom].kind == "abs" for atom, _ in mono)]
        if not bars:
            return _by_sign(_coefficients(field, form), op)._replace(variable=variable)
        rest = {mono: factor for mono, factor in form.items() if mono not in bars}
        constant = all(field.atoms[atom].constant for mono in rest for atom, _ in mono)
        if op == "=" or len(bars) > 1 or len(bars[0]) > 1 or bars[0][0][1] != 1 or not constant:
            raise Unsolved
        factor, inner = form[bars[0]], field.node(field.atoms[bars[0][0][0]].data)
    except (Undefined, Vague, TooMuch) as error:
        raise Unsolved from error
    op = _FLIPPED[op] if factor < 0 else op  # factor·|inner| + rest op 0
    limit = ex.times(ex.number(-1 / factor), field.node(rest))
    sides = [_solved(inner, op, limit), _solved(ex.minus(inner), op, limit)]
    return joined(sides, any if op in (">", "≥") else all)


def _coefficients(field: Field, form: Form) -> list[Node]:
    """The coefficients of a polynomial of degree 1 or 2 in one name, the constant first."""
    powers: dict[int, Form] = {}
    for mono, factor in form.items():
        named = [exponent for atom, exponent in mono if not field.atoms[atom].constant]
        rest = tuple(part for part in mono if field.atoms[part[0]].constant)
        plain = all(field.atoms[atom].kind == "name" or field.atoms[atom].constant for atom, _ in mono)
        if len(named) > 1 or any(exponent not in (1, 2) for exponent in named) or not plain:
            raise Unsolved
        powers.setdefault(int(sum(named)), {})[rest] = factor
    degree = max(powers, default=0)
    if not degree:
        raise Unsolved
    return [field.node(powers.get(each, {})) for each in range(degree + 1)]


def _by_sign(coefficients: list[Node], op: str) -> Line:
    """Where a polynomial of degree 1 or 2 stands in a relation to 0."""
    lead, holds = _sign(coefficients[-1]), _HOLDS[op]
    c, b = coefficients[:2]
    if len(coefficients) == 2:
        return Line((ex.over(ex.minus(c), b),), tuple(map(holds, (-lead, 0, lead))))
    a = coefficients[2]
    discriminant = ex.plus(ex.power(b, ex.number(2)), ex.times(ex.number(-4), a, c))
    half = ex.over(ex.HALF, a)
    kind = _sign(discriminant)
    if kind < 0:
        return Line((), (holds(lead),))
    if kind == 0:
        return Line((ex.times(ex.minus(b), half),), tuple(map(holds, (lead, 0, lead))))
    root = ex.times(ex.number(lead), ex.power(discriminant, ex.number(Fraction(1, 2))))
    ends = tuple(ex.times(ex.plus(ex.minus(b), each), half) for each in (ex.minus(root), root))
    return Line(ends, tuple(map(holds, (lead, 0, -lead, 0, lead))))
