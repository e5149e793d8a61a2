"""Two answers by their kinds: each kind has its rule, and only what is proved equal is equal.

The reference comes first. A rule may read the reference's form (what it leaves out, the question has fixed) but never
loosens a value: units convert by their factors, decimals stand for a value from `precision` digits on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from strop.verifiers.math import expressions as ex
from strop.verifiers.math.evaluate import Undefined, Vague, interval, value
from strop.verifiers.math.expressions import Effort, Node, TooMuch
from strop.verifiers.math.grammar import Measure, Reading, in_letters, is_region, label, words
from strop.verifiers.math.normal import Field, Form
from strop.verifiers.math.proof import Outcome, Proof, compare, different, equal, unknown
from strop.verifiers.math.regions import Unsolved, line, same

_UNDONE = {"Σ": "sum", "Π": "product", "integral": "integral", "limit": "limit", "derivative": "derivative"}
_CONSTANTS = ("C", "c", "K", "k", "C_1", "c_1", "C_0", "D", "A")  # of integration
_TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
_SEVERAL = ("tuple", "list", "set", "ratio")
_ATOMIC = ("words", "title", "clock", "date", "division", "…")
_BARE = Measure()


class Rules(NamedTuple):
    """Settings of the comparison; see `MathVerifier`."""

    precision: int = 6
    strict: bool = True
    allow_set_relation_comp: bool = False
    ordered_lists: bool = True


def judge(gold: Reading, given: Reading, rules: Rules) -> Proof:
    """Whether an answer is the reference's."""
    if gold.letters is not None and given.letters is not None:
        return _choices(gold.letters, given.letters)
    Effort.begin()
    reference, answer = gold.answer, given.answer
    if not ex.names_in(reference) and ex.names_in(answer):
        answer = in_letters(given.tokens) or answer
    elif reference.op == "decimal" and [token.text for token in given.tokens][1:-1] == [","]:  # a decimal comma
        answer = Node("decimal", (), ".".join((given.tokens[0].text, given.tokens[2].text)))
    elif answer.op == "measure" and ex.names_in(reference) and not ex.names_in(answer):
        reference = in_letters(gold.tokens) or reference
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
    return _rational(answer)


def without_value(answer: Node) -> bool:
    """Whether something is divided by 0 in an answer."""
    for each in ex.parts(answer):
        base, exponent = map(_rational, each.args) if each.op == "power" else (None, None)
        if base == 0 and exponent is not None and exponent < 0:
            return True
    return False


