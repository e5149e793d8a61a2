"""Quantities, compared: units convert, signs of degrees and percents may be missing, decimals round."""

from __future__ import annotations

from fractions import Fraction

from strop_verify.math import expressions as ex
from strop_verify.math.conventions import numbered, with_constant, without_degrees
from strop_verify.math.decimals import rounds_to, stated_digits
from strop_verify.math.evaluate import rational
from strop_verify.math.expressions import Node
from strop_verify.math.proof import Proof, compare, different, equal, unknown
from strop_verify.math.quantities import Measure
from strop_verify.math.undone import UNDONE

_BARE = Measure()


def decided(one: bool, what: str) -> Proof:
    """The proof for answers that are the same or else different."""
    return equal(f"the same {what}") if one else different(f"not the same {what}")


def parted(node: Node) -> tuple[Node, Measure]:
    """An expression, and what it counts or is measured in."""
    return (node.args[0], node.value) if node.op == "measure" else (node, _BARE)


def compare_digits(gold: Node, given: Node) -> Proof:
    """Digits in a base: the same digits and base; where the reference names a base, the question has fixed it."""
    if gold.op == given.op:
        return decided(gold == given, "digits and base")
    (digits, base), other = (gold.value, given) if gold.op == "digits" else (given.value, gold)
    if other.op != "number" or (given.op == "digits" and base != 10):
        return unknown(f"in base {base}, and in none")
    return decided(str(other.value) == digits, "digits")


def compare_quantities(gold: Node, given: Node, precision: int, strict: bool) -> Proof:
    """Two expressions with their units, things and words; see `MathVerifier` for `precision` and `strict`."""
    (first, one), (second, other) = parted(gold), parted(given)
    if one.words != other.words:
        return unknown(f"“{' '.join(one.words)}” and “{' '.join(other.words)}”")
    if one.thing and other.thing and one.thing != other.thing:
        return unknown(f"{one.thing} and {other.thing}")
    for op, what in UNDONE.items():
        if ex.holds(second, op) and not ex.holds(first, op):
            return unknown(f"an unevaluated {what}")
    units = [each.unit for each in (one, other) if each.unit is not None and each.unit.dimension]
    degrees = ex.holds(first, "degree") or ex.holds(second, "degree")
    if degrees and [unit.dimension for unit in units] == [(("rad", 1),)]:
        return _exactly(first, second, precision, strict)
    if len(units) == 2 and units[0].dimension != units[1].dimension or (units and degrees):
        return different("units of different dimensions")
    if len(units) == 2 and units[0] != units[1]:
        second = ex.times(ex.number(units[1].factor / units[0].factor), second)
    if one.percent == other.percent:
        return _values(first, second, precision, strict)
    hundredth = ex.number(Fraction(1, 100))  # of numbers above 1 the percent sign may be missing
    shares = [ex.times(node, hundredth) if at.percent else node for node, at in ((first, one), (second, other))]
    proof = _values(shares[0], shares[1], precision, strict)
    bare = rational(first if other.percent else second)
    return proof if proof.equal or bare is None or abs(bare) <= 1 else _values(first, second, precision, strict)


def _values(gold: Node, given: Node, precision: int, strict: bool) -> Proof:
    if ex.is_infinite(gold) or ex.is_infinite(given):
        return decided(gold == given, "infinity")
    if not strict:
        gold, given = numbered(gold), numbered(given)
    proof = _exactly(gold, given, precision, strict)
    degrees = [ex.holds(each, "degree") for each in (gold, given)]
    if proof.equal or not any(degrees):
        return proof
    # the sign may be missing on one side
    bare = _exactly(without_degrees(gold), without_degrees(given), precision, strict)
    return proof if all(degrees) and not bare.equal else bare


def _exactly(gold: Node, given: Node, precision: int, strict: bool) -> Proof:
    proof = compare(gold, with_constant(gold, given) if strict else given)
    if proof.equal or ex.names_in(gold) or ex.names_in(given):
        return proof
    digits = {side: stated for side in (gold, given) if (stated := stated_digits(side)) is not None}
    if not digits:
        return proof
    short = min(digits, key=digits.__getitem__)
    at = rational(short)
    if at is None or at == 0 or digits[short] < precision + (abs(at) >= 1):
        return proof
    other = given if short is gold else gold
    return equal(f"rounded to {digits[short]} digits") if rounds_to(other, at, digits[short]) else proof
