"""Quick verifiers for answers that are not mathematics: a choice, a fixed text, a measured number. None can hang."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from pydantic import Field, NonNegativeFloat, model_validator

from strop.base.types import Problem, Verdict
from strop.data.templates import LETTER, Instruction
from strop.verifiers.base import Verifier, instruction_for, reference_text, response
from strop.verifiers.choices import chosen_letter, letter_of
from strop_verify.extract import Where, after_thinking, extract_answer
from strop_verify.numbers import canonical, measured_number
from strop_verify.verdict import Status, shortened


class MultipleChoice(Verifier):
    """The letter of a choice: `B`, `(B)`, `B. Paris`, `The answer is (B)`.

    Fields:
        extract: where the answer stands; with `any` also after "the answer is", outside boxes and tags.
        choices: the letters that may be chosen; another letter is unparsed.
    """

    extract: Literal["boxed", "answer_tag", "any"] = "any"
    choices: str = Field("ABCDEFGHIJ", min_length=2)

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong, unparsed where no letter is chosen, error where the reference is none."""
        reason = self.refuses(problem)
        if reason is not None:
            return Verdict(0.0, Status.ERROR, reason)
        chosen = chosen_letter(text, self.extract, self.choices)
        if chosen is None:
            return Verdict(0.0, Status.UNPARSED, "no choice")
        reference = letter_of(str(problem.reference), self.choices)
        if chosen == reference:
            return Verdict(1.0, Status.CORRECT, chosen)
        return Verdict(0.0, Status.WRONG, f"{chosen}, not {reference}")

    def refuses(self, problem: Problem) -> str | None:
        """Why the problem cannot be judged: its reference is not one of the letters; else None."""
        if isinstance(problem.reference, str) and letter_of(problem.reference, self.choices) is not None:
            return None
        return f"the reference {shortened(str(problem.reference))!r} is none of the choices {self.choices}"

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the letter where `extract` looks for it."""
        return instruction_for(self.extract) if self.extract == "answer_tag" else LETTER

    def answer(self, problem: Problem, text: str) -> str | None:
        """The letter that a completion chooses."""
        return chosen_letter(response(problem, text), self.extract, self.choices)


class ExactMatch(Verifier):
    """The answer is the reference, character by character.

    Fields:
        extract: where the answer stands; `all` is the whole text after the thinking.
        ignore_case: `Paris` is `paris`.
        ignore_space: runs of white space count as one, and none at the ends.
    """

    extract: Where | Literal["all"] = "boxed"
    ignore_case: bool = False
    ignore_space: bool = True

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong, unparsed where there is no answer, error where the reference is no text."""
        reason = self.refuses(problem)
        if reason is not None:
            return Verdict(0.0, Status.ERROR, reason)
        found = self._found(text)
        if found is None:
            return Verdict(0.0, Status.UNPARSED, "no answer")
        if self._key(found) == self._key(str(problem.reference)):
            return Verdict(1.0, Status.CORRECT, shortened(found))
        return Verdict(0.0, Status.WRONG, f"{shortened(found)}, not {shortened(str(problem.reference))}")

    def refuses(self, problem: Problem) -> str | None:
        """Why the problem cannot be judged: its reference is no text; else None."""
        if isinstance(problem.reference, str):
            return None
        return f"ExactMatch compares texts, and the reference is {type(problem.reference).__name__}"

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the answer where `extract` looks for it."""
        return None if self.extract == "all" else instruction_for(self.extract)

    def answer(self, problem: Problem, text: str) -> str | None:
        """The answer that a completion gives, as it is compared."""
        found = self._found(response(problem, text))
        return None if found is None else self._key(found)

    def _found(self, text: str) -> str | None:
        return after_thinking(text) if self.extract == "all" else extract_answer(text, self.extract)

    def _key(self, text: str) -> str:
        text = " ".join(text.split()) if self.ignore_space else text
        return text.casefold() if self.ignore_case else text


class Numeric(Verifier):
    """A number within a tolerance of the reference: |answer − reference| ≤ max(absolute, relative · |reference|).

    Fields:
        extract: where the answer stands.
        absolute, relative: the tolerances; at least one is above 0 (for exact numbers there is `Answer`).
    """

    extract: Where = "any"
    absolute: NonNegativeFloat = 0.0
    relative: NonNegativeFloat = 1e-4

    @model_validator(mode="after")
    def _tolerates_something(self) -> Numeric:
        if not self.absolute and not self.relative:
            raise ValueError("absolute and relative are both 0; use Answer for exact numbers")
        return self

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong, unparsed where there is no number, error where the reference is none."""
        reference = measured_number(reference_text(problem))
        if reference is None:
            return Verdict(0.0, Status.ERROR, str(self.refuses(problem)))
        found = extract_answer(text, self.extract)
        number = measured_number(found)
        if found is None or number is None:
            return Verdict(0.0, Status.UNPARSED, "no number" if found is None else f"no number: {shortened(found)}")
        allowed = max(Decimal(repr(self.absolute)), Decimal(repr(self.relative)) * abs(reference))
        if abs(number - reference) <= allowed:
            return Verdict(1.0, Status.CORRECT, shortened(found))
        return Verdict(0.0, Status.WRONG, f"{shortened(found)}, not {reference} ± {allowed:.3g}")

    def refuses(self, problem: Problem) -> str | None:
        """Why the problem cannot be judged: its reference is no number; else None."""
        if measured_number(reference_text(problem)) is not None:
            return None
        return f"the reference {shortened(str(problem.reference))!r} is no number"

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the answer where `extract` looks for it."""
        return instruction_for(self.extract)

    def answer(self, problem: Problem, text: str) -> str | None:
        """The number that a completion gives, in canonical form."""
        found = extract_answer(response(problem, text), self.extract)
        return None if found is None or measured_number(found) is None else canonical(found)