def _choices(gold: str, given: str) -> Proof:
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
        ops = gold.op, given.op
        if "relation" in ops or is_region(gold) or is_region(given):
            found = self._relations(gold, given)
            if found is not None:
                return found
        rules = {"family": self._families, "residue": self._residues, "digits": _digits}
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
            return _same(gold.value[:2] == given.value[:2] and (len({*gold.value[2:], *given.value[2:]}) < 2), "date")
        if set(ops) == {"words", "title"}:  # TRUE and true
            said = {words(each.value).value if each.op == "title" else each.value for each in (gold, given)}
            return _same(len(said) == 1, "words")
        if ops[0] in _ATOMIC or ops[1] in _ATOMIC or {"matrix", "cases"}.intersection(ops):
            return _same(gold == given, ops[0]) if ops[0] == ops[1] else unknown(f"{ops[0]} and {ops[1]}")
        return self._quantities(gold, given)

    def _all(self, golds: Sequence[Node], givens: Sequence[Node]) -> Proof:
        """Pairs of answers: different where one is, equal where all are."""
        proofs = [self.answers(gold, given) for gold, given in zip(golds, givens, strict=True)]
        for outcome in (Outcome.DIFFERENT, Outcome.UNKNOWN):
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
        if gold.op == given.op == "relation" and gold.value == given.value and not is_region(gold):
            return self._all(gold.args, given.args)
        if is_region(gold) or is_region(given):
            return self._regions(gold, given)
        if gold.op == given.op:
            return unknown("two relations of different kinds")
        wrong = self._unequal_chain(given) if equations[1] else None
        stated = [_stated_value(each, bare=each is gold) if each.op == "relation" else each for each in (gold, given)]
        return wrong or (unknown("it states no value") if None in stated else self.answers(*stated))  # type: ignore[arg-type]

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
            return _same(same(first, second), "set of numbers")
        except Unsolved:
            return self._inequalities(gold, given)

    def _inequalities(self, gold: Node, given: Node) -> Proof:
        """Inequalities that cannot be solved: the same up to a positive factor."""
        if gold.op in ("∪", "∩") and gold.op == given.op:
            return self._sets(gold.args, given.args)
        field, forms = Field(), []
        for each in (gold, given):
            if each.op != "relation" or len(each.value) != 1 or each.value[0] not in ("<", ">", "≤", "≥"):
                return unknown("sets of numbers that cannot be solved")
            sides = each.args if each.value[0] in (">", "≥") else each.args[::-1]
            forms.append((field.difference(*sides), each.value[0] in ("<", ">")))
        factor = _factor(forms[0][0], forms[1][0])
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
        labels = label(gold), label(given)
        if None not in labels:  # x = 5, y = x = 5
            found = self.answers(gold.args[-1], given.args[-1])
            function, value_of = labels[0].op.removeprefix("apply "), labels[1]  # type: ignore[union-attr]
            named = value_of in (ex.name("y"), ex.name(function)) and function != labels[0].op  # type: ignore[union-attr]
            if labels[0] == labels[1] or named or not self.rules.strict:
                return found
            given = _renamed(gold, given)
        if len(gold.args) > 2 or len(given.args) > 2:
            gold, given = (Node("relation", (each.args[0], each.args[-1]), ("=",)) for each in (gold, given))
        sides = gold.args + given.args
        simple = None not in labels and not ex.names_in(gold.args[1])
        if simple or any(side.op in (*_ATOMIC, *_SEVERAL, "measure") for side in sides):
            return self._all(gold.args, given.args)
        field = Field()
        one, other = field.difference(*gold.args), field.difference(*given.args)
        if _factor(one, other) is not None:
            return equal(f"one equation, up to a factor: {field.node(one)} = 0")
        polynomial = all(atom.kind in ("name", "prime") for atom in field.atoms[3:])
        return different("not multiples of each other") if polynomial else unknown("not multiples of each other")

    def _unequal_chain(self, given: Node) -> Proof | None:
        """A chain of values that are not all proved equal, or rounded, offers several answers."""
        labelled = label(given) is not None
        values = [place for place, side in enumerate(given.args) if not (labelled and place == 0) and _is_value(side)]
        for place, following in pairwise(values):
            one, other = given.args[place], given.args[following]
            rounded = "≈" in given.value[place:following] and _approximates(other, one)
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
        alone = [row for row in proofs if not any(proof.equal for proof in row)]
        alone += [list(column) for column in zip(*proofs, strict=True) if not any(proof.equal for proof in column)]
        if not alone:
            return equal(f"each of {len(gold)} is among the other's")
        if any(all(proof.outcome is Outcome.DIFFERENT for proof in row) for row in alone):
            return different("a member is missing")
        return unknown("a member is not proved to be among the other's")

    # ------------------------------------------------------------------ families and residues

    def _families(self, gold: Node, given: Node) -> Proof:
        gold, given = (_as_family(each) if each.op == "residue" else each for each in (gold, given))
        if gold.op != "family":
            return self.answers(gold, given.args[0])
        answer = given.args[0] if given.op == "family" else given
        others = ex.names_in(answer) - ex.names_in(gold)
        index = given.value if given.op == "family" else next(iter(others)) if len(others) == 1 else gold.value
        for step in (0, 1, -1, 2, -2, 3, -3):
            for turn in (1, -1):
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
        modulus = _rational(moduli[0])
        if len(moduli) == 1 and any(map(ex.names_in, sides)):  # x = 7k + 5
            return self._families(gold, given) if gold.op == "residue" else self.answers(gold, _as_family(given))
        parts = [each.args if each.op in ("list", "set") else (each,) for each in sides]
        first, second = ([found for part in each if (found := _rational(part)) is not None] for each in parts)
        integers = [each for each in (*first, *second) if each.denominator == 1]
        if modulus is None or modulus < 1 or len(integers) != sum(map(len, parts)):
            return self.answers(*sides) if len(moduli) == 2 else unknown("a residue, and no integer")
        residues = {each % modulus if gold.op == "residue" else each for each in first}  # a bare number is its own
        return _same(residues == {each % modulus for each in second}, f"residue modulo {modulus}")

    # ------------------------------------------------------------------ quantities

    def _quantities(self, gold: Node, given: Node) -> Proof:
        (first, one), (second, other) = _parted(gold), _parted(given)
        if one.words != other.words:
            return unknown(f"“{' '.join(one.words)}” and “{' '.join(other.words)}”")
        if one.thing and other.thing and one.thing != other.thing:
            return unknown(f"{one.thing} and {other.thing}")
        for op, what in _UNDONE.items():
            if ex.holds(second, op) and not ex.holds(first, op):
                return unknown(f"an unevaluated {what}")
        units = [each.unit for each in (one, other) if each.unit is not None and each.unit.dimension]
        degrees = ex.holds(first, "degree") or ex.holds(second, "degree")
        if degrees and [unit.dimension for unit in units] == [(("rad", 1),)]:
            return self._exactly(first, second)
        if len(units) == 2 and units[0].dimension != units[1].dimension or (units and degrees):
            return different("units of different dimensions")
        if len(units) == 2 and units[0] != units[1]:
            second = ex.times(ex.number(units[1].factor / units[0].factor), second)
        if one.percent == other.percent:
            return self._values(first, second)
        hundredth = ex.number(
            Fraction(1, 100)
        )  # a percentage is its hundredth; of numbers above 1 the sign may be missing
        proof = self._values(
            *(ex.times(node, hundredth) if at.percent else node for node, at in ((first, one), (second, other)))
        )
        bare = _rational(first if other.percent else second)
        return proof if proof.equal or bare is None or abs(bare) <= 1 else self._values(first, second)

    def _values(self, gold: Node, given: Node) -> Proof:
        if ex.is_infinite(gold) or ex.is_infinite(given):
            return _same(gold == given, "infinity")
        if not self.rules.strict:
            gold, given = _numbered(gold), _numbered(given)
        proof = self._exactly(gold, given)
        degrees = [ex.holds(each, "degree") for each in (gold, given)]
        if proof.equal or not any(degrees):
            return proof
        bare = self._exactly(_without_degrees(gold), _without_degrees(given))  # the sign may be missing on one side
        return proof if all(degrees) and not bare.equal else bare

    def _exactly(self, gold: Node, given: Node) -> Proof:
        proof = compare(gold, _with_constant(gold, given) if self.rules.strict else given)
        if proof.equal or ex.names_in(gold) or ex.names_in(given):
            return proof
        digits = {side: stated for side in (gold, given) if (stated := _stated_digits(side)) is not None}
        if not digits:
            return proof
        short = min(digits, key=digits.__getitem__)
        at = _rational(short)
        if at is None or at == 0 or digits[short] < self.rules.precision + (abs(at) >= 1):
            return proof
        other = given if short is gold else gold
        return equal(f"rounded to {digits[short]} digits") if _rounds_to(other, at, digits[short]) else proof


