"""`MathVerifier`: is the response's answer the same mathematics as the reference?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import NonNegativeInt

from strop.base.types import Problem, Status, Verdict
from strop.data.templates import Instruction
from strop.verifiers.base import Verifier, reference_text, response
from strop.verifiers.extract import instruction_for
from strop.verifiers.isolation import Isolation, in_worker
from strop.verifiers.math.bounds import Bounds

if TYPE_CHECKING:
    from strop.verifiers.math.judge import MathRules


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
        remember: a worker keeps its latest verdicts, for the samples of a group often give the same answers.
        isolation: the processes in which it runs.
    """

    extract: Literal["boxed", "answer_tag", "any"] = "boxed"
    box_required: bool = False
    gold_form: Literal["bare", "raw"] = "bare"
    match_types: tuple[Literal["latex", "expr"], ...] = ("latex", "expr")
    precision: NonNegativeInt = 6
    strict: bool = True
    allow_set_relation_comp: bool = False
    bounds: Bounds = Bounds()
    remember: bool = True
    isolation: Isolation = Isolation()

    def isolated(self) -> Isolation:
        """Its worker processes: comparing mathematics may take any time and memory."""
        return self.isolation

    def warm(self) -> None:
        """Import sympy and math-verify and let them build their tables, before workers are forked."""
        from strop.verifiers.math.judge import warm

        warm(self._rules())

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong, unparsed (no answer, unreadable, beyond the bounds), timeout or error."""
        reference = reference_text(problem)
        if reference is None:
            return Verdict(0.0, Status.ERROR, f"the reference is {type(problem.reference).__name__}, not an answer")
        if not in_worker():
            from strop.verifiers.shared_pool import judge_in_worker

            return judge_in_worker(self, problem, text, truncated)
        from strop.verifiers.math.judge import judge_answer

        return judge_answer(self._rules(), reference, text)

    def refuses(self, problem: Problem) -> str | None:
        """Why the problem cannot be judged: its reference is no answer, too large, or cannot be parsed; else None."""
        from strop.verifiers.math.judge import refuse_reference, unreadable

        gold = reference_text(problem)
        if gold is None:
            return f"MathVerifier compares answers, and the reference is {type(problem.reference).__name__}"
        rules = self._rules()
        if in_worker():
            return refuse_reference(rules, gold, lambda: unreadable(rules, gold))
        from strop.verifiers.shared_pool import refuses_in_worker

        return refuse_reference(rules, gold, lambda: refuses_in_worker(self, problem))

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the answer where `extract` looks for it."""
        return instruction_for(self.extract)

    def answer(self, problem: Problem, text: str) -> str | None:
        """The canonical form of the answer that a completion gives."""
        from strop.verifiers.math.candidates import find_answer
        from strop.verifiers.math.reference import answer_key

        found = find_answer(response(problem, text), self.extract, self.box_required, letter=False)
        return None if isinstance(found, str) else answer_key(found)

    def _rules(self) -> MathRules:
        from strop.verifiers.math.compare import Rules
        from strop.verifiers.math.judge import MathRules

        comparison = Rules(self.precision, self.strict, self.allow_set_relation_comp)
        return MathRules(
            self.extract, self.box_required, self.gold_form, self.match_types, comparison, self.bounds, self.remember
        )
