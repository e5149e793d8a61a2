"""Two answers by their kinds: each kind has its rule, and only what is proved equal is equal.

The reference comes first. A rule may read the reference's form (what it leaves out, the question has fixed) but never
loosens a value: units convert by their factors, decimals stand for a value from `precision` digits on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from string import ascii_uppercase

from strop_verify import choices
from strop_verify.math import conventions, quantities, wordings
from strop_verify.math import expressions as ex
from strop_verify.math.conventions import as_family, by_name
from strop_verify.math.evaluate import rational
from strop_verify.math.expressions import Effort, Node, Token, TooMuch, Unreadable, label
from strop_verify.math.families import members, same_members
from strop_verify.math.formulas import formula
from strop_verify.math.grammar import Reading, is_region, read_tokens, with_decimal_comma
from strop_verify.math.latex import tokens
from strop_verify.math.normal_form import Field
from strop_verify.math.ordered import components, has_vectors, in_order, matrices_in, unmarked
from strop_verify.math.parser import as_matrix, as_tuple, matrix_of
from strop_verify.math.proof import Proof, ProofOutcome, different, equal, unknown
from strop_verify.math.propositions import proposition
from strop_verify.math.quantities import decided, is_remark, is_value, parted, rounds_to, stated_digits, stated_value
from strop_verify.math.regions import Unsolved, joined, line, pieces, same, shared
from strop_verify.math.settings import MathSettings, formulas_in
from strop_verify.math.units import table
from strop_verify.math.wordings import trimmed, words

_EVEN = ex.times(ex.number(2), ex.name("k"))
_SAID = {  # what words say of numbers
    ("∞",): ex.INFINITY, ("ℝ",): Node("interval", (ex.minus(ex.INFINITY), ex.INFINITY), (False, False)),
    ("ℝ≥0",): Node("interval", (ex.ZERO, ex.INFINITY), (True, False)),
    ("ℝ>0",): Node("interval", (ex.ZERO, ex.INFINITY), (False, False)),
    ("-∞",): ex.minus(ex.INFINITY), ("2ℤ",): Node("family", (_EVEN, words("ℤ")), "k"),
    ("2ℤ+1",): Node("family", (ex.plus(_EVEN, ex.ONE), words("ℤ")), "k"),
}  # fmt: skip
_EVERY = tuple(map(words, ("ℤ", "ℕ", "ℝ", "positive", "nonnegative", "natural")))
_FROM = {("≤", ex.ZERO): "nonnegative", ("<", ex.ZERO): "positive", ("≤", ex.ONE): "positive"}
_SEVERAL = ("tuple", "list", "set", "ratio")
_SYMMETRIC = (("≠",), ("∥",), ("⊥",), ("≅",))
_PARTED = (*_SEVERAL, "relation", "interval")
_ATOMIC = ("words", "title", "clock", "date", "proposition", "formula", "…")


def compare_readings(gold: Reading, given: Reading, rules: MathSettings, by_text: bool = True) -> Proof:
    """Whether an answer is the reference's; `by_text`: the same text is."""
    letters = given.letters or (choices.in_any_case(given.text) if len(gold.letters or "") == 1 else None)
    Effort.begin()
    if gold.letters is not None and letters is not None:
        found, values = _choices(gold.letters, letters), (_behind(gold, gold.letters), _behind(given, letters))
        if not found.equal or None in values or any(ex.holds(each, "words") for each in values if each):
            return found
        other = _Comparison(rules).answers(*values)  # type: ignore[arg-type]
        return other if other.outcome is ProofOutcome.DIFFERENT else found  # another value behind the letter
    if by_text and gold.text == given.text:
        return equal("the same text")
    truths = wordings.truth(gold.tokens), wordings.truth(given.tokens)
    if None not in truths and gold.answer.op in ("words", "title"):
        return decided(truths[0] == truths[1], "truth value")
    if gold.answer.op in ("words", "title") and wordings.repeats(gold.tokens, given.tokens, rules.question):
        return equal("the same words, and the question's")
    both = (gold, given)
    reference, answer = (_behind(each, each.letters) or _option(each, rules.question) or each.answer for each in both)
    names = [ex.names_in(each) for each in (reference, answer)]
    if names[1] - names[0]:
        units = table().keys() if ex.holds(reference, "measure") else quantities.UNIT_LETTERS
        answer = _read(quantities.upright(given.tokens, units - names[0])) or answer
    if names[0] - names[1] and (measured := _read(quantities.upright(gold.tokens, table().keys() - names[1]))):
        asked = quantities.asked_unit(rules.asked) if rules.asked else None
        if ex.holds(answer, "measure") or (asked and quantities.parted(measured)[1].unit == asked):
            reference = measured
    for kind, reader in (("proposition", proposition), ("formula", formula)):
        if kind in (reference.op, answer.op):
            reference, answer = reader(gold.tokens) or reference, reader(given.tokens) or answer
    several = [each.op in _SEVERAL for each in (reference, answer)]
    whole = rules.comma, rules.comma or reference.op == "decimal"
    listed = (each.tokens if one else () for each, one in zip((gold, given), several, strict=True))
    pointed = [with_decimal_comma(*each) for each in zip(listed, whole, strict=True)]
    if several[0] != several[1] or (rules.comma and several[0] and None not in pointed):
        reference, answer = pointed[0] or reference, pointed[1] or answer
    in_words = by_text and "words" in (reference.op, answer.op)
    if in_words and len({each.text.replace(" ", "").lower() for each in (gold, given)}) == 1:
        return equal("the same words")
    try:
        proof = _Comparison(rules).products(reference, answer, matrices_in(gold.text, given.text))
    except TooMuch as limit:
        return Proof(ProofOutcome.BEYOND, str(limit))
    except MemoryError:
        raise
    except Exception as error:  # a policy that could raise an error here would leave the loss
        return Proof(ProofOutcome.BEYOND, f"{type(error).__name__} in the comparison")
    if proof.equal and _restates(given, reference, rules.question):
        return different("the question's own formula")
    beyond = proof.outcome is ProofOutcome.UNKNOWN and Effort.exhausted
    return Proof(ProofOutcome.BEYOND, "too much work") if beyond else proof


