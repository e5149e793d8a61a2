"""Two answers by their kinds: each kind has its rule, and only what is proved equal is equal.

The reference comes first. A rule may read the reference's form (what it leaves out, the question has fixed) but never
loosens a value: units convert by their factors, decimals stand for a value from `precision` digits on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from strop_verify.math import expressions as ex
from strop_verify.math.conventions import (
    as_family,
    as_vector,
    ascending,
    factor_between,
    one_label,
    primed,
    renamed,
    with_binomials,
    with_constants_of,
)
from strop_verify.math.evaluate import rational
from strop_verify.math.expressions import DEFINITIONS, Effort, Node, Token, TooMuch, Unreadable
from strop_verify.math.grammar import Reading, is_region, label, read_tokens
from strop_verify.math.matrices import as_tuple
from strop_verify.math.normal import Field
from strop_verify.math.proof import Proof, ProofOutcome, compare, different, equal, unknown
from strop_verify.math.quantities import in_letters
from strop_verify.math.regions import Unsolved, line, same
from strop_verify.math.values import (
    approximates,
    compare_digits,
    compare_quantities,
    decided,
    is_computation,
    is_remark,
    is_value,
    parted,
    stated_value,
    true_rounding,
    without_remarks,
)
from strop_verify.math.wordings import depth_of, is_symbol, lower_choice, option_text, options_in, words


def option_of(reading: Reading) -> Node | None:
    """The text of an option after its label, `12` in `(B) 12`; None where there is none."""
    try:
        return read_tokens(option_text(reading.tokens)).answer
    except Unreadable:
        return None


def with_decimal_comma(found: Sequence[Token], any_whole: bool = False) -> Node | None:
    """What an answer is with its comma as a decimal point: `0,111`; None where it may not be one.

    Before it stands a single 0, with `any_whole` any integer, and there is no other comma.
    """
    commas = [place for place, token in enumerate(found) if is_symbol(token, ",")]
    if len(commas) != 1 or any(depth_of(token) and token.text not in "{}" for token in found[: commas[0]]):
        return None
    place = commas[0]
    around = [token for token in (*found[place - 1 : place], *found[place + 1 : place + 2])]
    if len(around) != 2 or any(not token.text.isdigit() for token in around) or found[place].space or around[1].space:
        return None
    whole, digits = (token.text for token in around)
    if whole != "0" and not any_whole:
        return None
    number = Token("number", f"{whole}.{digits}", around[0].space)
    try:
        return read_tokens([*found[: place - 1], number, *found[place + 2 :]]).answer
    except Unreadable:
        return None


def with_indian_commas(found: Sequence[Token]) -> Node | None:
    """What an answer is whose commas part lakhs and crores, `1,50,000`; None where they do not."""
    commas = [place for place, token in enumerate(found) if is_symbol(token, ",")]
    if len(commas) < 2 or any(second - first != 2 for first, second in pairwise(commas)):
        return None
    begin, end = commas[0] - 1, commas[-1] + 2
    groups = found[max(begin, 0) : end : 2]
    sizes = [len(token.text) for token in groups]
    spaced = any(token.space for token in found[begin + 1 : end])
    grouped = sizes[0] <= 2 and sizes[1:] == [2] * (len(commas) - 1) + [3]
    if spaced or not grouped or not all(token.text.isdigit() for token in groups):
        return None
    number = Token("number", "".join(token.text for token in groups), found[begin].space)
    try:
        return read_tokens([*found[:begin], number, *found[end:]]).answer
    except Unreadable:
        return None


def as_ratio(found: Sequence[Token], reference: Node) -> Node | None:
    """The ratio that a time without am or pm may be, `6:10`, where the reference is a quotient; else None."""
    said = [token for token in found if not is_symbol(token, "{", "}")]
    if len(said) != 3 or not (said[0].text.isdigit() and said[2].text.isdigit()) or not ex.holds(reference, "power"):
        return None
    return ex.over(*(ex.number(int(token.text)) for token in (said[0], said[2])))


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


_ANY_REAL = ((words("ℝ"),), (words("constant"),))
# Sets of real numbers in words: where they begin, and whether that point belongs to them.
_HALF_LINES = {("ℝ",): (ex.minus(ex.INFINITY), False), ("ℝ≥0",): (ex.ZERO, True), ("ℝ>0",): (ex.ZERO, False)}
_SEVERAL = ("tuple", "list", "set", "ratio")
_ATOMIC = ("words", "title", "clock", "date", "division", "permutation", "…")


class Rules(NamedTuple):
    """Settings of the comparison; see `MathVerifier`."""

    precision: int = 6
    strict: bool = True
    allow_set_relation_comp: bool = False
    ordered_lists: bool = True


def compare_readings(gold: Reading, given: Reading, rules: Rules) -> Proof:
    """Whether an answer is the reference's."""
    letters = given.letters
    if letters is None and gold.letters is not None and len(gold.letters) == 1:
        letters = lower_choice(given.tokens)
        if letters is None and len(options_in(given.tokens)) > 1:
            return different(f"the choice {gold.letters}, and several letters")
    Effort.begin()
    if gold.letters is not None and letters is not None:
        return _choices(gold.letters, letters, option_of(gold), option_of(given))
    reference, answer = gold.answer, given.answer
    if gold.letters is not None:  # (B) 12: only its text
        reference = option_of(gold) or reference
    if gold.text == given.text:
        return equal("the same text")
    reference, answer = primed(reference, answer), primed(answer, reference)
    reference = reference if ex.holds(answer, "derivative") else worked_out(reference)
    if not any(name.startswith("C") for name in ex.names_in(reference)) and not ex.holds(reference, "apply C"):
        answer = with_binomials(answer)
    if not ex.names_in(reference) and ex.names_in(answer):
        answer = in_letters(given.tokens) or answer
    elif answer.op == "measure" and ex.names_in(reference) and not ex.names_in(answer):
        reference = in_letters(gold.tokens) or reference
    several = [each.op in _SEVERAL for each in (reference, answer)]
    if several == [False, True]:
        answer = (
            with_decimal_comma(given.tokens, any_whole=reference.op == "decimal")
            or with_indian_commas(given.tokens)
            or answer
        )
    elif several == [True, False]:
        reference = with_decimal_comma(gold.tokens) or reference
    elif answer.op == "clock" != reference.op:
        answer = as_ratio(given.tokens, reference) or answer
    said = {each.text.replace(" ", "").lower() for each in (gold, given)}
    if "words" in (reference.op, answer.op) and len(said) == 1:
        return equal("the same words")
    try:
        return _Comparison(rules).answers(reference, answer)
    except TooMuch as limit:
        return unknown(str(limit))
    except MemoryError:
        raise
    except Exception as error:  # a policy that could raise an error here would leave the loss
        return unknown(f"{type(error).__name__} in the comparison")


