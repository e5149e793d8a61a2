"""`MathVerifier`: is the response's answer the same mathematics as the reference?"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

from pydantic import NonNegativeInt

from strop.base.types import Problem, Status, Verdict
from strop.data.templates import Instruction
from strop.verifiers.base import Verifier, response, shortened
from strop.verifiers.extract import instruction_for
from strop.verifiers.isolation import Isolation, in_worker
from strop.verifiers.math.bounds import Bounds
from strop.verifiers.math.candidates import Found, alternatives, find_answer
from strop.verifiers.math.compare import Rules, same
from strop.verifiers.math.normalise import choice_of
from strop.verifiers.math.numbers import based_number, plain_number, same_number
from strop.verifiers.math.parsing import Parsed, parse_answer
from strop.verifiers.math.reference import (
    GoldForm,
    Reference,
    answer_key,
    members,
    parse_reference,
    read_reference,
)
from strop.verifiers.math.residue import Residue, residue
from strop.verifiers.math.shape import is_constant, is_undefined, set_against_interval, unequal_chain, unevaluated

MatchType = Literal["latex", "expr"]


class MathVerifier(Verifier):
    r"""Compares mathematics: `\frac{1}{2}` is `0.5`, `x > 2` is `(2, \infty)`, `{1, 2}` is `2, 1`.

    In order: the answer is found, both sides are normalised and matched as text, then as plain numbers; only then is
    the answer bounded, parsed by math-verify, refused if its shape is that of a hedge, and compared. The reference goes
    first and is parsed once. All of it runs in a worker process that can be killed, also when called directly.

    Fields:
        extract: where the answer stands: `boxed` (the last balanced box after the thinking), `answer_tag`, or `any`
            (boxes, then a tag, then prose and bare formulas: for benchmarks).
        box_required: an answer tag without a box in it is unparsed (Open-Reasoner-Zero's code).
        gold_form: `bare`: the reference is the answer, it is wrapped in a box; `raw`: it is a text with delimiters or
            boxes of its own.
        match_types: what math-verify looks for in prose: `latex` in delimiters, plain `expr`essions.
        precision: decimal places to which numbers with a decimal point are compared.
        strict: names count, and sets are not tuples; else names match by position (math-verify's `strict`).
        allow_set_relation_comp: a relation also matches a reference that is a set (`0 < x < 1` for `(0, 1)`).
        bounds: what is too large to be parsed.
        remember: a worker keeps its latest verdicts: the samples of a group give the same few answers again and again.
        isolation: the processes in which it runs.
    """

    extract: Literal["boxed", "answer_tag", "any"] = "boxed"
    box_required: bool = False
    gold_form: GoldForm = "bare"
    match_types: tuple[MatchType, ...] = ("latex", "expr")
    precision: NonNegativeInt = 6
    strict: bool = True
    allow_set_relation_comp: bool = False
    bounds: Bounds = Bounds()
    remember: bool = True
    isolation: Isolation = Isolation()

    def isolated(self) -> Isolation:
        """It runs in processes: mathematics can always ask for more time than there is."""
        return self.isolation

    def warm(self) -> None:
        """Import sympy and math-verify and let them build their tables, before workers are forked."""
        for gold, given in ((r"\frac{1}{2}+x^{2}", "x^2+0.5"), ("(1, 2]", r"\left(1, 2\right]"), ("3", r"\sqrt{9}")):
            try:
                self._judge(gold, rf"so it is $\boxed{{{given}}}$.")
            except Exception:  # what is wrong with the libraries shows in every verdict; here it must not end the pool
                return

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong, unparsed (no answer, unreadable, beyond the bounds), timeout or error."""
        reference = reference_text(problem)
        if reference is None:
            return Verdict(0.0, Status.ERROR, f"the reference is {type(problem.reference).__name__}, not an answer")
        if not in_worker():
            from strop.verifiers.shared import judge_in_worker

            return judge_in_worker(self, problem, text, truncated)
        return self._judge(reference, text)

    def refuses(self, problem: Problem) -> str | None:
        """A reference that cannot be read: not text or a number, beyond the bounds, or not parsed by math-verify."""
        gold = reference_text(problem)
        if gold is None:
            return f"MathVerifier compares answers, and the reference is {type(problem.reference).__name__}"
        reference = read_reference(gold, self.gold_form)
        if reference.number is not None or reference.based is not None or reference.key.isalpha():
            return None
        if not reference.key:
            return "the reference is empty"
        reason = self.bounds.refuse(reference.text)
        if reason is not None:
            return f"the reference {shortened(gold)!r} is {reason}"
        if not in_worker():
            from strop.verifiers.shared import refuses_in_worker

            return refuses_in_worker(self, problem)
        return self._unreadable(gold)

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the answer where `extract` looks for it."""
        return instruction_for(self.extract)

    def answer(self, problem: Problem, text: str) -> str | None:
        """The canonical form of the answer that a completion gives."""
        found = find_answer(response(problem, text), self.extract, self.box_required, letter=False)
        return None if isinstance(found, str) else answer_key(found)

    # ------------------------------------------------------------------ in a worker

    def _judge(self, gold: str, text: str) -> Verdict:
        reference = read_reference(gold, self.gold_form)
        found = find_answer(text, self.extract, self.box_required, reference.is_letter)
        if isinstance(found, str):
            return Verdict(0.0, Status.UNPARSED, found)
        verdict = self._without_parser(reference, found)
        if verdict is not None:
            return verdict
        return _remembered(self, gold, found) if self.remember else self._by_parser(gold, found)

    def _without_parser(self, reference: Reference, found: Found) -> Verdict | None:
        """What text and plain numbers decide, and what is too large to be looked at."""
        if found.latex is not None and len(found.latex) > max(self.bounds.characters, len(reference.text)):
            return Verdict(0.0, Status.UNPARSED, self.bounds.refuse(found.latex) or "")
        key = answer_key(found, reference.is_constant)
        if key and key == reference.key and (found.latex is not None or reference.found.latex is not None):
            return Verdict(1.0, Status.CORRECT, shortened(key))
        if found.latex is None:
            return None
        if not key:
            return Verdict(0.0, Status.UNPARSED, "an empty answer")
        letters = _letter(reference.key, reference.text), _letter(key, found.latex)
        if None not in letters and (reference.is_letter or _LETTER.fullmatch(key)):
            if letters[0] == letters[1]:
                return Verdict(1.0, Status.CORRECT, shortened(key))
            return _wrong(key, reference)
        if _WORD.fullmatch(reference.key) and _WORD.fullmatch(key):
            return _wrong(key, reference)
        number = plain_number(key)
        if reference.number is not None and reference.number.inexact and _DECIMAL_COMMA.fullmatch(key):
            number = plain_number(key.replace(",", "."))  # a list of two could not be right here
        if reference.number is not None and number is not None and self.match_types == _BOTH:
            if same_number(reference.number, number, self.precision):
                return Verdict(1.0, Status.CORRECT, shortened(key))
            return _wrong(key, reference)
        based = based_number(key)
        if reference.based is not None or (based is not None and reference.number is not None):
            if same_based(reference, key):
                return Verdict(1.0, Status.CORRECT, shortened(key))
            return _wrong(key, reference)
        if _CLOCK.fullmatch(reference.key) and _CLOCK.fullmatch(key):
            return _wrong(key, reference)
        if set_against_interval(reference.text, found.latex):
            return _wrong(key, reference, "a set is not a pair or an interval")
        return None

    def _by_parser(self, gold: str, found: Found) -> Verdict:
        reference = read_reference(gold, self.gold_form)
        text = found.latex if found.latex is not None else found.prose
        reason = self.bounds.refuse(text) if found.latex is not None else self.bounds.refuse_prose(text)
        if reason is not None:
            return Verdict(0.0, Status.UNPARSED, reason)
        sequences = members(reference.text), members(text)
        if sequences != (None, None) and found.latex is not None:
            return self._by_members(reference, found.latex, *sequences)
        residues = residue(reference.text), residue(text)
        if residues != (None, None) and found.latex is not None:
            return self._by_residue(reference, found.latex, *residues)
        try:
            golds = parse_reference(gold, self.gold_form, self.match_types)
        except Exception as error:  # antlr and sympy raise what they like; the reference is no doing of the policy
            return Verdict(0.0, Status.ERROR, f"the reference {shortened(gold)!r} cannot be parsed: {_named(error)}")
        if any(is_undefined(value) for value in golds.values):
            return Verdict(0.0, Status.ERROR, f"the reference {shortened(gold)!r} has no value")
        if not golds.values and reference.is_mathematics:  # the data were loaded with it: what is lacking is memory
            return Verdict(0.0, Status.ERROR, f"the reference {shortened(gold)!r} cannot be read")
        given = self._parse(found, reference.is_constant)
        if isinstance(given, Verdict):
            return given
        if not given.values:
            if not golds.values or not reference.key.isascii():
                return _wrong(given.text, reference)
            return Verdict(0.0, Status.UNPARSED, f"cannot be read: {shortened(text)}")
        refused = self._refused_by_shape(reference, golds, given, found)
        return refused or self._compared(reference, golds, given)

    def _parse(self, found: Found, lone_letters: bool) -> Parsed | Verdict:
        try:
            return parse_answer(found, self.match_types, lone_letters)
        except MemoryError:
            raise  # the worker ends; the pool says so
        except Exception as error:  # antlr and sympy raise what they like at what a policy writes
            return Verdict(0.0, Status.UNPARSED, f"cannot be parsed: {_named(error)}")

    def _by_members(
        self, reference: Reference, text: str, golds: list[str] | None, given: list[str] | None
    ) -> Verdict:
        """Sequences with an ellipsis are equal member by member; math-verify leaves the ellipsis out."""
        if golds is None or given is None or len(golds) != len(given):
            return _wrong(text, reference)
        for first, second in zip(golds, given, strict=True):
            if first == second:
                continue
            if r"\ldots" in (first, second):
                return _wrong(text, reference)
            verdict = self._judge_part(first, second)
            if verdict.status is not Status.CORRECT:
                return verdict
        return Verdict(1.0, Status.CORRECT, shortened(text))

    def _by_residue(self, reference: Reference, text: str, gold: Residue | None, given: Residue | None) -> Verdict:
        """Residues of the same modulus, or of one that only one side names, are compared as numbers."""
        if gold is not None and given is not None and gold.modulus != given.modulus:
            return _wrong(text, reference, "another modulus")
        return self._judge_part(gold.text if gold else reference.text, given.text if given else text)

    def _judge_part(self, gold: str, given: str) -> Verdict:
        """A part of the answer against its part of the reference."""
        plain = self.model_copy(update={"extract": "any", "gold_form": "bare"})
        return plain._judge(gold, rf"\boxed{{{given}}}")

    def _refused_by_shape(self, reference: Reference, golds: Parsed, given: Parsed, found: Found) -> Verdict | None:
        value = given.values[0]
        if unequal_chain(value):
            return _wrong(given.text, reference, "a chain of unequal constants")
        left = unevaluated(value)
        if left is not None and golds.values and is_constant(golds.values[0]):
            return _wrong(given.text, reference, f"an unevaluated {left}")
        if found.latex is None and golds.values and is_constant(golds.values[0]):
            offered = alternatives(found.prose)
            if offered is not None:
                return _wrong(offered, reference, "several answers")
        return None

    def _compared(self, reference: Reference, golds: Parsed, given: Parsed) -> Verdict:
        rules = Rules(self.precision, self.strict, self.allow_set_relation_comp)
        failure: Exception | None = None
        for gold in golds.values:
            for value in given.values:
                try:
                    if same(gold, value, rules):
                        return Verdict(1.0, Status.CORRECT, shortened(given.text))
                except MemoryError:
                    raise
                except Exception as error:  # sympy raises what it likes; another pair may still be equal
                    failure = error
        if failure is not None:
            return Verdict(0.0, Status.ERROR, f"the comparison failed: {_named(failure)}")
        return _wrong(given.text, reference)

    def _unreadable(self, gold: str) -> str | None:
        try:
            parsed = parse_reference(gold, self.gold_form, self.match_types)
        except Exception as error:  # antlr and sympy raise what they like
            return f"the reference {shortened(gold)!r} cannot be parsed: {_named(error)}"
        if any(is_undefined(value) for value in parsed.values):
            return f"the reference {shortened(gold)!r} has no value"
        return None if parsed.values else f"the reference {shortened(gold)!r} cannot be parsed as mathematics"


@lru_cache(maxsize=16384)
def _remembered(verifier: MathVerifier, gold: str, found: Found) -> Verdict:
    """The verdict by parser, which depends on these three alone."""
    return verifier._by_parser(gold, found)


_BOTH = ("latex", "expr")
_DECIMAL_COMMA = re.compile(r"[+-]?\d{1,20},\d{1,20}")
_LETTER = re.compile(r"[A-J]")
_WORD = re.compile(r"[A-Za-z]{4,}(?: [A-Za-z]+)*")  # which math-verify takes for a product, in which order is nothing
_CLOCK = re.compile(r"\d{1,2}:\d\d")  # a time of day, which math-verify takes for a quotient


def _letter(key: str, latex: str) -> str | None:
    """The choice letter that an answer is, or is labelled with."""
    return key if _LETTER.fullmatch(key) else choice_of(latex)


def same_based(reference: Reference, key: str) -> bool:
    """Whether digits in a base are the reference's: the same value written in another base is another answer.

    Where one side names no base, base ten is meant if the other's is ten; else the question has fixed the base, and the
    digits decide.
    """
    based = based_number(key)
    if reference.based is None:
        return based is not None and based.base == 10 and based.digits == reference.key.lstrip("0")
    if based is not None:
        return based == reference.based
    return (key.upper().lstrip("0") or "0") == reference.based.digits


def reference_text(problem: Problem) -> str | None:
    """The reference as text, numbers written out in full; None where it is neither."""
    reference: Any = problem.reference
    if isinstance(reference, bool):
        return None
    if isinstance(reference, float):
        return format(Decimal(repr(reference)), "f")
    return str(reference) if isinstance(reference, str | int) else None


def _wrong(given: str, reference: Reference, why: str = "") -> Verdict:
    reason = f"{shortened(given)}, not {shortened(reference.text)}"
    return Verdict(0.0, Status.WRONG, f"{reason}: {why}" if why else reason)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {shortened(str(error))}" if str(error) else type(error).__name__
