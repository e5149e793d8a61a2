"""Matrices: sums, products and multiples of them, and determinants."""

from __future__ import annotations

from collections.abc import Callable

from strop_verify.math import expressions as ex
from strop_verify.math.expressions import Node, TooMuch, Unreadable


def determinant(rows: list[tuple[Node, ...]]) -> Node:
    """The determinant of a square matrix, by its first row; raises `TooMuch` beyond 4 rows."""
    if len(rows) != len(rows[0]):
        raise Unreadable("a determinant of a matrix that is not square")
    if len(rows) > 4:
        raise TooMuch("too large a determinant")
    if len(rows) == 1:
        return rows[0][0]
    minors = [determinant([row[:place] + row[place + 1 :] for row in rows[1:]]) for place in range(len(rows))]
    signs = (ex.MINUS_ONE if place % 2 else ex.ONE for place in range(len(rows)))
    return ex.plus(*map(ex.times, signs, rows[0], minors))


_MOST_TERMS = 2000  # products in the entries of a product of matrices


def matrix_of(node: Node) -> Node | None:
    """The matrix that a matrix, a sum or product of matrices, or a number times one is; None for anything else."""
    if node.op not in ("sum", "product"):
        return node if node.op == "matrix" else None
    parts = list(map(matrix_of, node.args))
    if not any(parts):
        return None
    matrices = [part for part in parts if part is not None]
    rest = [arg for arg, part in zip(node.args, parts, strict=True) if part is None]
    if node.op == "product":
        found = matrices[0]
        for each in matrices[1:]:
            found = _product(found, each)
        return _entrywise(lambda entry: ex.times(*rest, entry), [found]) if rest else found
    if rest or len({tuple(len(row.args) for row in each.args) for each in matrices}) > 1:
        raise Unreadable("matrices that do not fit")
    return _entrywise(ex.plus, matrices)


def as_tuple(node: Node) -> Node:
    """A matrix of one row or one column as a tuple; anything else as it is."""
    if node.op != "matrix" or (len(node.args) > 1 and len(node.args[0].args) > 1):
        return node
    return Node("tuple", tuple(entry for row in node.args for entry in row.args))


def _entrywise(combine: Callable[..., Node], matrices: list[Node]) -> Node:
    rows = zip(*(each.args for each in matrices), strict=True)
    return _matrix([tuple(map(combine, *(row.args for row in each))) for each in rows])


def _product(first: Node, second: Node) -> Node:
    if len(first.args[0].args) != len(second.args):
        raise Unreadable("matrices that do not fit")
    columns = list(zip(*(row.args for row in second.args), strict=True))
    if len(first.args) * len(columns) * max(sum(1 for _ in ex.parts(each)) for each in (first, second)) > _MOST_TERMS:
        raise TooMuch("too large a product of matrices")
    return _matrix([tuple(ex.plus(*map(ex.times, row.args, each)) for each in columns) for row in first.args])


def _matrix(rows: list[tuple[Node, ...]]) -> Node:
    return Node("matrix", tuple(Node("row", row) for row in rows))