def exact_value(answer: Node) -> Fraction | None:
    """The number that an answer is, where it is one without unit and words, and rational."""
    return rational(answer)


def without_value(answer: Node) -> bool:
    """Whether something is divided by 0 in an answer."""
    for each in ex.parts(answer):
        base, exponent = map(rational, each.args) if each.op == "power" else (None, None)
        if base == 0 and exponent is not None and exponent < 0:
            return True
    return False


def _choices(gold: str, given: str, *texts: Node | None) -> Proof:
    """Two answers that name options; where both say a number after one label, it is the same number."""
    numbers = [rational(text) for text in texts if text is not None]
    if len(set(numbers)) == 2 and None not in numbers:
        return different(f"the choice {gold}, and another text after it")
    first, second = gold.replace(",", ""), given.replace(",", "")
    if (
        "," in gold and "," in given and first == "".join(sorted(first))
    ):  # an order other than the alphabet's is an answer
        second = "".join(sorted(second))
    return equal(f"the choice {gold}") if first == second else different(f"the choices {gold} and {given}")


class _Comparison:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def answers(self, gold: Node, given: Node) -> Proof:
        """Two answers of any kinds."""
        gold, given = _plain(gold), _plain(given)
        if "family" in (gold.op, given.op) and gold.op != given.op:  # x + C for any real C
            gold, given = (each.args[0] if each.args[1:] in _ANY_REAL else each for each in (gold, given))
        if "matrix" in (gold.op, given.op) and gold.op != given.op:
            gold, given = as_tuple(gold), as_tuple(given)
        if "tuple" in (gold.op, given.op) and gold.op != given.op:
            gold, given = as_vector(gold, len(given.args)), as_vector(given, len(gold.args))
        ops = gold.op, given.op
        if "relation" in ops or is_region(gold) or is_region(given):
            found = self._relations(gold, given)
            if found is not None:
                return found
        rules = {"family": self._families, "residue": self._residues, "digits": compare_digits}
        for kind in (*rules, *_SEVERAL):
            if kind in ops:
                return rules.get(kind, self._several)(gold, given)
        if ops == ("cases", "cases"):
            return self._sets(gold.args, given.args)
        if ops == ("case", "case"):
            return self._all(gold.args, given.args)
        if ops == ("matrix", "matrix"):
            return self._entries(gold, given)
        if ops == ("date", "date"):  # the year may be missing
            return decided(gold.value[:2] == given.value[:2] and (len({*gold.value[2:], *given.value[2:]}) < 2), "date")
        if set(ops) == {"words", "title"}:  # TRUE and true
            said = {words(each.value).value if each.op == "title" else each.value for each in (gold, given)}
            return decided(len(said) == 1, "words")
        if ops[0] in _ATOMIC or ops[1] in _ATOMIC or {"matrix", "cases"}.intersection(ops):
            return decided(gold == given, ops[0]) if ops[0] == ops[1] else unknown(f"{ops[0]} and {ops[1]}")
        return compare_quantities(gold, given, self.rules.precision, self.rules.strict)

    def _all(self, golds: Sequence[Node], givens: Sequence[Node]) -> Proof:
        """Pairs of answers: different where one is, equal where all are."""
        proofs = [self.answers(gold, given) for gold, given in zip(golds, givens, strict=True)]
        for outcome in (ProofOutcome.DIFFERENT, ProofOutcome.UNKNOWN):
            found = next((proof for proof in proofs if proof.outcome is outcome), None)
            if found is not None:
                return found
        return equal("; ".join(dict.fromkeys(proof.why for proof in proofs)))

    def _entries(self, gold: Node, given: Node) -> Proof:
        if [len(row.args) for row in gold.args] != [len(row.args) for row in given.args]:
            return different("of different sizes")
        return self._all(*([entry for row in each.args for entry in row.args] for each in (gold, given)))

    # ------------------------------------------------------------------ relations and sets of numbers

    def _relations(self, gold: Node, given: Node) -> Proof | None:
        equations = [each.op == "relation" and set(each.value) <= {"=", "≈"} for each in (gold, given)]
        if all(equations):
            return self._equations(gold, given)
        gold, given = ascending(gold), ascending(given)
        if gold.op == given.op == "relation" and gold.value == given.value:
            proof = self._all(gold.args, given.args)
            if proof.equal or not is_region(gold):
                return proof
        if is_region(gold) or is_region(given):
            return self._regions(gold, given)
        if gold.op == given.op:
            return unknown("two relations of different kinds")
        wrong = self._unequal_chain(given) if equations[1] else None
        if wrong is not None:
            return wrong
        if gold.op == "residue" and equations[1] and not ex.names_in(given.args[-1]):
            return unknown("a residue class, and one number")  # n ≡ 1 (mod 3), and n = 1
        rounding = true_rounding(given) if equations[1] else None
        asked = gold.op == "decimal" or label(given) is not None
        if rounding is not None and asked and self.answers(gold, rounding).equal:
            return equal("the rounding that it states")
        stated = [stated_value(each, bare=each is gold) if each.op == "relation" else each for each in (gold, given)]
        return unknown("it states no value") if None in stated else self.answers(*stated)  # type: ignore[arg-type]

    def _regions(self, gold: Node, given: Node) -> Proof | None:
        if gold.op == "tuple" and ex.holds(given, "relation") and not self.rules.allow_set_relation_comp:
            return unknown("a pair, and a relation")
        if gold.op == given.op == "interval" and gold.value == given.value:
            ends = self._all(gold.args, given.args)
            if ends.equal:
                return ends
        gold, given = (_as_region(each) if each.op == "list" else each for each in (gold, given))
        if "list" in (gold.op, given.op) or {gold.op, given.op} == {"set", "interval"}:
            return unknown("a set of numbers, and an interval")
        try:
            first, second = line(gold), line(given)
            if self.rules.strict and len({first.variable, second.variable} - {None}) > 1:
                return different(f"sets of {first.variable} and of {second.variable}")
            return decided(same(first, second), "set of numbers")
        except Unsolved:
            return self._inequalities(gold, given)

    def _inequalities(self, gold: Node, given: Node) -> Proof:
        """Inequalities that cannot be solved: the same up to a positive factor; a chain holds at each sign."""
        if gold.op != given.op:  # a < b < c, "a < b and b < c"
            gold, given = map(_without_chain, (gold, given))
        if gold.op in ("∪", "∩") and gold.op == given.op:
            return self._sets(gold.args, given.args)
        field, forms = Field(), []
        for each in (gold, given):
            if each.op != "relation" or len(each.value) != 1 or each.value[0] not in ("<", ">", "≤", "≥"):
                return unknown("sets of numbers that cannot be solved")
            if ex.holds(each, *ex.NO_EXPRESSIONS - {"relation"}):
                return unknown("inequalities between words")
            sides = each.args if each.value[0] in (">", "≥") else each.args[::-1]
            forms.append((field.difference(*sides), each.value[0] in ("<", ">")))
        factor = factor_between(forms[0][0], forms[1][0])
        proved = forms[0][1] == forms[1][1] and factor is not None and factor > 0
        return (
            equal("one inequality, up to a positive factor")
            if proved
            else unknown("inequalities that cannot be solved")
        )

    def _equations(self, gold: Node, given: Node) -> Proof:
        wrong = self._unequal_chain(given)
        if wrong is not None:
            return wrong
        gold, given = map(without_remarks, (gold, given))
        labels = label(gold), label(given)
        if None not in labels:  # x = 5, y = x = 5
            found = self.answers(gold.args[-1], given.args[-1])
            if one_label(*labels) or not self.rules.strict:  # type: ignore[arg-type]
                others = (self.answers(gold.args[-1], each) for each in with_constants_of(gold, given))
                return found if found.equal else next((proof for proof in others if proof.equal), found)
            given = renamed(gold, given)
        if len(gold.args) > 2 or len(given.args) > 2:
            gold, given = (Node("relation", (each.args[0], each.args[-1]), ("=",)) for each in (gold, given))
        sides = gold.args + given.args
        simple = None not in labels and not ex.names_in(gold.args[1])
        if simple or any(side.op in (*_ATOMIC, *_SEVERAL, "measure") for side in sides):
            turned = self._all(gold.args, given.args[::-1])  # AB = CD, CD = AB
            return turned if turned.equal else self._all(gold.args, given.args)
        field = Field()
        one, other = field.difference(*gold.args), field.difference(*given.args)
        if factor_between(one, other) is not None:
            return equal(f"one equation, up to a factor: {field.node(one)} = 0")
        polynomial = all(atom.kind in ("name", "prime") for atom in field.atoms[3:])
        return different("not multiples of each other") if polynomial else unknown("not multiples of each other")

    def _unequal_chain(self, given: Node) -> Proof | None:
        """Why a chain offers several answers, or None.

        A chain that begins with a name states its last member, whatever stands before it. The values of any other must
        be equal, but for one computation and its result. After ≈ stands a rounded value; a decimal after an exact value
        is a remark, which need not be right.
        """
        begin = given.value == ("=",) and is_computation(given.args[0])
        places = [place for place, side in enumerate(given.args) if place >= begin and is_value(side)]
        derived = label(given) is not None
        for place, following in pairwise(places):
            one, other = given.args[place], given.args[following]
            if "≈" in given.value[place:following]:
                rounded = is_remark(one, other) or approximates(parted(other)[0], parted(one)[0])
            else:
                rounded = derived
            if not rounded and not self.answers(one, other).equal:
                return different("a chain of unequal constants")
        return None

    # ------------------------------------------------------------------ several answers

    def _several(self, gold: Node, given: Node) -> Proof:
        ops = (gold.op, given.op)
        if set(ops) == {"set", "tuple"} and all(part.op not in _SEVERAL for part in (*gold.args, *given.args)):
            return different("a set is not a pair or an interval")
        parts = [each.args if each.op in _SEVERAL else (each,) for each in (gold, given)]
        if not set(ops) <= set(_SEVERAL) and any(part.op == "words" for part in (*parts[0], *parts[1])):
            return unknown("words, and several answers")
        if "ratio" in ops:
            if ops != ("ratio", "ratio") or len(parts[0]) != len(parts[1]):
                return unknown("a ratio, and none like it")
            return self._all(*([ex.over(part, each[0]) for part in each[1:]] for each in parts))
        if "set" in ops:
            one_of = [each.op == "set" and each.value == "or" for each in (gold, given)]
            return self._sets(*parts) if one_of[0] == one_of[1] else unknown("all, or one of several")
        if len(parts[0]) != len(parts[1]):
            return different(f"{len(parts[0])} and {len(parts[1])} answers")
        if all(label(part) is not None for part in (*parts[0], *parts[1])):  # p = 5, q = 2 and q = 2, p = 5
            return self._sets(*parts)
        in_order = self._all(*parts)
        if in_order.equal or ops != ("list", "list"):
            return in_order
        among = self._sets(*parts)
        ordered = self.rules.ordered_lists and not any(
            part.op in (*_SEVERAL, "relation", "interval") for part in parts[0]
        )
        return among if not ordered else unknown("the same answers in another order") if among.equal else in_order

    def _sets(self, gold: Sequence[Node], given: Sequence[Node]) -> Proof:
        proofs = [[self.answers(part, answer) for answer in given] for part in gold]
        unmatched = [row for row in proofs if not any(proof.equal for proof in row)]
        unmatched += [list(column) for column in zip(*proofs, strict=True) if not any(proof.equal for proof in column)]
        if not unmatched:
            return equal(f"each of {len(gold)} is among the other's")
        if any(all(proof.outcome is ProofOutcome.DIFFERENT for proof in row) for row in unmatched):
            return different("a member is missing")
        return unknown("a member is not proved to be among the other's")

    # ------------------------------------------------------------------ families and residues

    def _families(self, gold: Node, given: Node) -> Proof:
        if any(each.op == "residue" and each.args[2:] for each in (gold, given)):
            return unknown("a family, and a congruence to be solved")
        gold, given = (as_family(each) if each.op == "residue" else each for each in (gold, given))
        if gold.op != "family":
            every = given.args[1] in map(words, ("ℤ", "ℕ", "ℝ", "positive", "nonnegative", "natural", "constant"))
            return self.answers(gold, given.args[0]) if every else unknown("only for some integers")
        ranges = [each.args[1] for each in (gold, given) if each.op == "family"]
        if len(set(ranges)) > 1:
            return unknown("another range of the integer")
        shifts, turns = ((0, 1, -1, 2, -2, 3, -3), (1, -1)) if ranges[0] == words("ℤ") else ((0,), (1,))
        answer = given.args[0] if given.op == "family" else given
        others = ex.names_in(answer) - ex.names_in(gold)
        index = given.value if given.op == "family" else next(iter(others)) if len(others) == 1 else gold.value
        for step in shifts:
            for turn in turns:
                moved = ex.plus(ex.times(ex.number(turn), ex.name(gold.value)), ex.number(step))
                proof = self.answers(gold.args[0], ex.replaced(answer, ex.name(index), moved))
                if proof.equal:
                    return proof
        return unknown(f"not proved the same for each integer {gold.value}")

    def _residues(self, gold: Node, given: Node) -> Proof:
        moduli = [each.args[1] for each in (gold, given) if each.op == "residue"]
        sides = [each.args[0] if each.op == "residue" else each for each in (gold, given)]
        if len(moduli) == 2 and not compare(*moduli).equal:
            return different("another modulus")
        of = [each.args[2:] if each.op == "residue" else () for each in (gold, given)]
        if of[0] != of[1] and not (of[0] and of[1] and self._all(*of).equal):
            return unknown("residues of different expressions")
        modulus = rational(moduli[0])
        if len(moduli) == 1 and any(map(ex.names_in, sides)):  # x = 7k + 5
            return self._families(gold, given) if gold.op == "residue" else self.answers(gold, as_family(given))
        parts = [each.args if each.op in ("list", "set") else (each,) for each in sides]
        first, second = ([found for part in each if (found := rational(part)) is not None] for each in parts)
        integers = [each for each in (*first, *second) if each.denominator == 1]
        if modulus is None or modulus < 1 or len(integers) != sum(map(len, parts)):
            return self.answers(*sides) if len(moduli) == 2 else unknown("a residue, and no integer")
        residues = {each % modulus if gold.op == "residue" else each for each in first}  # a bare number is its own
        return decided(residues == {each % modulus for each in second}, f"residue modulo {modulus}")


