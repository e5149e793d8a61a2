r"""Whether two expressions are equal: proved equal, proved different, or unknown.

Equal: their normal forms are the same, or their difference is an algebraic number smaller than the smallest that it
could be without being 0. Different: a point at which both have a value, and intervals or rationals that separate the
two. There is no tolerance: what is neither proved is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import NamedTuple

from strop_verify.math import expressions as ex
from strop_verify.math.evaluate import Point, Undefined, Vague, Value, below, disjoint, interval, rational, sign, value
from strop_verify.math.expressions import Node, TooMuch
from strop_verify.math.normal_form import Field

_PRECISIONS = (80, 320, 1280, 5120)
_MOST_BITS = 40_000


class ProofOutcome(StrEnum):
    """What is proved of two answers."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    BEYOND = "beyond"  # the bounds: of a whole comparison only


class Proof(NamedTuple):
    """An outcome and what shows it."""

    outcome: ProofOutcome
    why: str

    @property
    def equal(self) -> bool:
        """Whether the two are proved equal."""
        return self.outcome is ProofOutcome.EQUAL


equal, different, unknown = (partial(Proof, outcome) for outcome in list(ProofOutcome)[:3])


def compare(first: Node, second: Node) -> Proof:
    """Prove two expressions equal or different, if possible."""
    try:
        named = ex.names_in(first) or ex.names_in(second)
        return functions(first, second) if named else constants(first, second)
    except TooMuch as limit:
        return unknown(str(limit))
    except Undefined:
        return unknown("one of them has no value")


def constants(first: Node, second: Node) -> Proof:
    """Two expressions without names."""
    settled = _apart(first, second, {}, _PRECISIONS[:1])
    if settled is not None:
        return settled
    difference = ex.plus(first, ex.minus(second))
    try:
        field = Field(is_zero)
        form = field.difference(first, second)
        if not form:
            return equal(f"one normal form: {field.node(field.of(first))}")
        difference = difference if _least_bits(difference) is not None else field.node(form)
    except TooMuch:
        pass
    bits = _least_bits(difference)
    if bits is None:
        return _apart(first, second, {}, _PRECISIONS[1:]) or unknown("no normal form, and the intervals meet")
    if is_zero(difference):
        return equal(f"they differ by less than 2^-{bits}, which an algebraic number like this cannot")
    return _apart(first, second, {}, (max(bits + 64, _PRECISIONS[1]),)) or unknown("the intervals meet")


def _apart(first: Node, second: Node, point: Point, precisions: tuple[int, ...]) -> Proof | None:
    """The proof that two expressions differ at a point, or that both are the same rational number there."""
    for precision in precisions:
        try:
            one, other = value(first, point, precision), value(second, point, precision)
        except Vague:
            continue
        if disjoint(one, other):
            at = ", ".join(f"{each} = {number}" for each, number in point.items())
            return different(f"{said(one)} and {said(other)}" + (f" at {at}" if at else ""))
        if isinstance(one, Fraction) and isinstance(other, Fraction):
            return equal(f"both are {said(one)}")
    return None


def is_zero(node: Node) -> bool:
    """Whether a constant is proved to be 0."""
    bits = _least_bits(node)
    try:
        return bits is not None and below(value(node, {}, bits + 64), bits)
    except Vague:
        return False


def _least_bits(node: Node) -> int | None:
    r"""How many bits tell an algebraic number from 0: |x| ≥ 2^{-bits} unless x = 0. None where it is not algebraic.

    x = u/l with algebraic integers u, l whose conjugates are at most U, L: the norm of u is a non-zero integer, so
    |x| ≥ 1/(U^{D−1} L), D the degree of the field (Burnikel, Fleischer, Mehlhorn, Schirra: the BFMSS bound).
    """
    degrees: dict[Node, int] = {}
    orders: list[int] = []
    sizes = _sizes(node, degrees, orders)
    if sizes is None:
        return None
    turns = math.lcm(*orders, 1)
    totient = sum(math.gcd(each, turns) == 1 for each in range(1, turns + 1)) if turns < 10_000 else turns
    bits = (math.prod(degrees.values()) * totient - 1) * sizes[0] + sizes[1] + 8
    return math.ceil(bits) if bits < _MOST_BITS else None


