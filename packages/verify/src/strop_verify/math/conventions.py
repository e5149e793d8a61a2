"""Rewrites an answer into the form of its reference where only a convention differs.

Names that do not count, constants of integration, degree signs, arguments of functions, unit vectors, derivatives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import permutations

from strop_verify.math import expressions as ex
from strop_verify.math.evaluate import rational
from strop_verify.math.expressions import DEFINITIONS, Node, Unreadable
from strop_verify.math.latex import tokens
from strop_verify.math.normal_form import Form
from strop_verify.math.parser import Parser
from strop_verify.math.proof import compare
from strop_verify.math.wordings import words

_CONSTANTS = ("C", "c", "K", "k", "C_1", "c_1", "C_0", "D", "A")  # of integration
_ARBITRARY = re.compile(r"[Cc](?:_\d)?")  # in the general solution of an equation
_ARBITRARY_TOO = re.compile(r"[A-DKa-dk](?:_\d)?")
TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")


def numbered(node: Node) -> Node:
    """An expression whose names are numbered in their order: names do not count."""
    for place, each in enumerate(dict.fromkeys(part for part in ex.parts(node) if part.op == "name")):
        node = ex.replaced(node, each, ex.name(f"#{place}"))
    return node


def factor_between(first: Form, second: Form) -> Fraction | None:
    """By what rational number one sum is a multiple of another; None where by none."""
    if not first or first.keys() != second.keys():
        return None
    ratios = {second[mono] / first[mono] for mono in first}
    return ratios.pop() if len(ratios) == 1 else None


def as_family(residue: Node) -> Node:
    """A residue class as its members: 7k + 5 for each integer k."""
    value_, modulus = residue.args[:2]
    return Node("family", (ex.plus(ex.times(modulus, ex.name("k")), value_), words("ℤ")), "k")


def without_degrees(node: Node) -> Node:
    """Degree signs taken off, but under trigonometric functions."""
    if node.op == "degree":
        return without_degrees(node.args[0])
    return node if node.op in TRIGONOMETRIC else node._replace(args=tuple(map(without_degrees, node.args)))


def renamed(gold: Node, given: Node) -> Node:
    """`f(t) = 2t` with the reference's arguments: `f(x) = 2x`."""
    first, second = gold.args[0], given.args[0]
    if first.op == second.op and len(first.args) == len(second.args):
        for ours, theirs in zip(first.args, second.args, strict=True):
            bound = theirs.op == "name" and theirs.value in ex.names_in(given.args[-1])
            if bound and ours.op == "name" and ours.value not in ex.names_in(given):
                given = ex.replaced(given, theirs, ours)
    if first.op == second.op == "name":  # a_k = 2k for a_n = 2n
        (term, index), (same, other) = (str(each.value).rpartition("_")[::2] for each in (first, second))
        if term and term == same and index.isalpha() and other.isalpha() and index not in ex.names_in(given):
            given = ex.replaced(ex.replaced(given, second, first), ex.name(other), ex.name(index))
    return given


def one_label(first: Node, second: Node) -> bool:
    """Whether two names of values are of one thing: `f(x)` and y, `y(x)` and y, |AB| and AB."""
    applied = [each for each in (first, second) if each.op.startswith("apply ")]
    if len(applied) == 1:
        other, function = second if first in applied else first, ex.name(applied[0].op.removeprefix("apply "))
        general = all(arg.op == "name" for arg in applied[0].args) and other not in applied[0].args  # not f(0), f(y)
        return general and other in (ex.name("y"), function)
    return first == second or (_ends(first) is not None and _ends(first) == _ends(second))


def _ends(length: Node) -> frozenset[str] | None:
    r"""The ends of the segment of which something is the length: AB, |AB|, `\overline{AB}`."""
    names = [str(part.value) for part in ex.parts(length) if part.op == "name"] or [str(length.value)]
    said = "".join(names).removeprefix("overline ")
    return frozenset(said) if length.op in ("abs", "name", "title") and len(said) == 2 and said.isupper() else None


def primed(node: Node, other: Node) -> Node:
    """Derivatives with primes, where the other answer writes none as a quotient: y' for dy/dx, dots for d/dt."""
    if ex.holds(node, "derivative") == ex.holds(other, "derivative"):
        return node
    dotted = any(name.startswith(("dot ", "ddot ")) for name in ex.names_in(node) | ex.names_in(other))

    def rewritten(each: Node) -> Node:
        if each.op == "derivative" and (not dotted or each.args[1] == ex.name("t")):
            what, by, order = each.args
            plain = what.op == "name" or (what.op.startswith("apply ") and what.args == (by,))
            name = str(what.value if what.op == "name" else what.op.removeprefix("apply "))
            return ex.name(name + "'" * int(order.value)) if plain and order.value < 4 else each
        if each.op == "name" and each.value.startswith(("dot ", "ddot ")):
            kind, _, name = each.value.partition(" ")
            return ex.name(name + "'" * (len(kind) - 2))
        if each.op.startswith("apply ") and each.op.endswith("'") and all(arg.op == "name" for arg in each.args):
            return ex.name(each.op.removeprefix("apply "))
        return each._replace(args=tuple(map(rewritten, each.args))) if each.args else each

    return rewritten(node)


def with_binomials(node: Node) -> Node:
    """`C(n, k)` and `C_n^k` as binomial coefficients."""
    if node.op == "apply C" and len(node.args) == 2:
        return ex.call("binom", *node.args)
    index = str(node.args[0].value) if node.op == "power" and node.args[0].op == "name" else ""
    if index.startswith("C_"):
        try:
            return ex.call("binom", Parser(tokens(index[2:])).whole(), node.args[1])
        except Unreadable:
            return node
    return node._replace(args=tuple(map(with_binomials, node.args))) if node.args else node


