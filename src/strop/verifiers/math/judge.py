"""How an answer is compared with a reference: as texts and plain numbers, else parsed by math-verify and compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from strop.base.types import Status, Verdict
from strop.verifiers.base import shortened
from strop.verifiers.math.bound_checks import broken_bound, broken_bound_in_prose
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

_BOTH = ("latex", "expr")
_DECIMAL_COMMA = re.compile(r"[+-]?\d{1,20},\d{1,20}")
_LETTER = re.compile(r"[A-J]")
_WORD = re.compile(r"[A-Za-z]{4,}(?: [A-Za-z]+)*")  # which math-verify takes for a product, in which order is nothing
_CLOCK = re.compile(r"\d{1,2}:\d\d")  # a time of day, which math-verify takes for a quotient


@dataclass(frozen=True)
class MathRules:
    """The fields of `MathVerifier` as the comparison needs them; see there."""

    extract: Literal["boxed", "answer_tag", "any"]
    box_required: bool
    gold_form: GoldForm
    match_types: tuple[str, ...]
    comparison: Rules
    bounds: Bounds
    remember: bool


def judge_answer(rules: MathRules, gold: str, text: str) -> Verdict:
    """The verdict on a response, whose answer is compared with the reference `gold`; may take any time and memory."""
    reference = read_reference(gold, rules.gold_form)
    found = find_answer(text, rules.extract, rules.box_required, reference.is_letter)
    if isinstance(found, str):
        return Verdict(0.0, Status.UNPARSED, found)
    verdict = _without_parser(rules, reference, found)
    if verdict is not None:
        return verdict
    return _remembered(rules, gold, found) if rules.remember else _by_parser(rules, gold, found)


def warm(rules: MathRules) -> None:
    """Import sympy and math-verify and let them build their tables, before workers are forked."""
    for gold, given in ((r"\frac{1}{2}+x^{2}", "x^2+0.5"), ("(1, 2]", r"\left(1, 2\right]"), ("3", r"\sqrt{9}")):
        try:
            judge_answer(rules, gold, rf"so it is $\boxed{{{given}}}$.")
        except Exception:  # what is wrong with the libraries shows in every verdict; here it must not end the pool
            return


def refuse_reference(rules: MathRules, gold: str, parse: Callable[[], str | None]) -> str | None:
    """Why a reference can never be compared with, or None; `parse` is asked where only the parser can tell."""
    reference = read_reference(gold, rules.gold_form)
    if reference.number is not None or reference.based is not None or reference.key.isalpha():
        return None
    if not reference.key:
        return "the reference is empty"
    reason = broken_bound(reference.text, rules.bounds)
    return parse() if reason is None else f"the reference {shortened(gold)!r} is {reason}"


def unreadable(rules: MathRules, gold: str) -> str | None:
    """Why math-verify cannot read a reference, or None; may take any time and memory."""
    try:
        parsed = parse_reference(gold, rules.gold_form, rules.match_types)
    except Exception as error:  # antlr and sympy raise what they like
        return f"the reference {shortened(gold)!r} cannot be parsed: {_named(error)}"
    if any(is_undefined(value) for value in parsed.values):
        return f"the reference {shortened(gold)!r} has no value"
    return None if parsed.values else f"the reference {shortened(gold)!r} cannot be parsed as mathematics"


def _without_parser(rules: MathRules, reference: Reference, found: Found) -> Verdict | None:
    """What text and plain numbers decide, and what is too large to be looked at."""
    if found.latex is not None and len(found.latex) > max(rules.bounds.characters, len(reference.text)):
        return Verdict(0.0, Status.UNPARSED, broken_bound(found.latex, rules.bounds) or "")
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
    if reference.number is not None and number is not None and rules.match_types == _BOTH:
        if same_number(reference.number, number, rules.comparison.precision):
            return Verdict(1.0, Status.CORRECT, shortened(key))
        return _wrong(key, reference)
    based = based_number(key)
    if reference.based is not None or (based is not None and reference.number is not None):
        if _same_based(reference, key):
            return Verdict(1.0, Status.CORRECT, shortened(key))
        return _wrong(key, reference)
    if _CLOCK.fullmatch(reference.key) and _CLOCK.fullmatch(key):
        return _wrong(key, reference)
    if set_against_interval(reference.text, found.latex):
        return _wrong(key, reference, "a set is not a pair or an interval")
    return None


def _by_parser(rules: MathRules, gold: str, found: Found) -> Verdict:
    reference = read_reference(gold, rules.gold_form)
    text = found.latex if found.latex is not None else found.prose
    reason = broken_bound(text, rules.bounds) if found.latex is not None else broken_bound_in_prose(text, rules.bounds)
    if reason is not None:
        return Verdict(0.0, Status.UNPARSED, reason)
    sequences = members(reference.text), members(text)
    if sequences != (None, None) and found.latex is not None:
        return _by_members(rules, reference, found.latex, *sequences)
    residues = residue(reference.text), residue(text)
    if residues != (None, None) and found.latex is not None:
        return _by_residue(rules, reference, found.latex, *residues)
    try:
        golds = parse_reference(gold, rules.gold_form, rules.match_types)
    except Exception as error:  # antlr and sympy raise what they like; the policy did not write it
        return Verdict(0.0, Status.ERROR, f"the reference {shortened(gold)!r} cannot be parsed: {_named(error)}")
    if any(is_undefined(value) for value in golds.values):
        return Verdict(0.0, Status.ERROR, f"the reference {shortened(gold)!r} has no value")
    if not golds.values and reference.is_mathematics:  # it was read when the data were loaded: memory is short
        return Verdict(0.0, Status.ERROR, f"the reference {shortened(gold)!r} cannot be read")
    given = _parse(rules, found, reference.is_constant)
    if isinstance(given, Verdict):
        return given
    if not given.values:
        if not golds.values or not reference.key.isascii():
            return _wrong(given.text, reference)
        return Verdict(0.0, Status.UNPARSED, f"cannot be read: {shortened(text)}")
    refused = _refused_by_shape(reference, golds, given, found)
    return refused or _compared(rules.comparison, reference, golds, given)


@lru_cache(maxsize=16384)
def _remembered(rules: MathRules, gold: str, found: Found) -> Verdict:
    """The verdict by parser, which depends on these three alone."""
    return _by_parser(rules, gold, found)


def _parse(rules: MathRules, found: Found, lone_letters: bool) -> Parsed | Verdict:
    try:
        return parse_answer(found, rules.match_types, lone_letters)
    except MemoryError:
        raise  # the worker ends; the pool says so
    except Exception as error:  # antlr and sympy raise what they like at what a policy writes
        return Verdict(0.0, Status.UNPARSED, f"cannot be parsed: {_named(error)}")


def _by_members(
    rules: MathRules, reference: Reference, text: str, golds: list[str] | None, given: list[str] | None
) -> Verdict:
    """Sequences with an ellipsis are equal member by member; math-verify leaves the ellipsis out."""
    if golds is None or given is None or len(golds) != len(given):
        return _wrong(text, reference)
    for first, second in zip(golds, given, strict=True):
        if first == second:
            continue
        if r"\ldots" in (first, second):
            return _wrong(text, reference)
        verdict = _judge_part(rules, first, second)
        if verdict.status is not Status.CORRECT:
            return verdict
    return Verdict(1.0, Status.CORRECT, shortened(text))


def _by_residue(
    rules: MathRules, reference: Reference, text: str, gold: Residue | None, given: Residue | None
) -> Verdict:
    """Residues of the same modulus, or of one that only one side names, are compared as numbers."""
    if gold is not None and given is not None and gold.modulus != given.modulus:
        return _wrong(text, reference, "another modulus")
    return _judge_part(rules, gold.text if gold else reference.text, given.text if given else text)


def _judge_part(rules: MathRules, gold: str, given: str) -> Verdict:
    """A part of the answer against its part of the reference."""
    return judge_answer(replace(rules, extract="any", gold_form="bare"), gold, rf"\boxed{{{given}}}")


def _refused_by_shape(reference: Reference, golds: Parsed, given: Parsed, found: Found) -> Verdict | None:
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


def _compared(rules: Rules, reference: Reference, golds: Parsed, given: Parsed) -> Verdict:
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


def _letter(key: str, latex: str) -> str | None:
    """The choice letter that an answer is, or is labelled with."""
    return key if _LETTER.fullmatch(key) else choice_of(latex)


def _same_based(reference: Reference, key: str) -> bool:
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


def _wrong(given: str, reference: Reference, why: str = "") -> Verdict:
    reason = f"{shortened(given)}, not {shortened(reference.text)}"
    return Verdict(0.0, Status.WRONG, f"{reason}: {why}" if why else reason)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {shortened(str(error))}" if str(error) else type(error).__name__