def _restates(given: Reading, reference: Node, question: str) -> bool:
    """Whether an answer is a formula as the question has it, where the reference has another form."""
    long = sum(token.kind in ("number", "letter") for token in given.tokens) > 2 and reference.op not in ex.KINDS
    if not long or given.answer.op not in ("sum", "product", "power") or given.answer.op == reference.op:
        return False
    try:
        return f" {given.text} " in f" {wordings.text_of(tokens(question))} " and not choices.options(question)
    except Unreadable:
        return False


def _behind(reading: Reading, letters: str | None) -> Node | None:
    """The value behind the letter of a choice, 12 in `(B) 12`; None where there is none."""
    label = choices.LABEL.search(choices.in_capitals(reading.text)) if len(letters or "") == 1 else None
    return _read(reading.tokens[len(reading.text[: label.end()].split()) :]) if label is not None else None


def _option(reading: Reading, question: str) -> Node | None:
    r"""The value that a question gives the option of an answer, 4π in `(B) $4\pi$`; None where it gives none."""
    return _read(choices.options(question).get(reading.letters or reading.text, ""))


def _read(found: Sequence[Token] | str) -> Node | None:
    try:
        found = trimmed(tokens(found) if found and isinstance(found, str) else found)  # type: ignore[arg-type]
        return read_tokens(found).answer if found else None
    except (Unreadable, TooMuch):
        return None


def without_value(answer: Node) -> bool:
    """Whether something is divided by 0 in an answer."""
    powers = (map(rational, each.args) for each in ex.parts(answer) if each.op == "power")
    return any(base == 0 and exponent is not None and exponent < 0 for base, exponent in powers)


def _choices(gold: str, given: str) -> Proof:
    """Two answers that name options; an order other than the alphabet's is a part of the answer."""
    first, second = gold.replace(",", ""), given.replace(",", "")
    listed = "," in gold and "," in given and [*first] == sorted(first)
    return decided(sorted(first) == sorted(second) if listed else first == second, "choice")


