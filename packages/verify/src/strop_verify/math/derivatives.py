r"""Derivatives that can be worked out: of expressions in the one name by which they are taken, `\frac{d}{dx} x^2`."""

from __future__ import annotations

from collections.abc import Callable

from strop_verify.math import expressions as ex
from strop_verify.math.evaluate import rational
from strop_verify.math.expressions import DEFINITIONS, Node

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
