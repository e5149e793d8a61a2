"""`Answer`: the response's answer equals the reference, as a number or as text. Exact, quick, cannot hang."""

from __future__ import annotations

import re

from strop.base.types import Problem, Verdict
from strop.data.templates import Instruction
from strop.verifiers.base import Verifier, instruction_for, reference_text, response
from strop_verify.boxes import last_boxed
from strop_verify.extract import Where, extract_answer
from strop_verify.numbers import canonical, normalise, same_answer
from strop_verify.verdict import Status, shortened

# A LaTeX command, a power, an index, a fraction, a tuple or an interval.
_FORMULA = re.compile(r"\\[a-zA-Z]|[\w)}]\s*(?:\^|_\{)|\d\s*/\s*\d|^[(\[{].*,.*[)\]}]$")


class Answer(Verifier):
    """Compares simple numbers and texts; mathematics in LaTeX wants a verifier that understands it.

    Of a reference that is a worked solution, what it boxes counts, or what follows its `####`.

    Fields:
        extract: where the answer stands: `boxed`, `answer_tag`, `last_number`, or `any` of them (see `extract_answer`).
        box_required: an answer tag without a box in it is unparsed (the rule of Open-Reasoner-Zero's code).
    """

    extract: Where = "boxed"
    box_required: bool = False

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong, unparsed where there is no answer, error where the reference is neither text nor number."""
        reference = reference_text(problem)
        if reference is None:
            return Verdict(
                0.0, Status.ERROR, f"Answer compares texts and numbers, not {type(problem.reference).__name__}"
            )
        found = extract_answer(text, self.extract, self.box_required)
        if found is None:
            return Verdict(0.0, Status.UNPARSED, "no answer")
        stated = stated_answer(reference)
        if same_answer(found, stated):
            return Verdict(1.0, Status.CORRECT, shortened(found))
        return Verdict(0.0, Status.WRONG, f"{shortened(found)}, not {shortened(stated)}")

    def refuses(self, problem: Problem) -> str | None:
        """Why the problem cannot be judged: its reference is neither text nor number; else None."""
        if reference_text(problem) is None:
            return f"Answer compares texts and numbers, and the reference is {type(problem.reference).__name__}"
        return None

    def caution(self, problem: Problem) -> str | None:
        """Where the reference is a formula, which other formulas equal that are written otherwise."""
        reference = reference_text(problem)
        if reference is None or _FORMULA.search(normalise(stated_answer(reference))) is None:
            return None
        return "Answer compares formulas as texts, and takes no other way to write one; verifier=MathVerifier does"

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the answer where `extract` looks for it."""
        return instruction_for(self.extract)

    def answer(self, problem: Problem, text: str) -> str | None:
        """The canonical form of the answer that a completion gives."""
        found = extract_answer(response(problem, text), self.extract, self.box_required)
        return None if found is None else canonical(found)


def stated_answer(reference: str) -> str:
    """The answer that a reference states: its last box, or what follows its last `####`, else all of it."""
    return last_boxed(reference) or reference.rpartition("####")[2].strip() or reference
