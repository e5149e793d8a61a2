"""Rewrites an answer into the form of its reference where only a convention differs.

Names that do not count, constants of integration, degree signs, arguments of functions, unit vectors, derivatives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from strop_verify.math import expressions as ex
from strop_verify.math.evaluate import Undefined, rational, sign_of
from strop_verify.math.expressions import Node, TooMuch
from strop_verify.math.normal_form import Field, Form, Mono, added, scaled
from strop_verify.math.wordings import words

_CONSTANTS = ("C", "c", "K", "k", "C_1", "c_1", "C_0", "D", "A")  # of integration
_NUMBERED = re.compile(r"\A([^\W\d_]+)_[\d,]+\Z")  # x_1, x_{1,2}
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
    """A residue class as its members, 7k + 5 for each integer k; several as a set."""
    first, modulus = residue.args[:2]
    step, values = ex.times(modulus, ex.name("k")), first.args if first.op in ("list", "set") else (first,)
    families = tuple(Node("family", (ex.plus(step, each), words("ℤ")), "k") for each in values)
    return families[0] if len(families) == 1 else Node("set", families)


def without_degrees(node: Node) -> Node:
    """Degree signs taken off, but under trigonometric functions."""
    if node.op == "degree":
        return without_degrees(node.args[0])
    return node if node.op in TRIGONOMETRIC else node._replace(args=tuple(map(without_degrees, node.args)))


def by_name(parts: tuple[Node, ...]) -> tuple[Node, ...]:
    """Values of several letters in the order of the alphabet, `x = 2, y = 12`; any others as they are."""
    names = [named.value for part in parts if (named := ex.label(part)) is not None and named.op == "name"]
    if len(set(names)) < len(parts) or any(len(name) > 1 for name in names):
        return parts
    return tuple(part for _, part in sorted(zip(names, parts, strict=True), key=lambda each: each[0]))


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


def applied(node: Node, other: Node, chosen: bool = False) -> Node:
    """`g(a + b)` as a product where g is a name on the other side; `C(n, k)`, where `chosen`, as a coefficient."""
    named, ops = ex.names_in(other), ex.ops_in(other)
    factors = named - ex.names_in(node) if ex.label(node) is None and ex.label(other) is None else ()
    for part in reversed(list(ex.parts(node))):
        name = part.op.removeprefix("apply ")
        if part.op == name or part.op in ops:
            continue
        if name in factors and len(part.args) == 1:
            node = ex.replaced(node, part, ex.times(ex.name(name), *part.args))
        elif chosen and name == "C" not in named and len(part.args) == 2:
            node = ex.replaced(node, part, Node("binom", part.args))
    return node


def one_label(first: Node, second: Node) -> bool:
    """Whether two names of values are of one thing: `f(x)` and y, `y(x)` and y."""
    if {"derivative"} & {first.op, second.op} and first.op != second.op:  # df/dx and f'(x), dy/dx and y'
        return _derived(first) == _derived(second)
    applied = [each for each in (first, second) if each.op.startswith("apply ")]
    if len(applied) == 1:
        bare, function = second if first in applied else first, ex.name(applied[0].op.removeprefix("apply "))
        general = all(arg.op == "name" for arg in applied[0].args) and bare not in applied[0].args  # not f(0), f(y)
        return general and bare in (ex.name("y"), function)
    if first.op == second.op == "name":  # v_{esc} and v, not x_1 and x
        (letter, _, index), (other, _, also) = (str(each.value).partition("_") for each in (first, second))
        described = "" in (index, also) and len(index + also) > 1 and (index + also).isalpha()
        return first == second or (described and letter == other)
    if (first.op, second.op) == ("title", "name"):  # the length AB
        return str(second.value) == f"overline {first.value}"
    return first == second


def _derived(what: Node) -> str:
    """A derivative with a stroke for each order, without its argument."""
    if what.op == "derivative":
        return f"{_derived(what.args[0])}{chr(39) * int(what.args[2].value)}"
    return what.op.removeprefix("apply ") if what.op.startswith("apply ") else str(what.value)


def ascending(relation: Node) -> Node:
    """A chain of inequalities from the smallest side on: `a < b` for `b > a`."""
    turned = {">": "<", "≥": "≤", "⊃": "⊂", "⊇": "⊆"}
    if relation.op != "relation" or not set(relation.value) <= turned.keys():
        return relation
    signs = tuple(turned[sign] for sign in reversed(relation.value))
    return Node("relation", relation.args[::-1], signs)


def unnumbered(answer: Node, other: Node) -> Node:
    """Values of x for `x_1 = 2, x_2 = 3` and for `x_{1,2} = ±2`, where no name of the other side has a number."""
    parts = answer.args if answer.op in ("list", "set") else (answer,)
    names = {str(side.value) for part in parts if part.op == "relation" for side in part.args[:-1]}
    letters = {_NUMBERED.sub(r"\1", name) for name in names}
    single = len(names) < 2 and "," not in "".join(names)
    if single or len(letters) > 1 or letters & names or any(map(_NUMBERED.fullmatch, ex.names_in(other))):
        return answer
    values = tuple(Node("relation", (ex.name(min(letters)), part.args[-1]), ("=",)) for part in parts)
    return Node("set", values) if len(values) > 1 else values[0]


def squared(equation: Node) -> Node:
    """x² + y² = 25 for √(x² + y²) = 5."""
    root, size = equation.args
    rooted = root.op == "power" and rational(root.args[1]) == Fraction(1, 2) and (sign_of(size) or 0) > 0
    return equation._replace(args=(root.args[0], ex.power(size, ex.number(2)))) if rooted else equation


def antiderivatives(gold: Node, given: Node, free: bool) -> bool:
    """Whether two antiderivatives differ by a constant; each states one, but for the first where it is `free` to."""
    ours, theirs = next(_loose(gold, given), None), next(_loose(given, gold), None)
    if theirs is None or (ours is None and not free):
        return False
    # Other letters, also c, may be parameters of the question.
    stated = free or all(each.value.startswith("C") for each in (ours, theirs) if each is not None)
    if not stated or len(ex.names_in(given)) < 2:
        return False
    gold, constants = (gold, {ours, theirs}) if ours is not None else (ex.plus(gold, theirs), {theirs})
    names = frozenset(ex.names_in(gold) | ex.names_in(given)) - {each.value for each in constants if each is not None}
    return one_family(gold, given, names) is True


def one_family(gold: Node, given: Node, variables: frozenset[str]) -> bool | None:
    """Whether two general solutions are the same for all values of their constants; None where that is not known.

    Each is a sum of fixed terms and of constants times functions: the two spans and the difference must be one space.
    `R cos(x − φ)` is one too: the constants before its exponentials, R e^{iφ} and R e^{−iφ}, may have any values.
    """
    if not variables or ex.names_in(gold) <= variables:
        return None
    field, sides = Field(), []
    try:
        for node in (gold, given):
            sides.append(_spanned(field, field.of(node), ex.names_in(node) - variables))
    except (Undefined, TooMuch):
        return None
    if None in sides:
        return None
    (fixed, span), (other, also) = sides  # type: ignore[misc]
    whole = _rank([*span, *also, _direction(field, added(fixed, scaled(other, -1)))])
    return _rank(span) == _rank(also) == whole


def _rank(rows: list[Form]) -> int:
    """How many of some forms are linearly independent over the rationals."""
    count, rows = 0, list(rows)
    while rows:
        row = rows.pop()
        if row:
            lead, factor = next(iter(row.items()))
            rows = [added(each, scaled(row, -each[lead] / factor)) if lead in each else each for each in rows]
            count += 1
    return count


def _spanned(field: Field, form: Form, constants: frozenset[str]) -> tuple[Form, list[Form]] | None:
    """The fixed part of a form, and what its constants are multiplied with; None where they are no factors."""
    fixed: Form = {}
    spans: dict[Mono, Form] = {}
    for mono, factor in form.items():
        free = tuple(part for part in mono if ex.names_in(field.atoms[part[0]].node) & constants)
        kinds = [(field.atoms[atom].kind, exponent == 1) for atom, exponent in free]
        named = ("name", True) in kinds or all(kind == "exp" for kind, _ in kinds)  # e^{2x + C}
        if free and not (named and all(kind in ("name", "exp") for kind, _ in kinds)):
            return None
        into = spans.setdefault(free, {}) if free else fixed
        into[tuple(part for part in mono if part not in free)] = factor
    stated = {each for free in spans for atom, _ in free for each in ex.names_in(field.atoms[atom].node)}
    return (fixed, [_direction(field, each) for each in spans.values()]) if len(stated) >= len(spans) else None


def _direction(field: Field, form: Form) -> Form:
    """A form without the constants that are a factor of all of it."""
    named = {tuple(part for part in mono if not field.atoms[part[0]].constant) for mono in form}
    if len(named) < 2:
        return dict.fromkeys(named, Fraction(1))
    shared = {part for part in set(next(iter(form))).intersection(*form) if field.atoms[part[0]].constant}
    return {tuple(part for part in mono if part not in shared): factor for mono, factor in form.items()}


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
