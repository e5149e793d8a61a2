"""Rewrites an answer into the form of its reference where only a convention differs.

Names that do not count, constants of integration, degree signs, arguments of functions, unit vectors, derivatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from strop_verify.math import expressions as ex
from strop_verify.math.expressions import Node
from strop_verify.math.normal_form import Form
from strop_verify.math.wordings import words

_CONSTANTS = ("C", "c", "K", "k", "C_1", "c_1", "C_0", "D", "A")  # of integration
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
    """Whether two names of values are of one thing: `f(x)` and y, `y(x)` and y."""
    applied = [each for each in (first, second) if each.op.startswith("apply ")]
    if len(applied) == 1:
        other, function = second if first in applied else first, ex.name(applied[0].op.removeprefix("apply "))
        general = all(arg.op == "name" for arg in applied[0].args) and other not in applied[0].args  # not f(0), f(y)
        return general and other in (ex.name("y"), function)
    return first == second


def ascending(relation: Node) -> Node:
    """A chain of inequalities from the smallest side on: `a < b` for `b > a`."""
    if relation.op != "relation" or not set(relation.value) <= {">", "≥"}:
        return relation
    signs = tuple({">": "<", "≥": "≤"}[sign] for sign in reversed(relation.value))
    return Node("relation", relation.args[::-1], signs)


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