class _Comparison:
    def __init__(self, rules: MathSettings) -> None:
        self.rules = rules

    def products(self, gold: Node, given: Node, matrices: frozenset[str]) -> Proof:
        """Two answers, products of matrices and of vectors in their order."""
        ops = ex.ops_in(gold), ex.ops_in(given)
        if any(op.startswith("apply ") for each in ops for op in each):
            gold, given = conventions.applied(gold, given), conventions.applied(given, gold, gold.op != "tuple")
        gold, given = components(gold, given), components(given, gold)
        gold, given = conventions.unnumbered(gold, given), conventions.unnumbered(given, gold)
        vectors, crossed = [has_vectors(each) for each in (gold, given)], ["cross" in each for each in ops]
        if vectors[0] != vectors[1]:
            gold, given = unmarked(gold), unmarked(given)
        if not matrices and not any(crossed):
            return self.answers(gold, given)
        found = self.answers(*(in_order(each, matrices, all(vectors)) for each in (gold, given)))
        if found.equal and all(crossed) and not all(vectors):  # of sets, or of numbers
            sets = any(part.op == "cross" and str(part.args[0].value)[:1].isupper() for part in ex.parts(gold))
            if sets and not self.answers(*(in_order(each, matrices, True) for each in (gold, given))).equal:
                return unknown("one product, if its order does not count")
        return found

    def answers(self, gold: Node, given: Node) -> Proof:
        """Two answers of any kinds."""
        gold, given = _plain(gold), _plain(given)
        if "family" in (gold.op, given.op) and gold.op != given.op:  # x + C for any real C
            gold, given = (each.args[0] if each.args[1:] == (words("ℝ"),) else each for each in (gold, given))
        if "where" in (gold.op, given.op):
            return self._conditions(gold, given)
        if gold.op == "tuple" and given.op.startswith("apply ") and given.op[6:] in ascii_uppercase:  # P(3, 4)
            given = Node("tuple", given.args)
        if gold.op in ("tuple", "list") and given[::2] == ("relation", ("=",) * len(gold.args)):  # x = y = 2 for (2, 2)
            named = all(each.op == "name" for each in given.args[:-1])
            given = Node("tuple", given.args[-1:] * len(gold.args)) if named else given
        rising = given.op == "relation" and given.value in ((sign,) * (len(gold.args) - 1) for sign in "<>")
        if rising and gold.op == "list" and not ex.holds(gold, "relation"):  # a < b for a, b
            return self._all(gold.args, given.args)
        for alike in (as_matrix, as_tuple):
            if "matrix" in (gold.op, given.op) and gold.op != given.op:
                gold, given = alike(gold), alike(given)
        ops = gold.op, given.op
        if "family" not in ops and ("relation" in ops or is_region(gold) or is_region(given)):
            found = self._relations(gold, given)
            if found is not None:
                return found
        sides = [each if each.op in ("list", "set") else ex.ZERO for each in (gold, given)]
        rules: dict[str, Callable[[Node, Node], Proof]] = {"residue": self._residues, "family": self._families}
        rules["digits"] = partial(quantities.compare_digits, question=self.rules.question)
        for kind in (*rules, *_SEVERAL):
            if kind in ops or (kind == "family" and all("family" in {part.op for part in each.args} for each in sides)):
                return rules.get(kind, self._several)(gold, given)
        if "cases" in ops and all(op == "cases" or op not in ex.KINDS for op in ops):
            return self._piecewise(gold, given)
        if ops == ("case", "case"):
            return self._all(gold.args, given.args)
        if ops == ("matrix", "matrix"):  # a tuple of rows
            rows = ([row._replace(op="tuple") for row in each.args] for each in (gold, given))
            return self._several(*(Node("tuple", tuple(each)) for each in rows))
        if set(ops) == {"words", "title"}:  # TRUE and true
            return self.answers(*(words(each.value) if each.op == "title" else each for each in (gold, given)))
        if {*ops} == {"clock", "measure"}:  # 12:15 and 12时15分
            gold, given = (each if each.op == "measure" else quantities.minutes(each.value) for each in (gold, given))
            return quantities.compare_quantities(gold, given, self.rules)
        if ops[1] == "clock" and ops[0] not in _ATOMIC and given.value % 60:  # 3:60 is a ratio, and then so is 1:20
            return self.answers(gold, ex.over(*map(ex.number, divmod(given.value, 60))))
        if ops == ("date", "date"):  # a year that only one side states is left out
            parts = 2 if 0 in (gold.value[2], given.value[2]) else 3
            return decided(gold.value[:parts] == given.value[:parts], "day")
        if ops[0] in _ATOMIC or ops[1] in _ATOMIC or {"matrix", "cases"}.intersection(ops):
            if ops[0] == ops[1]:  # north-east and northeast
                said = ["".join(each.value) if each.op == "words" else each for each in (gold, given)]
                return decided(said[0] == said[1], ops[0])
            if ops[1] in ("words", "formula") and ops[0] not in ex.KINDS and is_value(gold):
                return different(f"{ops[1]}, and a number")
            return unknown(f"{ops[0]} and {ops[1]}")
        return quantities.compare_quantities(gold, given, self.rules)

    def _piecewise(self, gold: Node, given: Node) -> Proof:
        """Functions by cases: they have one domain, and one value wherever a case of each holds."""
        try:
            first, second = pieces(gold), pieces(given)
            domains = [joined([part for _, part in each], any) for each in (first, second)]
            return self._all(*zip(*shared(first, second), strict=True)) if same(*domains) else different("domains")
        except Unsolved:
            return self._sets(*([each] if each.op != "cases" else each.args for each in (gold, given)))

    def _conditions(self, gold: Node, given: Node) -> Proof:
        """Answers with a condition; one that only the answer has limits the names of the reference."""
        if gold.op == given.op:
            return self._all(gold.args, given.args)
        if gold.op == "where":
            return unknown("the reference's condition is missing")
        body, condition = given.args
        limit = conventions.ascending(condition)
        if gold.op == "family" and limit.op == "relation" and (limit.value[0], limit.args[0]) in _FROM:
            which = _FROM[limit.value[0], limit.args[0]]
            return self.answers(gold, Node("family", (body, words(which)), limit.args[1].value))
        if not ex.names_in(condition) <= ex.names_in(gold):
            return unknown("a condition on other names")
        limits = condition.args if condition.op == "list" else (condition,)  # a, b > 0
        rising = [conventions.ascending(each) for each in limits if each.op == "relation"]
        above = all(each.value[0] in "<≤" and (rational(each.args[0]) or 0) >= 0 for each in rising)
        names = ex.names_in(condition) if above and not any(ex.names_in(each.args[0]) for each in rising) else ()
        return _Comparison(replace(self.rules, positive=(*self.rules.positive, *names))).answers(gold, body)

    def _all(self, golds: Sequence[Node], givens: Sequence[Node]) -> Proof:
        """Pairs of answers: different where one is, equal where all are."""
        proofs = [one.answers(*pair) for one, *pair in zip(self._each(golds), golds, givens, strict=True)]
        for outcome in (ProofOutcome.DIFFERENT, ProofOutcome.UNKNOWN):
            found = next((proof for proof in proofs if proof.outcome is outcome), None)
            if found is not None:
                return found
        return equal("; ".join(dict.fromkeys(proof.why for proof in proofs)))

    def _each(self, golds: Sequence[Node]) -> list[_Comparison]:
        """A comparison for each member, with its tolerance where there is one for each."""
        limits = self.rules.tolerance
        if len(golds) != len(limits) or len(limits) == 1:
            return [self] * len(golds)
        return [_Comparison(replace(self.rules, tolerance=(limit,))) for limit in limits]

    def _relations(self, gold: Node, given: Node) -> Proof | None:
        bare = _named_set(gold), _named_set(given)
        if bare[0] == gold or bare[1] == given:
            gold, given = bare
        equations = [each.op == "relation" and set(each.value) <= {"=", "≈"} for each in (gold, given)]
        sides = [_both(each) if one else each.args for each, one in zip((gold, given), equations, strict=True)]
        every = (*sides[0], *sides[1])
        alike = any(equations) and all(part.op == "relation" for part in every)
        if alike and len(every) > 2 and None in map(label, every):  # y = ±2x, and 2x - y = 0 or 2x + y = 0
            return self._sets(*sides)
        if all(equations):
            return self._equations(gold, given)
        gold, given = conventions.ascending(gold), conventions.ascending(given)
        if gold.op == given.op == "relation" and gold.value == given.value:
            proof = self._all(gold.args, given.args)
            if not proof.equal and gold.value in _SYMMETRIC:
                proof = self._all(gold.args, given.args[::-1])
            if proof.equal or not is_region(gold):
                return proof
        if is_region(gold) or is_region(given):
            return self._regions(gold, given)
        end = given.args[-2:] if equations[1] and given.value[-1] == "≈" and ex.holds(gold, "decimal") else ()
        if end and is_remark(*end) and _rounds(*end):  # 14.14 of √200 ≈ 14.14
            return self.answers(gold, end[1])
        wrong = self._unequal_chain(given) if equations[1] else None
        if wrong is not None:
            return wrong
        if gold.op == "residue" and equations[1] and not ex.names_in(given.args[-1]):
            return unknown("a residue class, and one number")  # n ≡ 1 (mod 3), and n = 1
        if given.op == "residue" and equations[0]:
            return unknown("one number, and a residue class")
        stated = [stated_value(each, bare=each is gold) if each.op == "relation" else each for each in (gold, given)]
        if stated[1] is None and equations[1]:  # (2^3)^n = 2^{3n}; what the question asks for
            asked = given.args[0] in map(_read, formulas_in(self.rules.question))
            if asked or self._all(given.args[1:], given.args[:-1]).equal:
                stated[1] = given.args[-1]
        return unknown("it states no value") if None in stated else self.answers(*stated)  # type: ignore[arg-type]

    def _regions(self, gold: Node, given: Node) -> Proof | None:
        if any(each.op not in ex.KINDS for each in (gold, given)):
            return different("a set of numbers, and a value")
        if gold.op == "tuple" and ex.holds(given, "relation") and not self.rules.allow_set_relation_comp:
            return unknown("a pair, and a relation")
        if gold.op == given.op == "interval" and gold.value == given.value:
            ends = self._all(gold.args, given.args)
            if ends.equal:
                return ends
        if {gold.op, given.op} == {"set", "interval"} and not any(map(is_region, gold.args + given.args)):
            return unknown("a set of numbers, and an interval")
        try:
            first, second = line(gold), line(given)
            if self.rules.strict and len({first.variable, second.variable} - {None}) > 1:
                return different(f"sets of {first.variable} and of {second.variable}")
            return decided(same(first, second), "set of numbers")
        except Unsolved:
            return unknown("sets of numbers that cannot be solved")

    def _equations(self, gold: Node, given: Node) -> Proof:
        wrong = self._unequal_chain(given)
        if wrong is not None:
            return wrong
        gold, given = map(quantities.without_remarks, (gold, given))
        labels = label(gold), label(given)
        if None not in labels:  # x = 5, y = x = 5
            given = given if labels[0] == labels[1] else conventions.renamed(gold, given)
            if conventions.one_label(labels[0], given.args[0]) or not self.rules.strict:  # type: ignore[arg-type]
                return self.answers(gold.args[-1], given.args[-1])
        if len(gold.args) > 2 or len(given.args) > 2:
            gold, given = (Node("relation", (each.args[0], each.args[-1]), ("=",)) for each in (gold, given))
        gold, given = conventions.squared(gold), conventions.squared(given)
        sides = gold.args + given.args
        simple = None not in labels and not ex.names_in(gold.args[1])
        if simple or any(side.op in (*_ATOMIC, *_SEVERAL, "measure") for side in sides):
            turned = self._all(gold.args, given.args[::-1])  # AB = CD, CD = AB
            return turned if turned.equal else self._all(gold.args, given.args)
        field = Field()
        one, other = field.difference(*gold.args), field.difference(*given.args)
        if conventions.factor_between(one, other) is not None:
            return equal(f"one equation, up to a factor: {field.node(one)} = 0")
        polynomial = all(atom.kind in ("name", "prime") for atom in field.atoms[3:])
        return different("not multiples of each other") if polynomial else unknown("not multiples of each other")

    def _unequal_chain(self, given: Node) -> Proof | None:
        """Why a chain offers several answers, or None.

        A chain that begins with a name states its last member, whatever stands before it. The values of any other must
        be equal, but for one computation and its result. After ≈ stands a rounded value; a decimal after an exact value
        is a remark, which need not be right.
        """
        places = [place for place, side in enumerate(given.args) if is_value(side) and side != label(given)]
        derived = label(given) is not None
        for place, following in pairwise(places):
            one, other = given.args[place], given.args[following]
            about = "≈" in given.value[place:following]
            rounded = is_remark(one, other) or (derived and _rounds(one, other)) if about else derived
            if not rounded and not self.answers(one, other).equal:
                return different("a chain of unequal constants")
        return None

    def _several(self, gold: Node, given: Node) -> Proof:
        ops = (gold.op, given.op)
        if set(ops) == {"set", "tuple"} and all(part.op not in _SEVERAL for part in (*gold.args, *given.args)):
            return different("a set is not a pair or an interval")
        parts = [each.args if each.op in _SEVERAL else (each,) for each in (gold, given)]
        if self.rules.ordered_lists and parts[1][-1].op == "…" != parts[0][-1].op:  # the sequence goes on
            parts[1] = parts[1][:-1]
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
        parts = [by_name(each) if other == "tuple" else each for each, other in zip(parts, ops[::-1], strict=True)]
        names = {name for each in parts for part in each if (name := label(part)) is not None}
        roots = {str(name.value).partition("_")[0] if name.op == "name" else name for name in names}  # x_1, x_2 are x
        named = len(roots) > 1 or (len(names) > 1 and any(label(part) is not None for part in parts[0]))
        sequence = named or any(part.op == "…" for part in parts[0])
        ordered = sequence or (self.rules.ordered_lists and all(part.op not in _PARTED for part in parts[0]))
        if ops != ("list", "list") or ordered:
            return self._all(*parts)
        return self._sets(*parts)

    def _sets(self, gold: Sequence[Node], given: Sequence[Node]) -> Proof:
        each, rows = self._each(gold), [[(row, column) for column in range(len(given))] for row in range(len(gold))]
        proof = cache(lambda at: each[at[0]]._members(gold[at[0]], given[at[1]]))
        lines = (sorted(line, key=lambda at: at[0] != at[1]) for line in (*rows, *zip(*rows, strict=True)))
        unmatched = [line for line in lines if not any(proof(at).equal for at in line)]
        if not unmatched:
            return equal(f"each of {len(gold)} is among the other's")
        if any(all(proof(at).outcome is ProofOutcome.DIFFERENT for at in line) for line in unmatched):
            return different("a member is missing")
        return unknown("a member is not proved to be among the other's")

    def _members(self, gold: Node, given: Node) -> Proof:
        if "set" in (gold.op, given.op) and gold.op != given.op:  # {1} is no member of {1, 2}
            return different("a set, and a member of one")
        return self.answers(gold, given)

    def _families(self, gold: Node, given: Node) -> Proof:
        gold, given = (as_family(each) if each.op == "residue" else each for each in (gold, given))
        ours, theirs = _apart(gold), _apart(given)
        family = next(each for each in (*ours, *theirs) if each.op == "family")
        if family not in ours and (family.args[1] not in _EVERY or is_region(family.args[0])):
            return unknown("only for some integers")
        others = ex.names_in(gold) ^ ex.names_in(given)
        ours, theirs = ([_as_family(each, family, others) for each in side] for side in (ours, theirs))
        if len({each.args[1] for each in (*ours, *theirs)}) > 1:
            ours, theirs = ([each for part in side for each in _from_one(part)] for side in (ours, theirs))
        whole = {each.args[1:2] for each in (*ours, *theirs)} == {(words("ℤ"),)}
        same = same_members(ours, theirs) if whole else None
        if whole and not same and len({any(ex.holds(each, "degree") for each in side) for side in (ours, theirs)}) > 1:
            same = same_members(*(list(map(conventions.without_degrees, side)) for side in (ours, theirs)))
        if same is not None:
            return decided(same, "numbers")
        if max(len(ours), len(theirs)) > 1:
            return self._sets(ours, theirs)
        if ours[0].args[1] != theirs[0].args[1]:
            return unknown("another range of the integer")
        body = ex.replaced(theirs[0].args[0], ex.name(theirs[0].value), ex.name(ours[0].value))
        proof = self.answers(ours[0].args[0], body)
        return proof if proof.equal else unknown(f"not proved the same for each integer {ours[0].value}")

    def _residues(self, gold: Node, given: Node) -> Proof:
        """Residue classes as sets; a bare integer stands for its class, but as a reference for itself."""
        of = [each.args[2:] for each in (gold, given) if each.op == "residue"]
        if of[0] != of[-1] and not (of[0] and of[-1] and self._all(*of).equal) or (len(of) == 1 and of[0]):
            return unknown("residues of different expressions")
        first, second = (each._replace(args=each.args[:2]) if each.op == "residue" else each for each in (gold, given))
        if first.op != second.op:
            modulus = (first if first.op == "residue" else second).args[1]
            bare, size = second if first.op == "residue" else first, rational(modulus)
            parts = bare.args if bare.op in ("list", "set") else (bare,)
            integers = [each for each in map(rational, parts) if each is not None and each.denominator == 1]
            if size is None or len(integers) < len(parts):
                return self._families(first, second) if ex.names_in(bare) else unknown("a residue, and no integer")
            if bare is first and not all(0 <= each < size for each in integers):
                return different("a number, and a residue class without it")
            classes = Node("residue", (Node("list", parts), modulus))
            first, second = (classes if each is bare else each for each in (first, second))
        return self._families(first, second)


