"""Matrices: sums and multiples of them, and determinants."""

from __future__ import annotations

from strop.verifiers.math import expressions as ex
from strop.verifiers.math.expressions import Node, TooMuch, Unreadable


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


def matrix_of(node: Node) -> Node | None:
    """The matrix that a matrix, a sum of matrices, or a number times one is; None for anything else."""
    if node.op == "matrix" or node.op not in ("sum", "product") or not any(map(matrix_of, node.args)):
        return node if node.op == "matrix" else None
    parts = list(map(matrix_of, node.args))
    matrices = [part.args for part in parts if part is not None]
    rest = [arg for arg, part in zip(node.args, parts, strict=True) if part is None]
    shapes = {tuple(len(row.args) for row in rows) for rows in matrices}
    if len(shapes) > 1 or (rest if node.op == "sum" else len(matrices) > 1):
        raise Unreadable("matrices that do not fit")
    combine = ex.plus if node.op == "sum" else lambda *entry: ex.times(*rest, *entry)
    rows = (
        tuple(combine(*entries) for entries in zip(*(row.args for row in each), strict=True))
        for each in zip(*matrices, strict=True)
    )
    return Node("matrix", tuple(Node("row", row) for row in rows))
