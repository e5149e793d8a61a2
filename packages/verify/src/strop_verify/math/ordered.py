"""Products whose order counts: of matrices and of vectors.

Such a product becomes a word in the free group over its letters, and a word is a name: nothing else in the comparison
has to know that it does not commute. Cross products are expanded too; they change sign where their sides change places.
"""

from __future__ import annotations

import re
from functools import partial, reduce

from strop_verify.math import expressions as ex
from strop_verify.math.evaluate import rational
from strop_verify.math.expressions import Node, TooMuch
from strop_verify.math.parser import TRANSPOSED, as_tuple
from strop_verify.math.proof import compare
from strop_verify.math.quantities import measured

Letter = tuple[str, bool, int]  # a name, whether it is transposed, its exponent
Word = tuple[Letter, ...]
Terms = dict[Word, Node]  # the coefficient of each word

_MOST_WORDS = 200
_INVERSE = re.compile(r"(?<!\w)[A-Z](?: _ (?:\w|\{[^{}]*\}))? \^ (?:\{ - 1 \}|T\b|\{ (?:T|top) \}|top\b|- 1(?! \d))")
_DIVIDED = re.compile(r"/ (?:\( )?[^)]*[A-Z]|frac (?:\{[^{}]*\}|\S+) (?:\{[^{}]*[A-Z]|[A-Z])")
_PAIR = re.compile(r"(?=(?<!\S)([A-Z]) ([A-Z])(?!\S))")
_VECTORS = ("vec ", "nabla")


def matrices_in(*texts: str) -> frozenset[str]:
    """The capital letters that are matrices: one is inverted or transposed, or two stand in either order.

    Where a capital letter stands in a denominator, all of them are numbers.
    """
    pairs = [set(_PAIR.findall(text)) for text in texts]
    turned = any((second, first) in each and first != second for each in pairs for first, second in each)
    if (not turned and not any(map(_INVERSE.search, texts))) or any(map(_DIVIDED.search, texts)):
        return frozenset()
    return frozenset(letter for text in texts for letter in re.findall(r"(?<!\w)[A-Z](?!\w)", text))


def has_vectors(answer: Node) -> bool:
    """Whether a name is marked as a vector."""
    said = (part.value if part.op == "name" else part.op.removeprefix("apply ") for part in ex.parts(answer))
    return any(name.startswith(_VECTORS) for name in said)


def unmarked(answer: Node) -> Node:
    """An answer without the marks of vectors: the other side has none."""
    for name in ex.names_in(answer):
        if name.startswith("vec "):
            bare = name.removeprefix("vec ")
            answer = ex.replaced(answer, ex.name(name), {"i": ex.UNIT, "e": ex.E}.get(bare, ex.name(bare)))
    return answer


def in_order(answer: Node, matrices: frozenset[str], vectors: bool) -> Node:
    """An answer of which each product of matrices is one name, and each cross product where names are vectors."""
    if answer.op in ex.NO_EXPRESSIONS:
        return answer._replace(args=tuple(in_order(arg, matrices, vectors) for arg in answer.args))
    return _expression(_terms(answer, matrices, vectors))


def _expression(terms: Terms) -> Node:
    return ex.plus(*(ex.times(factor, *([ex.name(_text(word))] if word else [])) for word, factor in terms.items()))


def _text(word: Word) -> str:
    return "·".join(f"{name}{'ᵀ' * turned}{'' if exponent == 1 else f'^{exponent}'}" for name, turned, exponent in word)


def _terms(node: Node, matrices: frozenset[str], vectors: bool) -> Terms:
    of = partial(_terms, matrices=matrices, vectors=vectors)
    if node.op == "name":
        return {((node.value, False, 1),): ex.ONE} if node.value.partition("_")[0] in matrices else {(): node}
    if node.op == "sum":
        return reduce(_added, map(of, node.args), {})
    if node.op == "product":
        return reduce(_multiplied, map(of, node.args), {(): ex.ONE})
    if node.op == "cross":
        return _cross(*map(of, node.args)) if vectors else of(ex.times(*node.args))
    if node.op == "power" and matrices & ex.names_in(node.args[0]):
        return _power(of(node.args[0]), node.args[1])
    if not node.args:
        return {(): node}
    return {(): node._replace(args=tuple(_expression(of(arg)) for arg in node.args))}


