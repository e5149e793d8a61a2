"""Trees: expressions, and the answers that are made of them.

An answer is a tree too. Where it is more than an expression its operation says what kind of answer it is:

    measure                      an expression with a `Measure`: in a unit, in percent, of things, with words
    words                        words in lower case, synonyms made one (the value is a tuple of them)
    title                        a geometrical name, in which letters have an order and a case: `ABC`, `angle ABC`
    clock                        9:30, in minutes
    date                         a day of the calendar: its month and number, and its year or 0
    digits                       digits and their base: 2516_8
    tuple, list, ratio           several answers: in parentheses, at commas, a:b:c
    set                          in braces, or joined by "and", "or", ";"
    interval                     two ends; the value says which of them belong to it
    ∪, ∩, ∖                      sets of numbers
    relation                     sides; the value has the signs between them
    residue                      values modulo the second argument; of what, where that is no name: `2x ≡ 3 (mod 7)`
    family                       an answer for each integer value of a name (the value); which integers, where said
    matrix of row, cases of case entries; values with their conditions
    where                        an answer under a condition
    formula                      of chemistry, or the sides of an equation: for each its terms
    proposition                  letters, and a truth value for each row of their table
    …                            the dots in 1, 3, …, 2n − 1
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import accumulate, product
from typing import Any, NamedTuple


class Unreadable(Exception):
    """A text that is an answer of no kind; its message says where reading stopped."""


class TooMuch(Exception):
    """A value or a proof that takes more work than the limits allow."""


class Effort:
    """The work of one verdict, counted where it is done, so that it ends at the same step on every machine.

    A unit is a step of 10 to 30 µs: a node evaluated, two terms multiplied. Normal forms may take half of it, so that
    there is enough left to find a point that separates.
    """

    most = 20_000
    spent = 0
    exhausted = False  # whether something was refused because of it

    @classmethod
    def begin(cls) -> None:
        """Count from 0: another verdict."""
        cls.spent, cls.exhausted = 0, False

    @classmethod
    def spend(cls, units: int, share: int = 1) -> None:
        """Count some work; raises `TooMuch` where more than one part in `share` of what a verdict may take is spent."""
        if (cls.spent + units) * share > cls.most:
            cls.exhausted = cls.exhausted or share == 1
            raise TooMuch("too much work")
        cls.spent += units


class Token(NamedTuple):
    """A `number`, `letter`, `word`, `command` (`frac`, `sin` …) or `symbol`, and whether a space stands before it."""

    kind: str
    text: str
    space: bool = False


END = Token("end", "")  # after the last

class Node(NamedTuple):
    """An expression or an answer.

    Attributes:
        op: `number`, `decimal`, `name`, `constant` (`pi`, `e`, `i`, `inf`), `sum`, `product`, `power`, the name of a
            function, or a kind of answer (see above).
        args: the operands.
        value: the exact value of a number, the digits of a decimal, the text of a name or constant, or what the kind
            says.
    """

    op: str
    args: tuple[Node, ...] = ()
    value: Any = None

    def __str__(self) -> str:
        return written(self)


def number(value: Fraction | int) -> Node:
    """An exact number."""
    return Node("number", (), value if type(value) is Fraction else Fraction(value))


def name(text: str) -> Node:
    """A variable, or anything that is only known by its name."""
    return Node("name", (), text)


# Operations that say of what kind an answer is; all others are expressions.
KINDS = frozenset(
    ("measure", "words", "title", "clock", "date", "digits", "tuple", "list", "ratio", "set", "interval", "∪", "∩", "∖",
     "relation", "residue", "family", "matrix", "cases", "where", "proposition", "formula", "…")
)  # fmt: skip
NO_EXPRESSIONS = KINDS | {"row", "case", "±", "∓"}  # they have no single value, and no normal form
PI, E, UNIT, INFINITY = (Node("constant", (), each) for each in ("pi", "e", "i", "inf"))
ZERO, ONE, MINUS_ONE, HALF = number(0), number(1), number(-1), number(Fraction(1, 2))


def plus(*terms: Node) -> Node:
    """A sum; of one term the term itself."""
    return terms[0] if len(terms) == 1 else Node("sum", terms)


def times(*factors: Node) -> Node:
    """A product; of one factor the factor itself."""
    return factors[0] if len(factors) == 1 else Node("product", factors)


def minus(node: Node) -> Node:
    """The negative of an expression."""
    return number(-node.value) if node.op == "number" else times(MINUS_ONE, node)


def power(base: Node, exponent: Node) -> Node:
    """A power."""
    return Node("power", (base, exponent))


def over(top: Node, bottom: Node) -> Node:
    """A quotient."""
    return times(top, power(bottom, MINUS_ONE))


def call(function: str, *args: Node) -> Node:
    """A function of some arguments, or a kind of answer."""
    return Node(function, args)


def _double_factorial(n: Node) -> Node:
    """n!! = 2^{n/2 + c} π^{−c} (n/2)! with c = (1 − cos πn)/4."""
    c = times(number(Fraction(1, 4)), plus(ONE, minus(call("cos", times(PI, n)))))
    half = times(HALF, n)
    return times(power(number(2), plus(half, c)), power(PI, minus(c)), call("factorial", half))


# Functions that are defined by others.
DEFINITIONS: dict[str, Callable[..., Node]] = {
    "tan": lambda x: over(call("sin", x), call("cos", x)), "cot": lambda x: over(call("cos", x), call("sin", x)),
    "cis": lambda x: plus(call("cos", x), times(UNIT, call("sin", x))),
    "sec": lambda x: over(ONE, call("cos", x)), "csc": lambda x: over(ONE, call("sin", x)),
    "sinh": lambda x: times(HALF, plus(power(E, x), minus(power(E, minus(x))))),
    "cosh": lambda x: times(HALF, plus(power(E, x), power(E, minus(x)))),
    "tanh": lambda x: over(call("sinh", x), call("cosh", x)),
    "arccos": lambda x: plus(times(HALF, PI), minus(call("arcsin", x))),
    "arccot": lambda x: plus(times(HALF, PI), minus(call("arctan", x))),
    "degree": lambda x: times(x, PI, number(Fraction(1, 180))),
    "arcsinh": lambda x: call("ln", plus(x, power(plus(times(x, x), ONE), HALF))),
    "arccosh": lambda x: call("ln", plus(x, power(plus(times(x, x), MINUS_ONE), HALF))),
    "arctanh": lambda x: times(HALF, call("ln", over(plus(ONE, x), plus(ONE, minus(x))))),
    "apply Gamma": lambda *x: call("factorial", plus(*x, MINUS_ONE)) if len(x) == 1 else call("incomplete Gamma", *x),
    "apply zeta": lambda *x: call("zeta", *x), "double factorial": _double_factorial,
    "ceil": lambda x: minus(call("floor", minus(x))), "min": lambda *args: minus(call("max", *map(minus, args))),
}  # fmt: skip


def parts(node: Node) -> Iterator[Node]:
    """A tree and all trees in it, the innermost first."""
    found, left = [], [node]
    while left:
        found.append(left.pop())
        left += found[-1].args
    return reversed(found)


def names_in(node: Node) -> frozenset[str]:
    """The names that occur in a tree."""
    return frozenset([each.value for each in _within(node) if each.op == "name"])


def holds(node: Node, *ops: str) -> bool:
    """Whether an operation occurs anywhere in a tree."""
    return not ops_in(node).isdisjoint(ops)


def ops_in(node: Node) -> set[str]:
    """The operations in a tree."""
    return {each.op for each in _within(node)}


def _within(node: Node) -> list[Node]:
    found = [node]
    for each in found:
        found += each.args
    return found


def is_infinite(node: Node) -> bool:
    """Whether an expression is ∞ or -∞."""
    return node == INFINITY or (node.op == "product" and node == minus(INFINITY))


def label(part: Node) -> Node | None:
    """What an equation gives the value of: a name, a function of names, |AB|, words; None for anything else."""
    if part.op != "relation" or not set(part.value) <= {"=", "≈"}:
        return None
    first = part.args[0]
    if first.op == "power" and first.args[0].value in ("sigma", "chi"):  # σ², χ²
        return first
    if first.op in ("name", "words", "title", "tuple", "derivative") or first.op.startswith("apply "):
        return first
    return first if first.op in ("abs", "norm", "det") and names_in(first) and not holds(first, "sum") else None


def replaced(node: Node, old: Node, new: Node) -> Node:
    """A tree with one part put in place of another, wherever it stands."""
    if node == old:
        return new
    return node._replace(args=tuple(replaced(arg, old, new) for arg in node.args)) if node.args else node


def variants(node: Node) -> list[Node]:
    r"""What an expression with `\pm` stands for: each `±` both ways, each `∓` against the first of them."""
    for each in [] if holds(node, "±") else reversed(list(parts(node))):  # `1 ∓ √2` by itself is `1 ± √2`
        node = replaced(node, each, each._replace(op="±")) if each.op == "∓" else node
    count = sum(each.op == "±" for each in parts(node))
    if count > _PLUS_MINUS:
        raise TooMuch("too many ±")
    made = (_signed(node, iter(signs), signs[0] if signs else 1) for signs in product((1, -1), repeat=count))
    return list(dict.fromkeys(made))


def _signed(node: Node, signs: Iterator[int], first: int) -> Node:
    if node.op in ("±", "∓"):
        sign = next(signs) if node.op == "±" else -first
        inner = _signed(node.args[0], signs, first)
        return inner if sign == 1 else minus(inner)
    return node._replace(args=tuple(_signed(arg, signs, first) for arg in node.args)) if node.args else node


def written(node: Node) -> str:
    """A tree in plain text, for people: `((x**2) + (1/2))`."""
    inner, sign = list(map(written, node.args)), {"sum": " + ", "product": "*", "power": "**"}.get(node.op)
    if sign is not None:
        return f"({sign.join(inner)})"
    if node.args:
        said = f" {node.value}" if node.op == "measure" else "".join(node.value) if node.op == "relation" else ""
        return f"{node.op}({', '.join(inner)}){said}"
    if node.op == "number" and node.value.numerator.bit_length() + node.value.denominator.bit_length() > 600:
        return "a long number"
    text = str(node.value)
    return f"({text})" if node.op == "number" and not text.isdigit() else text


# How large an answer may be: a short one can still name more work than any machine can do. The text is refused
# before it is read, its tree before anything is computed. After that every step counts its own work, see `Effort`.
_CHARACTERS, _PARENTHESES, _BRACES = 4000, 16, 24  # nested
MOST_DIGITS = 1000  # of one number
_EXPONENT = 100_000  # the largest literal one; a power of numbers may have four times as many bits
_FACTORIAL, _BINOMIAL, _MEMBERS, _PLUS_MINUS = 3000, 20_000, 128, 4
_DIGITS = re.compile(r"\d+")
_SIGNS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])|[±∓]")


def refuse_text(text: str) -> str | None:
    """Which bound a text breaks before it is read, or None."""
    if len(text) > _CHARACTERS:
        return f"beyond the bounds: {len(text)} characters"
    for openers, closers, most, what in (("([", ")]", _PARENTHESES, "parentheses"), ("{", "}", _BRACES, "braces")):
        steps = ((character in openers) - (character in closers) for character in text)
        deep = sum(map(text.count, openers)) > most  # few texts are
        if deep and max(accumulate(steps, lambda depth, step: max(depth + step, 0), initial=0)) > most:
            return f"beyond the bounds: more than {most} nested {what}"
    longest = max(map(len, _DIGITS.findall(text)), default=0)
    if longest > MOST_DIGITS:
        return f"beyond the bounds: a number of {longest} digits"
    return "beyond the bounds: too many ±" if len(_SIGNS.findall(text)) > _PLUS_MINUS else None


def refuse_answer(answer: Node) -> str | None:
    """Which bound an answer breaks after it was read, or None."""
    try:
        _bits(answer)
    except TooMuch as limit:
        return f"beyond the bounds: {limit}"
    except RecursionError:
        return "beyond the bounds: too deeply nested"
    return None


def _bits(node: Node) -> float:
    """An upper guess of log2 of the absolute value of what a tree names, at least 0; raises `TooMuch`."""
    if node.op in ("number", "decimal"):
        exact = node.value if node.op == "number" else Fraction(node.value)
        return max(math.log2(abs(exact.numerator)) - math.log2(exact.denominator), 0.0) if exact else 0.0
    if not node.args:
        return 2.0 if node.op == "constant" and node.value != "inf" else 0.0
    if len(node.args) > _MEMBERS:
        raise TooMuch(f"{len(node.args)} members")
    bits = list(map(_bits, node.args))
    largest = 2.0 ** min(max(bits), 64.0)
    if node.op == "power":
        exponent = node.args[1]
        small = exponent.value if exponent.op == "number" else None
        raised = float(abs(small)) if small is not None and abs(small) < 2**64 else 2.0 ** min(bits[1], 64.0)
        if max(raised, bits[0] * raised / 4) > _EXPONENT:
            raise TooMuch("too large an exponent")
        return 0.0 if small is not None and small < 0 else bits[0] * raised
    if "factorial" in node.op or node.op == "apply Gamma":
        if largest > _FACTORIAL + 0.5:
            raise TooMuch("too large a factorial")
        return math.lgamma(largest + 1) / math.log(2)
    if node.op == "binom":
        if largest > _BINOMIAL + 0.5:
            raise TooMuch("too large a binomial coefficient")
        return largest
    if node.op == "sum":
        return max(bits) + math.log2(len(bits))
    return sum(bits) if node.op == "product" else max(bits)