# ---------------------------------------------------------------------- helpers


def _same(one: bool, what: str) -> Proof:
    return equal(f"the same {what}") if one else different(f"not the same {what}")


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
    if answer.op == "words" and answer.value in (("∞",), ("ℝ",)):
        return (
            ex.INFINITY
            if answer.value == ("∞",)
            else Node("interval", (ex.minus(ex.INFINITY), ex.INFINITY), (False, False))
        )
    if answer.op in ("list", "set"):  # -2, 1 ± √5
        spread = [
            part.args if part.op == "set" and ex.holds(before, "±") else (before,)
            for before, part in ((each, _plain(each)) for each in answer.args)
        ]
        return answer._replace(args=tuple(part for each in spread for part in each))
    if ex.holds(answer, "±", "∓") and answer.op not in (*_SEVERAL, "relation", "family", "cases"):
        return Node("set", tuple(ex.variants(answer)))
    return answer


def _parted(node: Node) -> tuple[Node, Measure]:
    return (node.args[0], node.value) if node.op == "measure" else (node, _BARE)


def _stated_value(relation: Node, bare: bool) -> Node | None:
    """The value that an equation states; None where it states none.

    `bare`: the value is to stand for the equation, as 5 does for x = 5; for a curve such as x² + y² = 25 none does.
    """
    if relation.value == ("∈",) and relation.args[0].op in ("name", "tuple"):
        return relation.args[1]
    if not set(relation.value) <= {"=", "≈"}:
        return None
    first, last, named = relation.args[0], relation.args[-1], label(relation) is not None
    if last.op == "name" and not ex.names_in(first):  # 5 = x
        return first
    if "≈" in relation.value and not named:  # √3/3 ≈ 0.577
        last = relation.args[relation.value.index("≈")]
    names = ex.names_in(first)
    curve = bare and not ex.holds(first, "ln", *_TRIGONOMETRIC)
    computed = ex.holds(first, *_UNDONE) or (
        not ex.names_in(last) and not curve and (len(names) > 1 or ex.holds(first, "ln", *_TRIGONOMETRIC))
    )
    equation = ex.names_in(last) if not names else len(relation.value) == 1  # 9 = x + 1, x² = 9
    return last if named or computed or not equation else None


def _digits(gold: Node, given: Node) -> Proof:
    """Digits in a base: the same digits and base; where the reference names a base, the question has fixed it."""
    if gold.op == given.op:
        return _same(gold == given, "digits and base")
    (digits, base), other = (gold.value, given) if gold.op == "digits" else (given.value, gold)
    if other.op != "number" or (given.op == "digits" and base != 10):
        return unknown(f"in base {base}, and in none")
    return _same(str(other.value) == digits, "digits")