def _named_set(answer: Node) -> Node:
    """The set of numbers that an equation gives a name: `S = ]1, 2[`; any other answer as it is."""
    named = answer.op == "relation" and answer.value == ("=",) and label(answer) is not None
    return answer.args[1] if named and (answer.args[1].op == "set" or is_region(answer.args[1])) else answer


def _rounds(exact: Node, decimal: Node) -> bool:
    """Whether a value rounds to a decimal, which may be in degrees."""
    exact, decimal = parted(exact)[0], parted(decimal)[0]
    if decimal.op == "degree" and not ex.holds(exact, "degree"):
        exact, decimal = ex.over(exact, ex.call("degree", ex.ONE)), decimal.args[0]
    at, digits = rational(decimal), stated_digits(decimal)
    return bool(at and digits and rounds_to(exact, at, digits))


def _both(part: Node) -> Sequence[Node]:
    """Both values of a member with ±."""
    if part.op == "relation" and label(part) is not None:
        return ex.variants(part) if ex.holds(part, "±", "∓") else (part,)
    plain = _plain(part)
    return plain.args if plain.op == "set" and ex.holds(part, "±", "∓") else (part,)


def _apart(answer: Node) -> Sequence[Node]:
    """The families that one with several values for each integer is, or that a set has."""
    body = answer.args[0] if answer.op == "family" else answer
    several = body.op == "set" or (body.op == "list" and len(set(map(label, body.args))) == 1)  # not x = 2k, y = 3k
    found = [both for part in (body.args if several else (body,)) for both in _both(part)]
    return [answer._replace(args=(each, *answer.args[1:])) for each in found] if answer.op == "family" else found


