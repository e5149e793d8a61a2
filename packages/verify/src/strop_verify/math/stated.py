"""What an equation or a chain of them states: `x = 5`, `AB : CD = 2`, `x = 2 + 3 = 5`, `x = 1/3 ≈ 0.33`."""

from __future__ import annotations

from strop_verify.math import expressions as ex
from strop_verify.math.conventions import TRIGONOMETRIC
from strop_verify.math.decimals import approximates
from strop_verify.math.expressions import Node
from strop_verify.math.grammar import label
from strop_verify.math.undone import UNDONE
from strop_verify.math.values import parted

_COORDINATES = frozenset("xyzrt")
_CURVE = frozenset("xy")


def stated_value(relation: Node, bare: bool) -> Node | None:
    """The value that an equation states; None where it states none.

    `bare`: the value is to stand for the equation, as 5 does for x = 5; for a curve such as x² + y² = 25 none does.
    """
    if relation.value == ("∈",) and relation.args[0].op in ("name", "tuple"):
        return relation.args[1]
    if not set(relation.value) <= {"=", "≈"}:
        return None
    relation = without_remarks(relation)
    first, last, named = relation.args[0], relation.args[-1], label(relation) is not None
    if bare and (first.op == last.op == "title" or (first.op == "abs" and ex.names_in(first) & _CURVE)):
        return None  # AB = CD, |x| = 1
    if last.op == "name" and not ex.names_in(first):  # 5 = x
        return next(side for side in reversed(relation.args) if not ex.names_in(side))
    if "≈" in relation.value and not named:
        last = relation.args[relation.value.index("≈")]
    names = ex.names_in(first)
    curve = bare and not ex.holds(first, "ln", *TRIGONOMETRIC) and not is_quantity(first)
    computed = ex.holds(first, *UNDONE) or (
        not ex.names_in(last) and not curve and (len(names) > 1 or ex.holds(first, "ln", *TRIGONOMETRIC))
    )
    equation = ex.names_in(last) if not names else len(relation.value) == 1  # 9 = x + 1, x² = 9
    return last if named or computed or not equation else None


def without_remarks(relation: Node) -> Node:
    """A chain without the roundings of the exact values in it: `x = 1/3` for `x = 1/3 ≈ 0.33`."""
    if relation.op != "relation" or "≈" not in relation.value:
        return relation
    args, signs = [relation.args[0]], []
    for sign, side in zip(relation.value, relation.args[1:], strict=True):
        before = args[-1]
        if sign == "≈" and (is_remark(before, side) or _is_rounded(before, side)):
            continue
        args.append(side)
        signs.append(sign)
    return Node("relation", tuple(args), tuple(signs)) if signs else Node("relation", relation.args[:1] * 2, ("=",))


def true_rounding(relation: Node) -> Node | None:
    """The rounded value at the end of a chain, where it is one of the exact value before it."""
    before, last = relation.args[-2:]
    return last if relation.value[-1] == "≈" and _is_rounded(before, last) else None


def _is_rounded(exact: Node, rounded: Node) -> bool:
    """Whether a value is one without decimals in it, rounded: 333 for 1000/3, but not 7 for 7.4."""
    if not is_value(exact) or not is_value(rounded) or ex.holds(exact, "decimal"):
        return False
    (value, of_value), (shown, of_shown) = parted(exact), parted(rounded)
    percent = of_shown.percent and not of_value.percent  # 1/3 ≈ 33.3%
    return approximates(shown, ex.times(ex.number(100), value) if percent else value)


def is_remark(exact: Node, rounded: Node) -> bool:
    """Whether a decimal follows a value that is exact, and so only says about how large that is."""
    exact, rounded = parted(exact)[0], parted(rounded)[0]
    whole = is_value(exact) and not ex.holds(exact, "decimal") and (exact.op not in ex.KINDS or exact.op == rounded.op)
    return whole and not ex.is_infinite(exact) and ex.holds(rounded, "decimal") and is_value(rounded)


def is_computation(node: Node) -> bool:
    """Whether something is left to be worked out: 5 + 5 + 1 or a product of matrices; not 5, -5, 1/2 or √7."""
    if not is_value(node) or node.op in ex.KINDS - {"matrix"}:
        return False
    if node.op == "matrix":
        return any(entry.op == "sum" for row in node.args for entry in row.args)
    factors = [part for part in node.args if part != ex.MINUS_ONE and part.op != "power"]
    return node.op == "sum" or (node.op == "product" and sum(part.op in ("number", "decimal") for part in factors) > 1)


def is_quantity(node: Node) -> bool:
    """Whether a side is one quantity made of names only: `AB/CD`, `AB·CD`, `∠A + ∠B`, `a : b`; not `x + y` or `2x`."""
    if node.op == "ratio":
        return all(part.op == "name" or is_quantity(part) for part in node.args)
    names = [part.value for part in ex.parts(node) if part.op == "name"]
    if len(names) < 2 or any(part.op not in ("name", "sum", "product", "power", "number") for part in ex.parts(node)):
        return False
    numbers = {part.value for part in ex.parts(node) if part.op == "number"}
    factors = node.args if node.op == "product" else (node,)
    if all(map(_is_point, names)):  # lengths, areas and angles: also their sums and squares
        sides = (part.args for part in ex.parts(node) if part.op in ("sum", "product"))
        return numbers <= {-1, 2} and not any(each.op == "number" for side in sides for each in side)
    plain = all(part.op == "name" or (part.op == "power" and part.args[1] == ex.MINUS_ONE) for part in factors)
    divided = any(part.op == "power" for part in factors)
    return plain and len(set(names)) > 1 and (divided or not _COORDINATES.intersection(names))


def _is_point(text: str) -> bool:
    """Whether a name is of a point, an angle, a triangle, a vector or the measure (m) of one."""
    return text == "m" or text[:1].isupper() or " " in text


def is_value(node: Node) -> bool:
    """Whether an answer has a value of its own: there are no names in it, and nothing is left to be computed."""
    undone = (part.op in UNDONE or part.op.startswith("apply ") for part in ex.parts(node))
    return not ex.names_in(node) and not any(undone)