def ascending(relation: Node) -> Node:
    """A chain of inequalities from the smallest side on: `a < b` for `b > a`."""
    if relation.op != "relation" or not set(relation.value) <= {">", "≥"}:
        return relation
    signs = tuple({">": "<", "≥": "≤"}[sign] for sign in reversed(relation.value))
    return Node("relation", relation.args[::-1], signs)


def as_vector(node: Node, size: int) -> Node:
    r"""A sum of multiples of unit vectors, `2\mathbf{i} - \hat{k}`, or a point `P(3, -4)` as a tuple, else as it is."""
    if node.op.startswith("apply ") and node.op[6:].isupper() and len(node.op) == 7 and len(node.args) == size:
        return Node("tuple", node.args)
    if node.op in ex.KINDS or size not in (2, 3):
        return node
    units = [ex.name(f"hat {letter}") for letter in "ijk"[:size]]
    found = ex.replaced(node, ex.UNIT, units[0])
    for letter, unit in zip("ijk", units, strict=False):
        for written in (letter, f"vec {letter}"):
            found = ex.replaced(found, ex.name(written), unit)
    if not {"hat j", "hat k"} & ex.names_in(found):
        return node

    def at(one: Node | None) -> Node:
        out = found
        for unit in units:
            out = ex.replaced(out, unit, ex.ONE if unit == one else ex.ZERO)
        return out

    entries = tuple(map(at, units))
    linear = compare(found, ex.plus(*map(ex.times, entries, units))).equal
    return Node("tuple", entries) if linear else node


def with_constants_of(gold: Node, given: Node) -> Iterator[Node]:
    """The value of a function with its arbitrary constants named as in the reference, in every order."""
    value, first = given.args[-1], gold.args[0]
    known = ex.names_in(gold.args[-1])
    ours = sorted(filter(_ARBITRARY.fullmatch, known))
    theirs = sorted(filter(_ARBITRARY_TOO.fullmatch, ex.names_in(value) - known | {*ours} & ex.names_in(value)))
    if (first != ex.name("y") and not first.op.startswith("apply ")) or len(ours) != len(theirs) or len(ours) > 3:
        return
    for order in permutations(ours):
        out = value
        for place, each in enumerate(theirs):
            out = ex.replaced(out, ex.name(each), ex.name(f"#{place}"))
        for place, each in enumerate(order):
            out = ex.replaced(out, ex.name(f"#{place}"), ex.name(each))
        yield out


def with_constant(gold: Node, given: Node) -> Node:
    """The constant of an antiderivative may have another letter: `+ C`, `+ c`."""
    ours, theirs = next(_loose(gold, given), None), next(_loose(given, gold), None)
    return given if ours is None or theirs is None else ex.replaced(given, theirs, ours)


def _loose(node: Node, other: Node) -> Iterator[Node]:
    """A letter that is added as it stands, and occurs nowhere else on either side."""
    for term in node.args if node.op == "sum" else ():
        if term.op == "name" and term.value in _CONSTANTS:
            rest = [each for each in node.args if each is not term] + [
                each for each in ex.parts(other) if each != term and not each.args
            ]
            if all(term.value not in ex.names_in(each) for each in rest):
                yield term


# ---------------------------------------------------------------------- derivatives


_MOST = 4
_OF_FUNCTIONS: dict[str, Callable[[Node], Node]] = {
    "sin": lambda x: ex.call("cos", x), "cos": lambda x: ex.minus(ex.call("sin", x)),
    "ln": lambda x: ex.power(x, ex.MINUS_ONE),
    "arctan": lambda x: ex.power(ex.plus(ex.ONE, ex.power(x, ex.number(2))), ex.MINUS_ONE),
}  # fmt: skip


def worked_out(node: Node) -> Node:
    """A tree with each derivative worked out that can be; `dy/dx`, and one of several names, stay as they are."""
    node = node._replace(args=tuple(map(worked_out, node.args)))
    if node.op != "derivative":
        return node
    what, by, order = node.args
    if what.op == "name" or ex.names_in(what) != {by.value} or order.value > _MOST:
        return node
    for _ in range(int(order.value)):
        found = _derivative(what, by)
        if found is None:
            return node
        what = found
    return what


def _derivative(node: Node, by: Node) -> Node | None:
    """The derivative of an expression; None where it is made of anything that has no rule here."""
    if by.value not in ex.names_in(node):
        return ex.ZERO
    if node == by:
        return ex.ONE
    if node.op == "power":
        return _of_power(node, by)
    if node.op in DEFINITIONS:
        return _derivative(DEFINITIONS[node.op](*node.args), by)
    if node.op not in ("sum", "product", *_OF_FUNCTIONS):
        return None
    inner = [_derivative(arg, by) for arg in node.args]
    known = [each for each in inner if each is not None]
    if len(known) < len(inner):
        return None
    if node.op == "sum":
        return ex.plus(*known)
    if node.op == "product":
        each = (ex.times(*node.args[:place], part, *node.args[place + 1 :]) for place, part in enumerate(known))
        return ex.plus(*each)
    return ex.times(_OF_FUNCTIONS[node.op](node.args[0]), known[0])


def _of_power(node: Node, by: Node) -> Node | None:
    """(u^n)' = n u^(n−1) u' for a rational n, and (c^u)' = c^u ln(c) u' for a constant c."""
    base, exponent = node.args
    constant = by.value not in ex.names_in(base)
    inner = _derivative(exponent if constant else base, by)
    if inner is None:
        return None
    if constant:
        return ex.times(node, ex.call("ln", base), inner)
    degree = rational(exponent)
    if degree is None:
        return None
    return ex.times(ex.number(degree), ex.power(base, ex.number(degree - 1)), inner)