def _as_family(body: Node, family: Node, others: frozenset[str]) -> Node:
    """An answer as a family like another one, of the only name in it that the other side has not."""
    own = [name for name in others if any(name in ex.names_in(part) for part in members(body)[1])]
    index = own[0] if len(own) == 1 else family.value
    return body if body.op == "family" else Node("family", (body, family.args[1]), index)


def _from_one(family: Node) -> Sequence[Node]:
    """The member for 0 and the family from 1 on, of one over the nonnegative integers."""
    if family.args[1] != words("nonnegative"):
        return (family,)
    body = family.args[0]
    return ex.replaced(body, ex.name(family.value), ex.ZERO), family._replace(args=(body, words("positive")))


def _plain(answer: Node) -> Node:
    """Without brackets around one answer; both values of a ±; what words say of numbers as such."""
    single = answer.op in ("tuple", "list", "set") and len(answer.args) == 1
    if single and answer.args[0].op != "words" and (answer.op, answer.args[0].op) != ("set", "set"):
        return _plain(answer.args[0])
    if answer.op == "words":
        return _SAID.get(answer.value, answer)
    if answer.op == "residue":  # ±2 (mod 5)
        return answer._replace(args=(_plain(answer.args[0]), *answer.args[1:]))
    if answer.op in ("list", "set"):  # -2, 1 ± √5
        return answer._replace(args=tuple(part for each in answer.args for part in _both(each)))
    if answer.args and answer.op not in ("ratio", "relation", "family", "cases") and ex.holds(answer, "±", "∓"):
        return _plain(Node("set", tuple(matrix_of(each) or each for each in ex.variants(answer))))
    return answer