def _rational(node: Node) -> Fraction | None:
    if not node.args and node.op not in ("number", "decimal"):
        return None
    try:
        found = value(node, {}, 100)
    except (Undefined, Vague, TooMuch):
        return None
    return found if isinstance(found, Fraction) else None


def _is_value(node: Node) -> bool:
    """Whether an answer has a value of its own: there are no names in it, and nothing is left to be computed."""
    undone = (part.op in _UNDONE or part.op.startswith("apply ") for part in ex.parts(node))
    return not ex.names_in(node) and not any(undone)


def _approximates(shown: Node, meant: Node) -> bool:
    """Whether a constant is another one, rounded to the digits that it states."""
    shown, meant = _parted(shown)[0], _parted(meant)[0]
    at = _rational(shown) if meant.op not in (*_SEVERAL, *_ATOMIC) else None
    digits = _stated_digits(shown) or (len(str(abs(at))) if at is not None and at.denominator == 1 else 0)
    return at is not None and at != 0 and digits > 0 and _rounds_to(meant, at, digits)


def _numbered(node: Node) -> Node:
    """An expression whose names are numbered in their order: names do not count."""
    for place, each in enumerate(dict.fromkeys(part for part in ex.parts(node) if part.op == "name")):
        node = ex.replaced(node, each, ex.name(f"#{place}"))
    return node


def _stated_digits(node: Node) -> int | None:
    """How many digits a decimal states: `1.60`, `-0.5`, `1.6 \\times 10^{-19}`; None for anything else."""
    factors = [part for part in (node.args if node.op == "product" else (node,)) if part != ex.MINUS_ONE]
    decimals = [part for part in factors if part.op == "decimal"]
    tens = [
        part for part in factors if part.op == "power" and part.args[0] == ex.number(10) and part.args[1].op == "number"
    ]
    if len(decimals) != 1 or len(tens) > 1 or len(decimals) + len(tens) != len(factors):
        return None
    return len(decimals[0].value.replace(".", "").lstrip("0"))


def _rounds_to(node: Node, at: Fraction, digits: int) -> bool:
    """Whether a constant is a decimal when it is rounded or, where it is no decimal itself, cut off to some digits."""
    size = (
        len(str(int(abs(at)))) if abs(at) >= 1 else 1 - len(str(int(1 / abs(at)) - (1 / abs(at) == int(1 / abs(at)))))
    )
    half = Fraction(10) ** (size - digits) / 2
    most = half if _stated_digits(node) is not None else 2 * half
    try:  # how much larger the constant is, in the direction away from 0
        gap = value(ex.times(ex.number(1 if at > 0 else -1), ex.plus(node, ex.number(-at))), {}, 200)
    except (Undefined, Vague, TooMuch):
        return False
    if isinstance(gap, Fraction):
        return -half <= gap <= most and (gap + at).denominator > 1  # an integer is not approximated
    return bool(gap.imag.a == gap.imag.b == 0 and gap.real.b <= interval(most).a and gap.real.a >= interval(-half).b)


def _factor(first: Form, second: Form) -> Fraction | None:
    """By what rational number one sum is a multiple of another; None where by none."""
    if not first or first.keys() != second.keys():
        return None
    ratios = {second[mono] / first[mono] for mono in first}
    return ratios.pop() if len(ratios) == 1 else None


def _as_family(residue: Node) -> Node:
    """A residue class as its members: 7k + 5 for each integer k."""
    value_, modulus = residue.args
    return Node("family", (ex.plus(ex.times(modulus, ex.name("k")), value_),), "k")


def _without_degrees(node: Node) -> Node:
    """Degree signs taken off, but under trigonometric functions."""
    if node.op == "degree":
        return _without_degrees(node.args[0])
    return node if node.op in _TRIGONOMETRIC else node._replace(args=tuple(map(_without_degrees, node.args)))


def _renamed(gold: Node, given: Node) -> Node:
    """`f(t) = 2t` with the reference's arguments: `f(x) = 2x`."""
    first, second = gold.args[0], given.args[0]
    if first.op == second.op and len(first.args) == len(second.args):
        for ours, theirs in zip(first.args, second.args, strict=True):
            bound = theirs.op == "name" and theirs.value in ex.names_in(given.args[-1])
            if bound and ours.op == "name" and ours.value not in ex.names_in(given):
                given = ex.replaced(given, theirs, ours)
    return given


def _with_constant(gold: Node, given: Node) -> Node:
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