# ---------------------------------------------------------------------- helpers


def _without_chain(answer: Node) -> Node:
    """A chain of inequalities as all of them together; anything else as it is."""
    if answer.op != "relation" or len(answer.value) < 2:
        return answer
    sides = zip(pairwise(answer.args), answer.value, strict=True)
    return Node("∩", tuple(Node("relation", pair, (sign,)) for pair, sign in sides))


def _as_region(answer: Node) -> Node:
    """Inequalities at commas hold together; where no number fulfils them all, it is enough that one does."""
    if not all(each.op == "relation" and is_region(each) for each in answer.args):
        return answer
    try:
        together = line(Node("∩", answer.args))
    except Unsolved:
        return answer
    return Node("∩" if any(together.inside) else "∪", answer.args)


def _plain(answer: Node) -> Node:
    """Without brackets around one answer; both values of a ±; what words say of numbers as such."""
    if answer.op in ("tuple", "list", "set") and len(answer.args) == 1 and answer.args[0].op != "words":
        return _plain(answer.args[0])
    if answer.op == "words" and answer.value == ("∞",):
        return ex.INFINITY
    if answer.op == "words" and answer.value in _HALF_LINES:
        low, closed = _HALF_LINES[answer.value]
        return Node("interval", (low, ex.INFINITY), (closed, False))
    if answer.op in ("list", "set"):  # -2, 1 ± √5
        spread = [
            part.args if part.op == "set" and ex.holds(before, "±") else (before,)
            for before, part in ((each, _plain(each)) for each in answer.args)
        ]
        return answer._replace(args=tuple(part for each in spread for part in each))
    if ex.holds(answer, "±", "∓") and answer.op not in (*_SEVERAL, "relation", "family", "cases"):
        return Node("set", tuple(ex.variants(answer)))
    return answer
