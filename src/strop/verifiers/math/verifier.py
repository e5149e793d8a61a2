"""`MathVerifier`: is the response's answer the same mathematics as the reference?"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import NonNegativeInt

from strop.base.types import UNDECIDED, Problem, Status, Verdict
from strop.data.templates import Instruction
from strop.verifiers.base import Verifier, reference_text, response, shortened
from strop.verifiers.extract import instruction_for
from strop.verifiers.isolation import Isolation, in_worker
from strop.verifiers.math.bounds import Bounds

if TYPE_CHECKING:
    from strop.verifiers.math.grammar import Reading
    from strop.verifiers.math.proof import Proof

MatchType = Literal["latex", "expr"]
GoldForm = Literal["bare", "raw"]
KEPT = 8192


class MathVerifier(Verifier):
    r"""Compares mathematics: `\frac{1}{2}` is `0.5`, `x > 2` is `(2, \infty)`, `\{1, 2\}` is `\{2, 1\}`.

    The answer is found, both sides are read by one grammar of kinds (a quantity, a word, a time, an interval …), and
    each kind has its rule. Equal means proved equal; what is proved neither equal nor different is wrong, with a detail
    that begins with `unknown:`. It runs in a worker process that can be killed, also when called directly.

    Fields:
        extract: where the answer stands: `boxed` (the last balanced box after the thinking), `answer_tag`, or `any`
            (the last of boxes, a tag, `####`, "Answer:" and the like; else a sentence that asserts it).
        box_required: an answer tag without a box in it is unparsed (Open-Reasoner-Zero's code).
        gold_form: `bare`: the reference is the answer; `raw`: it is a text with delimiters or boxes of its own.
        match_types: what is looked for where nothing marks the answer: `latex` in delimiters, plain `expr`essions.
        precision: from how many digits on a decimal stands for a number that it only rounds; before the point one more.
        strict: names count, else they match by their order (math-verify's `strict`).
        allow_set_relation_comp: a relation also matches a reference that may be a pair (`0 < x < 1` for `(0, 1)`).
        ordered_lists: a bare list of values (`1, 2`) has an order; false: it is a set of solutions.
        bounds: what is too large to be read.
        remember: a worker keeps its latest verdicts: the samples of a group give the same few answers again and again.
        explain: the detail says the kinds, the normal forms and the proof.
        isolation: the processes in which it runs.
    """

    extract: Literal["boxed", "answer_tag", "any"] = "boxed"
    box_required: bool = False
    gold_form: GoldForm = "bare"
    match_types: tuple[MatchType, ...] = ("latex", "expr")
    precision: NonNegativeInt = 6
    strict: bool = True
    allow_set_relation_comp: bool = False
    ordered_lists: bool = True
    bounds: Bounds = Bounds()
    remember: bool = True
    explain: bool = False
    isolation: Isolation = Isolation()

    def isolated(self) -> Isolation:
        """It runs in processes: whatever bounds its work, a worker that hangs can be killed."""
        return self.isolation

    def warm(self) -> None:
        """Import what every verdict needs, and build its tables, before workers are forked."""
        for gold, given in (
            (r"\frac{1}{2}+x^{2}", "x^2+0.5"),
            ("(1, 2]", r"\left(1, 2\right]"),
            (r"3\text{ cm}", r"\sqrt{9}"),
        ):
            self._judge(gold, rf"so it is $\boxed{{{given}}}$.")

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong (also where neither is proved), unparsed (no answer, unreadable, too large) or error."""
        reference = reference_text(problem)
        if reference is None:
            return Verdict(0.0, Status.ERROR, f"the reference is {type(problem.reference).__name__}, not an answer")
        if not in_worker():
            from strop.verifiers.shared_pool import judge_in_worker

            return judge_in_worker(self, problem, text, truncated)
        return self._judge(reference, text)

    def refuses(self, problem: Problem) -> str | None:
        """A reference that is neither text nor number, is beyond the bounds, cannot be read, or has no value."""
        gold = reference_text(problem)
        if gold is None:
            return f"MathVerifier compares answers, and the reference is {type(problem.reference).__name__}"
        if not gold.strip():
            return "the reference is empty"
        if gold.strip().lstrip("-").isdigit() and len(gold) < self.bounds.digits:
            return None
        reading = _reference(gold, self.gold_form, self.bounds)
        return reading if isinstance(reading, str) else None

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the answer where `extract` looks for it."""
        return instruction_for(self.extract)

    def answer(self, problem: Problem, text: str) -> str | None:
        """A text that is the same for equal simple numbers, and for answers that are written alike."""
        found = self._found(response(problem, text))
        if isinstance(found, str):
            return None
        return _key(found)

    # ------------------------------------------------------------------ in a worker

    def _judge(self, gold: str, text: str) -> Verdict:
        reference = _reference(gold, self.gold_form, self.bounds)
        if isinstance(reference, str):
            return Verdict(0.0, Status.ERROR, reference)
        found = self._found(text)
        if isinstance(found, str):
            return Verdict(0.0, Status.UNPARSED, found)
        reason = self.bounds.refuse_answer(found.answer)
        if reason is not None and found.answer != reference.answer:
            return Verdict(0.0, Status.UNPARSED, reason)
        proof = _remembered(self, reference, found) if self.remember else self._proof(reference, found)
        return self._verdict(proof, reference, found)

    def _found(self, text: str) -> Reading | str:
        from strop.verifiers.math.expressions import TooMuch
        from strop.verifiers.math.prose import Finder

        finder = Finder(self.bounds, "latex" in self.match_types, "expr" in self.match_types)
        try:
            return finder.find(text, self.extract, self.box_required)
        except TooMuch as limit:
            return f"beyond the bounds: {limit}"
        except RecursionError:
            return "beyond the bounds: too deeply nested"

    def _proof(self, reference: Reading, found: Reading) -> Proof:
        from strop.verifiers.math.compare import Rules, judge

        rules = Rules(self.precision, self.strict, self.allow_set_relation_comp, self.ordered_lists)
        return judge(reference, found, rules)

    def _verdict(self, proof: Proof, reference: Reading, found: Reading) -> Verdict:
        given, gold, why = shortened(found.text), shortened(reference.text), shortened(proof.why, 200)
        if self.explain:
            trees = [f"{each.kind} {shortened(str(each.answer), 200)}" for each in (reference, found)]
            detail = f"reference: {trees[0]}; answer: {trees[1]}; {proof.outcome}: {why}"
        else:
            detail = given if proof.equal else f"{given}, not {gold}: {why}"
        if proof.equal:
            return Verdict(1.0, Status.CORRECT, detail)
        return Verdict(0.0, Status.WRONG, detail if proof.outcome == "different" else f"{UNDECIDED}{detail}")


@lru_cache(maxsize=KEPT)
def _reference(text: str, form: GoldForm, bounds: Bounds) -> Reading | str:
    """A reference as it was read, or why it is none; one that is `raw`, or marks its answer, is found in its text."""
    from strop.verifiers.math.compare import without_value
    from strop.verifiers.math.expressions import TooMuch
    from strop.verifiers.math.prose import Finder

    shown = shortened(text)
    try:
        finder = Finder(bounds)
        marked = r"\boxed" in text or "####" in text
        reading = finder.read(text) if form == "bare" and not marked else finder.in_prose(text)
        if isinstance(reading, str):
            verb = "is" if reading.startswith("beyond") else "cannot be parsed:"
            return f"the reference {shown!r} {verb} {reading}"
        reason = bounds.refuse_answer(reading.answer)
        if reason is not None:
            return f"the reference {shown!r} is {reason}"
        return f"the reference {shown!r} has no value" if without_value(reading.answer) else reading
    except TooMuch as error:
        return f"the reference {shown!r} is beyond the bounds: {error}"


@lru_cache(maxsize=2 * KEPT)
def _remembered(verifier: MathVerifier, reference: Reading, found: Reading) -> Proof:
    """The proof, which depends on these three alone."""
    return verifier._proof(reference, found)


def _key(found: Reading) -> str:
    """A text for equal answers: the value of an exact number, else the tokens."""
    from strop.verifiers.math.compare import exact_value

    exact: Any = exact_value(found.answer)
    return str(exact) if exact is not None else found.text