def _added(first: Terms, second: Terms) -> Terms:
    if len(first) + len(second) > _MOST_WORDS:
        raise TooMuch("too many products of matrices")
    return first | {word: ex.plus(first[word], each) if word in first else each for word, each in second.items()}


def _multiplied(first: Terms, second: Terms) -> Terms:
    products = ({_reduced(one + other): ex.times(a, b)} for one, a in first.items() for other, b in second.items())
    return reduce(_added, products, {})


def _reduced(word: Word) -> Word:
    found: list[Letter] = []
    for name, turned, exponent in word:
        if found and found[-1][:2] == (name, turned):
            exponent += found.pop()[2]
        if exponent:
            found.append((name, turned, exponent))
    return tuple(found)


def _power(base: Terms, exponent: Node) -> Terms:
    """A whole power; the transpose; anything else is a new letter."""
    if exponent in TRANSPOSED:
        return {tuple((name, not turned, times) for name, turned, times in word[::-1]): a for word, a in base.items()}
    raised = rational(exponent)
    if raised is not None and raised.denominator == 1 and abs(raised) <= 8:
        if raised < 0 and len(base) == 1:
            ((word, factor),) = base.items()
            inverse = tuple((name, turned, -times) for name, turned, times in word[::-1])
            base = {inverse: ex.power(factor, ex.MINUS_ONE)}
        if raised >= 0 or len(base) == 1:
            return reduce(_multiplied, [base] * abs(int(raised)), {(): ex.ONE})
    return {((f"({_expression(base)})^({exponent})", False, 1),): ex.ONE}


def _cross(first: Terms, second: Terms) -> Terms:
    """Bilinear, and of the other sign where its sides change places."""
    found: Terms = {}
    for one, other in ((each, more) for each in _vectors(first).items() for more in _vectors(second).items()):
        (left, a), (right, b) = one, other
        if left != right:
            name, sign = (f"{left}×{right}", ex.ONE) if left < right else (f"{right}×{left}", ex.MINUS_ONE)
            found = _added(found, {((name, False, 1),): ex.times(sign, a, b)})
    return found


def _vectors(terms: Terms) -> dict[str, Node]:
    """The coefficient of each vector of a sum."""
    found: dict[str, Node] = {}
    split = ((word, each) for word, sum_ in terms.items() for each in (sum_.args if sum_.op == "sum" else (sum_,)))
    for word, factor in split:
        factors = factor.args if factor.op == "product" else (factor,)
        named = [each for each in factors if ex.names_in(each)]
        vector = next((each for each in reversed(named) if has_vectors(each)), named[-1] if named else None)
        rest = [each for each in factors if each is not vector]
        text = f"{_text(word)}{'' if vector is None else vector}"
        found[text] = ex.plus(*([found[text]] if text in found else []), ex.times(*rest) if rest else ex.ONE)
    return found


def components(vector: Node, other: Node) -> Node:
    """A sum of multiples of i, j and k as a tuple where `other` is a tuple or a column; anything else as it is."""
    if vector.op == "measure":
        inner = components(vector.args[0], other)
        return measured(inner, vector.value) if inner.op == "tuple" else vector
    size, units = len(as_tuple(other).args), ["vec i", "vec j", "vec k"]
    if as_tuple(other).op != "tuple" or vector.op in ex.KINDS or not ex.names_in(vector) <= {*units, "j", "k"}:
        return vector
    if len({ex.UNIT, ex.name("j"), ex.name("k")}.intersection(ex.parts(vector))) > 1:  # 3i - 4j, unmarked
        vector = reduce(lambda node, each: ex.replaced(node, ex.name(each[-1:]), ex.name(each)), units[1:], vector)
        vector = ex.replaced(vector, ex.UNIT, ex.name("vec i"))
    if not ex.names_in(vector) or not ex.names_in(vector) <= {*units[:size]}:
        return vector
    ends = [[ex.number(at == place) for at in range(3)] for place in range(-1, size)]  # at 0, i, j, k
    at = partial(reduce, lambda node, to: ex.replaced(node, ex.name(to[0]), to[1]))
    origin, *found = (at(zip(units, end, strict=True), vector) for end in ends)
    return Node("tuple", tuple(found)) if compare(origin, ex.ZERO).equal else vector