def _sizes(node: Node, degrees: dict[Node, int], orders: list[int]) -> tuple[float, float] | None:
    """log2 of U and L; collects the degrees of roots and the orders of roots of unity."""
    if node.op in ("number", "decimal"):
        exact = Fraction(node.value)
        return float(abs(exact.numerator).bit_length()), float(exact.denominator.bit_length())
    if node == ex.UNIT:
        orders.append(4)
        return 0.0, 0.0
    if node.op == "power":
        return _sizes_of_power(node, degrees, orders)
    if node.op not in ("sum", "product"):
        return None
    inner = [_sizes(arg, degrees, orders) for arg in node.args]
    known = [each for each in inner if each is not None]
    if len(known) < len(inner):
        return None
    lower = sum(low for _, low in known)
    if node.op == "product":
        return sum(upper for upper, _ in known), lower
    return max(upper - low for upper, low in known) + lower + math.log2(len(known)), lower


def _sizes_of_power(node: Node, degrees: dict[Node, int], orders: list[int]) -> tuple[float, float] | None:
    base, exponent = node.args
    if base == ex.E and exponent.op == "product" and {ex.UNIT, ex.PI} <= set(exponent.args):  # e^{iπq}
        rest = ex.times(ex.ONE, *(arg for arg in exponent.args if arg not in (ex.UNIT, ex.PI)))
        share = rational(rest) if len(exponent.args) == len(rest.args) + 1 else None
        orders.append(2 * share.denominator if share is not None else 1)
        return None if share is None else (0.0, 0.0)
    inner, raised = _sizes(base, degrees, orders), rational(exponent)
    if inner is None or raised is None or abs(raised.numerator) > 10_000:
        return None
    upper, lower = inner if raised >= 0 else (inner[1], inner[0])
    if raised.denominator > 1:  # the root of u/l is that of u·l^{k−1}, over l
        degrees[ex.power(base, ex.number(Fraction(1, raised.denominator)))] = raised.denominator
        upper = (upper + (raised.denominator - 1) * lower) / raised.denominator
    return upper * abs(raised.numerator), lower * abs(raised.numerator)


def functions(first: Node, second: Node) -> Proof:
    """Two expressions in names: equal wherever both are real."""
    bounds, whole = [_bounds(first), _bounds(second)], _whole_names(first) | _whole_names(second)
    real = ex.UNIT not in ex.parts(first) and ex.UNIT not in ex.parts(second)
    begun = _apart_at(first, second, next(_points(first, second, whole)), bounds, 1) if real else None
    if begun is not None:  # most that differ do at once
        return begun
    field = Field(is_zero, _under_roots(bounds[0] + bounds[1]), whole)
    try:
        difference = field.difference(first, second)
        same = not difference or field.vanishes(difference)
    except TooMuch:
        same = False
    bounds = bounds if real else [[], []]
    for point in islice(_points(first, second, whole), int(same and real), 7 if same else None):
        apart = _apart_at(first, second, point, bounds, 1 if same else 3)
        if apart is not None:
            return unknown(f"one normal form, but {apart.why}") if same else apart
    return equal(f"one normal form: {field.node(field.of(first))}") if same else unknown("no point separates them")


def _apart_at(first: Node, second: Node, point: Point, bounds: list[list[Node]], most: int) -> Proof | None:
    """The proof that two functions differ at a point; of real functions only where every root and logarithm is real.

    Where only the second is not real, that is no proof unless the first has no root and no logarithm.
    """
    for precision in _PRECISIONS[:most]:
        try:
            if not _in_domain(bounds[0], point, precision):
                return None
            if not _in_domain(bounds[1], point, precision):
                outside = any(number < 0 for number in point.values()) and any(map(_limits, ex.parts(first)))
                return None if outside else different("one of them is real where the other is not")
            found = _apart(first, second, point, (precision,))
            if found is not None:
                return None if found.equal else found
        except Vague:
            continue
        except (Undefined, TooMuch):
            return None
    return None


