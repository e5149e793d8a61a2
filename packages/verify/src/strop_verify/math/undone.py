r"""Sums, products, integrals and limits that are left to be done: `\sum_{i=1}^{n} i^2`."""

from __future__ import annotations

from collections.abc import Sequence

from strop_verify.math import expressions as ex
from strop_verify.math.expressions import Node

# The operation that is left to be done, and what it is called.
UNDONE = {"Σ": "sum", "Π": "product", "integral": "integral", "limit": "limit", "derivative": "derivative"}
_BINDS = ("=", "→", "∈", "≥", ">", "|")


def undone(op: str, body: Node, low: Sequence[str], high: Sequence[str], by: str = "") -> Node:
    r"""A sum, product, integral or limit of a body, with the texts of its bounds.

    Args:
        op: `Σ`, `Π`, `integral` or `limit`.
        body: what is added, multiplied, integrated or approached.
        low: the tokens of the lower bound; for a sum, product or limit they begin with the name that runs.
        high: the tokens of the upper bound.
        by: the variable of an integral.

    The name that runs is replaced by a number, counted from the innermost operation outwards: two operations that
    differ only in this name are one tree, and `i` is no imaginary unit where it runs. An integral without bounds is a
    function of its variable, which keeps its name.
    """
    runs = low[0] if len(low) > 1 and low[0].isalpha() and low[1] in _BINDS else ""
    bound = (by if low else "") if op == "integral" else runs
    if bound:
        number = f"#{1 + sum(part.op in UNDONE for part in ex.parts(body))}"
        body = _renamed(body, bound, number)
        low = [number, *low[1:]] if runs and op != "integral" else low
        by = number if by else ""
    over = " ".join(("_", *low, "^", *high, *(("d", by) if by else ())))
    return ex.call(op, body, ex.name(over))


def _renamed(node: Node, old: str, new: str) -> Node:
    """A tree with another name: also as an index (`x_i`), and in the bounds of the operations in it."""
    if node == ex.name(old) or (node.op == "constant" and node.value == old):
        return ex.name(new)
    op, said = node.op, node.value
    if op == "name" and said.startswith("_ "):
        said = " ".join(new if text == old else text for text in said.split())
    elif op == "name":
        said = _with_index(said, old, new)
    elif op.startswith("apply "):
        op = _with_index(op, old, new)
    return Node(op, tuple(_renamed(arg, old, new) for arg in node.args), said)


def _with_index(name: str, old: str, new: str) -> str:
    letter, line, index = name.partition("_")
    return f"{letter}{line}{index.replace(old, new)}"
