"""Reads and compares quantities: an expression with its unit, percent sign, counted things or words.

Units are converted, signs of degrees and percents may be missing, and decimals may be rounded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fractions import Fraction
from typing import NamedTuple

from strop_verify.math import conventions
from strop_verify.math import expressions as ex
from strop_verify.math.conventions import TRIGONOMETRIC, without_degrees
from strop_verify.math.evaluate import rational, sign_of
from strop_verify.math.expressions import Node, Token, Unreadable, label
from strop_verify.math.latex import tokens
from strop_verify.math.parser import UNDONE, Parser
from strop_verify.math.proof import Proof, compare, different, equal, unknown
from strop_verify.math.settings import MathSettings
from strop_verify.math.units import CURRENCY, MULTIPLES, Unit, counted, known_unit, read_unit
from strop_verify.math.wordings import in_digits, is_symbol, text_of, trimmed, words
from strop_verify.words import HEDGES, WORDS

_MONEY = (*CURRENCY, "usd", "eur", "gbp", "inr", "rs")
_CLOSING = re.compile(r"(?:^| )(?:in total|in all|total|altogether|overall|answer|old)$")
_PERCENT = re.compile(rf"(?:{WORDS['percent'].replace(', ', '|')})(?= |$)")
UNIT_LETTERS = frozenset((*"msghlLJNWVAKCF", "Omega", "mu"))


class Measure(NamedTuple):
    """What an expression is measured in or counts, and the words that belong to it."""

    unit: Unit | None = None
    percent: bool = False
    thing: str = ""
    words: tuple[str, ...] = ()
    per: str = ""


_BARE = Measure()


def measured(node: Node, measure: Measure) -> Node:
    """An expression with its measure; without one where there is nothing to say."""
    if node.op in ("tuple", "list", "set"):
        return node._replace(args=tuple(measured(arg, measure) for arg in node.args))
    return node if measure == _BARE else Node("measure", (node,), measure)


def minutes(count: Fraction | int) -> Node:
    """So many minutes."""
    return measured(ex.number(count), Measure(known_unit("min")))


def quantity_of(found: Sequence[Token]) -> Node | None:
    """An expression with what it counts or is measured in; None where that is not all."""
    found = in_digits(found)
    sign = next((at for at, it in enumerate(found) if at in (0, 1, len(found) - 1) and it.text.lower() in _MONEY), None)
    measure = Measure(unit=None if sign is None else read_unit([found.pop(sign)]))
    percent = bool(found) and is_symbol(found[-1], "%")
    parser = Parser(found[: len(found) - percent])
    try:
        node = parser.expression()
    except Unreadable:
        return None
    rest = parser.tokens[parser.place : -1]
    if not rest:
        return measured(node, measure._replace(percent=percent) if percent else measure)
    while rest and rest[0].text.lower().removesuffix("s") in MULTIPLES:
        node = ex.times(node, ex.number(MULTIPLES[rest.pop(0).text.lower().removesuffix("s")]))
    said = text_of(rest).lower()
    if (share := _PERCENT.match(said)) is not None:
        percent, rest = True, rest[len(share[0].split()) :]
    if rest and rest[0].text.isalpha() and known_unit(rest[0].text) == known_unit("degree"):
        node, rest = ex.call("degree", node), rest[1:]
    scale = {"c": "celsius", "f": "fahrenheit"}.get(rest[0].text.lower(), rest[0].text.lower()) if rest else ""
    if node.op == "degree" and scale in ("celsius", "fahrenheit"):
        node, rest = node.args[0], [rest[0]._replace(text=scale), *rest[1:]]
    return _with_rest(node, measure._replace(percent=percent), rest)


def _with_rest(node: Node, measure: Measure, rest: list[Token]) -> Node | None:
    """An expression with the unit, the things or the words that follow it."""
    numbers = (place for place, token in enumerate(rest) if place and token.kind == "number")
    following = next((at for at in numbers if rest[at].space or rest[at - 1].text in "h" or rest[at - 1].text > "~"), 0)
    if following and not is_symbol(rest[following - 1], "^", "{"):
        return _compound(node, rest[:following], quantity_of(rest[following:]))
    rest = [token for token in rest if not is_symbol(token, "(", ")")]
    ends = range(len(rest), 0, -1) if measure.unit is None else ()
    end = next((end for end in ends if read_unit(rest[:end]) is not None), 0)
    measure = measure._replace(unit=read_unit(rest[:end])) if end else measure
    if any(token.kind not in ("word", "letter") and not is_symbol(token, ".", "-") for token in rest[end:]):
        return None
    text = " ".join(token.text.lower() for token in rest[end:] if token.kind != "symbol")
    said = tuple(_CLOSING.sub("", text).split())
    at = said.index("per") if "per" in said and said[-1] not in MULTIPLES else len(said)
    if at < len(said) and (at or measure.unit is not None):  # beats per minute
        said, measure = said[:at], measure._replace(per=str(known_unit(said[-1]) or " ".join(said[at + 1 :])))
    thing = counted(said)
    if thing is not None:
        return measured(node, measure if measure.unit is not None else measure._replace(thing=thing))
    if measure.unit is not None and said[:1] in (("of",), ("in",), ("each",)) and not set(said) & HEDGES:
        return measured(node, measure)  # 5 liters of water
    return measured(node, measure._replace(words=words(" ".join(said)).value if said else ()))


def _compound(node: Node, rest: list[Token], second: Node | None) -> Node | None:
    """`2 hours 30 minutes`, `20 h 15`: a quantity and one in a smaller unit of the same dimension."""
    unit = read_unit(trimmed(rest))
    if unit == known_unit("h") and second is not None and second.op == "number":
        second = minutes(second.value)
    smaller = second.value.unit if second is not None and second.op == "measure" and not second.value.words else None
    if second is None or unit is None or smaller is None or smaller.dimension != unit.dimension:
        return None
    share = smaller.factor / unit.factor
    return measured(ex.plus(node, ex.times(second.args[0], ex.number(share))), Measure(unit)) if share < 1 else None


def upright(found: Sequence[Token], units: Collection[str]) -> list[Token]:
    """An answer in which bare letters after a number that may be `units` are: `5 m`, `3 m/s`."""
    made = list(found[:1])
    for token in found[1:]:
        last = made[-2] if made[-1].text in ("/", "*", "-") and len(made) > 1 else made[-1]
        measures = last.kind == "word" or (last is made[-1] and (last.kind == "number" or last.text in ("°", ")", "}")))
        unit = token.kind == "letter" and (token.text in units or token.text == "mu") and measures
        made.append(token._replace(kind="word") if unit else token)
    return made


def stated_digits(node: Node) -> int | None:
    """How many digits a decimal states: `1.60`, `-0.5`, `1.6 \\times 10^{-19}`; None for anything else."""
    factors = [part for part in (node.args if node.op == "product" else (node,)) if part != ex.MINUS_ONE]
    decimals = [part for part in factors if part.op == "decimal"]
    powers = [part.args for part in factors if part.op == "power"]
    tens = [exponent for base, exponent in powers if base == ex.number(10) and exponent.op == "number"]
    if len(decimals) != 1 or len(tens) > 1 or len(decimals) + len(tens) != len(factors):
        return None
    return len(decimals[0].value.replace(".", "").lstrip("0"))


def rounds_to(node: Node, at: Fraction, digits: int) -> bool:
    """Whether a constant is a decimal when it is rounded or, where it is no decimal itself, cut off to some digits."""
    times = 1 / abs(at)
    size = len(str(int(abs(at)))) if abs(at) >= 1 else 1 - len(str(int(times) - (times == int(times))))
    half = Fraction(10) ** (size - digits) / 2
    most = half if stated_digits(node) is not None else 2 * half
    gap = ex.times(ex.number(1 if at > 0 else -1), ex.plus(node, ex.number(-at)))  # away from 0
    exact = rational(gap)
    if exact is not None:
        return -half <= exact <= most and (exact + at).denominator > 1  # an integer is not approximated
    return sign_of(ex.plus(gap, ex.number(half))) == sign_of(ex.plus(ex.number(most), ex.minus(gap))) == 1


def decided(one: bool, what: str) -> Proof:
    """The proof for answers that are the same or else different."""
    return equal(f"the same {what}") if one else different(f"not the same {what}")


def parted(node: Node) -> tuple[Node, Measure]:
    """An expression, and what it counts or is measured in."""
    return (node.args[0], node.value) if node.op == "measure" else (node, _BARE)


def compare_digits(gold: Node, given: Node, question: str) -> Proof:
    """Digits in a base: the same digits and base; a base that only one names is one that the question asks for."""
    if gold.op == given.op:
        return decided(gold == given, "digits and base")
    (digits, base), other = (gold.value, given) if gold.op == "digits" else (given.value, gold)
    named = {2: "binary", 8: "octal", 16: "hexadecimal"}.get(base, rf"base-{base}")
    asked = rf"(?i)\b(?:to|in|into) base[- ]?\$?{base}\b|{named}"
    fixed = gold.op == "digits" or base == 10 or re.search(asked, question)
    if other.op not in ("number", "title") or not fixed:
        return unknown(f"in base {base}, and in none")
    return decided(str(other.value) == digits, "digits")


def asked_unit(text: str) -> Unit | None:
    """The unit that a row or question names: `m`, `metres`."""
    return read_unit(tokens(f"1 {text}")[1:])


def compare_quantities(gold: Node, given: Node, rules: MathSettings) -> Proof:
    """Two expressions with their units, things and words; see `MathSettings`."""
    (first, one), (second, other) = parted(gold), parted(given)
    if one.words != other.words:
        return unknown(f"“{' '.join(one.words)}” and “{' '.join(other.words)}”")
    said = (other.unit and other.unit.dimension) or ex.holds(second, "degree")
    if said and one == _BARE and rules.asked and not ex.holds(first, "degree"):  # SciBench's unit: 10^{-5} N
        unit = asked_unit(rules.asked)
        size, measure = (ex.ONE, Measure(unit)) if unit else parted(quantity_of(tokens(rules.asked)) or ex.ZERO)
        if unit == known_unit("degree"):
            size, measure = ex.call("degree", ex.ONE), _BARE
        if measure.unit is not None or size.op == "degree":
            first, one = ex.times(first, size) if size != ex.ONE else first, Measure(measure.unit)
    of = {each.thing or str(each.unit) for each in (one, other) if each.thing or (each.unit and each.unit.dimension)}
    if one.per and other.per and one.per != other.per:
        return unknown(f"per {one.per}, and per {other.per}")
    if len(of) > 1 and (one.thing or other.thing):  # things have a dimension that is no unit's
        return unknown(" and ".join(sorted(of)))
    for op, what in UNDONE.items() if ex.holds(second, *UNDONE) else ():
        if ex.holds(second, op) and not ex.holds(first, op):
            return different(f"an unevaluated {what}")  # the work is left to be done
    units = [each.unit for each in (one, other) if each.unit is not None and each.unit.dimension]
    degrees = units and (ex.holds(first, "degree") or ex.holds(second, "degree"))
    if degrees and [unit.dimension for unit in units] == [(("rad", 1),)]:
        return _exactly(first, second, rules)
    if len(units) == 2 and units[0].dimension != units[1].dimension or degrees:
        return different("units of different dimensions")
    if len(units) == 2 and units[0] != units[1]:
        second = ex.times(ex.number(units[1].factor / units[0].factor), second)
    if one.percent == other.percent:
        return _values(first, second, rules)
    hundredth = ex.number(Fraction(1, 100))  # of numbers above 1 the percent sign may be missing
    shares = [ex.times(node, hundredth) if at.percent else node for node, at in ((first, one), (second, other))]
    proof = _values(shares[0], shares[1], rules)
    bare = rational(first if other.percent else second)
    fixed = bare is None or abs(bare) <= 1 or re.search(r"(?i)\bhow many (?!percent)", rules.question)
    return proof if proof.equal or fixed else _values(first, second, rules)


def _values(gold: Node, given: Node, rules: MathSettings) -> Proof:
    if ex.is_infinite(gold) or ex.is_infinite(given):
        return decided(gold == given, "infinity")
    if not rules.strict:
        gold, given = conventions.numbered(gold), conventions.numbered(given)
    proof = _exactly(gold, given, rules)
    degrees = [] if proof.equal else [ex.holds(each, "degree") for each in (gold, given)]
    if not any(degrees):
        return proof
    # the sign may be missing on one side
    bare = _exactly(without_degrees(gold), without_degrees(given), rules)
    return proof if all(degrees) and not bare.equal else bare


def _exactly(gold: Node, given: Node, rules: MathSettings) -> Proof:
    for each in map(ex.name, rules.positive):
        gold, given = (ex.replaced(side, each, ex.call("abs", each)) for side in (gold, given))
    proof = compare(gold, conventions.with_constant(gold, given) if rules.strict else given)
    if not proof.equal and rules.strict and conventions.antiderivatives(gold, given, rules.antiderivative):
        return equal("antiderivatives that differ by a constant")
    family = None if proof.equal else conventions.one_family(gold, given, frozenset(rules.variables))
    if family is not None:
        return decided(family, "solutions for all values of the constants")
    if proof.equal or ex.names_in(gold) or ex.names_in(given):
        return proof
    gap = ex.plus(gold, ex.minus(given))
    limits = (*rules.tolerance, 0.0) if len(rules.tolerance) < 2 else (0.0,)
    for limit, miss in ((limits[0], gap), (rules.share, ex.over(gap, gold))):
        if limit and sign_of(ex.plus(ex.number(Fraction(str(limit))), ex.minus(ex.call("abs", miss)))) in (0, 1):
            return equal(f"within {limit:g}")
    digits = {side: stated for side in (gold, given) if (stated := stated_digits(side)) is not None}
    if not digits:
        return proof
    short = min(digits, key=digits.__getitem__)
    at = rational(short)
    if at is None or at == 0 or digits[short] < rules.precision + (abs(at) >= 1):
        return proof
    other = given if short is gold else gold
    return equal(f"rounded to {digits[short]} digits") if rounds_to(other, at, digits[short]) else proof




def stated_value(relation: Node, bare: bool) -> Node | None:
    """The value that an equation states; None where it states none.

    `bare`: the value is to stand for the equation, as 5 does for x = 5; for a curve such as x² + y² = 25 none does.
    """
    if relation.value == ("∈",) and relation.args[0].op in ("name", "tuple"):
        return relation.args[1]
    if relation.value == ("≅",) and not bare:
        return relation.args[1]
    if not set(relation.value) <= {"=", "≈"}:
        return None
    relation = without_remarks(relation)
    first, last, named = relation.args[0], relation.args[-1], label(relation) is not None
    if bare and (first.op == last.op == "title" or (first.op == "abs" and ex.names_in(first) & {"x", "y"})):
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
    return last if named or computed or not equation or last.op in ("cases", "matrix") else None


def without_remarks(relation: Node) -> Node:
    """A chain without the roundings of the exact values in it: `x = 1/3` for `x = 1/3 ≈ 0.33`."""
    if relation.op != "relation" or "≈" not in relation.value:
        return relation
    args, signs = [relation.args[0]], []
    for sign, side in zip(relation.value, relation.args[1:], strict=True):
        before = args[-1]
        if sign == "≈" and is_remark(before, side):
            continue
        args.append(side)
        signs.append(sign)
    return Node("relation", tuple(args), tuple(signs)) if signs else Node("relation", relation.args[:1] * 2, ("=",))


def is_remark(exact: Node, rounded: Node) -> bool:
    """Whether a decimal follows a value that is exact, and so only says about how large that is."""
    exact, rounded = parted(exact)[0], parted(rounded)[0]
    whole = is_value(exact) and not ex.holds(exact, "decimal") and (exact.op not in ex.KINDS or exact.op == rounded.op)
    return whole and not ex.is_infinite(exact) and ex.holds(rounded, "decimal") and is_value(rounded)


def is_quantity(node: Node) -> bool:
    """Whether a side is one quantity made of names only: `AB/CD`, `AB·CD`, `∠A + ∠B`, `a : b`; not `x + y` or `2x`."""
    every = list(ex.parts(node))
    names, numbers = ([part.value for part in every if part.op == op] for op in ("name", "number"))
    if len(names) < 2 or any(part.op not in ("name", "sum", "product", "power", "number", "ratio") for part in every):
        return False
    # of points, angles, triangles, vectors, and m, the measure of one: also their sums and squares
    measured = all(text == "m" or text[:1].isupper() or " " in text for text in names)
    scaled = any(arg.op == "number" for part in every if part.op in ("sum", "product") for arg in part.args)
    quotient = set(numbers) == {-1} or not set("xyzrt").intersection(names)
    return not scaled and (set(numbers) <= {-1, 2} if measured else quotient and "sum" not in ex.ops_in(node))


def is_value(node: Node) -> bool:
    """Whether an answer has a value: there are no names in it, and nothing is left to be computed."""
    applied = any(part.op[:6] == "apply " and part.op not in ex.DEFINITIONS for part in ex.parts(node))
    return not ex.names_in(node) and is_computed(node) and not applied


def is_computed(node: Node) -> bool:
    """Whether no sum, product, integral, limit or derivative is left to be computed."""
    return not ex.holds(node, *UNDONE)