def _domain(node: Node) -> Node | None:
    """What must not be negative for the outermost operation to be real."""
    if node.op in ("ln", "log"):
        return node.args[0]
    if node.op in ("arcsin", "arccos"):
        return ex.plus(ex.ONE, ex.minus(ex.power(node.args[0], ex.number(2))))
    exponent = rational(node.args[1]) if node.op == "power" else None
    return node.args[0] if exponent is not None and exponent.denominator % 2 == 0 else None


def _limits(node: Node) -> bool:
    return _domain(node) is not None or (node.op == "power" and bool(ex.names_in(node.args[1])))


def _bounds(node: Node) -> list[Node]:
    """What must not be negative for a tree to be real."""
    return [inner for each in ex.parts(node) if (inner := _domain(each)) is not None and ex.names_in(inner)]


def _in_domain(bounds: list[Node], point: Point, precision: int) -> bool:
    return all(sign(value(each, point, precision)) >= 0 for each in bounds)


def _under_roots(bounds: list[Node]) -> frozenset[str]:
    """Names by themselves, or times a positive number, under an even root or in a logarithm."""
    found = set()
    for inner in bounds:
        factors = inner.args if inner.op == "product" else (inner,)
        named = [factor for factor in factors if ex.names_in(factor)]
        rest = [rational(factor) for factor in factors if factor not in named]
        if len(named) == 1 and named[0].op == "name" and all(factor is not None and factor > 0 for factor in rest):
            found.add(str(named[0].value))
    return frozenset(found)


def _whole_names(node: Node) -> frozenset[str]:
    """Names that only make sense as integers: in factorials, under gcd, as exponents of negative numbers, by π."""
    found: frozenset[str] = frozenset()
    for each in ex.parts(node):
        base = rational(each.args[0]) if each.op == "power" else None
        whole = "factorial" in each.op or each.op in ("apply Gamma", "binom", "gcd", "lcm")
        if whole or (base is not None and base < 0):
            found |= ex.names_in(each)
    return found


_REALS, _WHOLE = (tuple(map(Fraction, each.split())) for each in (
    "2 -3 7/3 -5/7 1/2 11 -13/4 101 1/1000 -1/1001 1000003/7 -100019/3 17/16 -1/2 5 9/4 -20 1",
    "3 4 7 2 10 5 101 1 6 12 9 8 25 30 16 11 64 60",
))  # fmt: skip


def _points(first: Node, second: Node, whole: frozenset[str]) -> Iterator[Point]:
    """Points of every kind: small and large, of both signs, whole and broken."""
    names = sorted(ex.names_in(first) | ex.names_in(second))
    pools = {each: _WHOLE if each in whole else _REALS for each in names}
    for turn in range(18):
        yield {each: pools[each][(turn + 5 * place + 3 * place * turn) % 18] for place, each in enumerate(names)}
    for large in (Fraction(10**6 + 3), Fraction(10**12 + 39), Fraction(5040), Fraction(-(10**6) - 1, 2)):
        yield {each: Fraction(77 + place) if each in whole else large + place for place, each in enumerate(names)}


def said(given: Value) -> str:
    """A value for people: exact where it is short, else 20 digits."""
    if isinstance(given, Fraction) and given.numerator.bit_length() + given.denominator.bit_length() < 130:
        return str(given)
    shown = interval(given)
    ends = [shown.real.a, *([] if shown.imag.a == shown.imag.b == 0 else [shown.imag.a])]
    return " + i·".join(str(end.mid).strip("[]").split(",")[0] for end in ends)
