"""Verifiers of short answers: `Answer`, `MultipleChoice`, `ExactMatch`, `Numeric`, and the scorers of reasoning-gym."""

from __future__ import annotations

import re
from abc import abstractmethod
from decimal import Decimal
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, model_validator

from strop.base.types import Problem, Verdict
from strop.data.templates import LETTER, Instruction
from strop.verifiers.base import Verifier, instruction_for, reference_text, scored
from strop_verify.choices import chosen, letter_of
from strop_verify.extract import (
    Where,
    after_thinking,
    canonical,
    extract_answer,
    last_boxed,
    measured_number,
    normalise,
)
from strop_verify.verdict import Status, shortened

# A LaTeX command, a power, an index, a fraction, a tuple or an interval.
_FORMULA = re.compile(r"\\[a-zA-Z]|[\w)}]\s*(?:\^|_\{)|\d\s*/\s*\d|^[(\[{].*,.*[)\]}]$")


class Extracting(Verifier):
    """A verifier of an answer that stands in a marked place of the response.

    Fields:
        extract: where the answer stands: `boxed`, `answer_tag`, `last_number`, or `any` of them (see `extract_answer`).
    """

    extract: Where | Literal["all"] = "boxed"

    def found(self, text: str) -> str | None:
        """The answer of a whole response, as it is written there."""
        return after_thinking(text) if self.extract == "all" else extract_answer(text, self.extract)

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the answer where `extract` looks for it."""
        return None if self.extract == "all" else instruction_for(self.extract)

    def stated(self, problem: Problem, text: str) -> str | None:
        """The canonical form of the answer."""
        found = self.found(text)
        return None if found is None else canonical(found)


class Comparing(Extracting):
    """A verifier that compares the answer `stated` in a response with the `right` one, both in the same form."""

    wants: ClassVar[str]  # what the reference must be

    @abstractmethod
    def right(self, problem: Problem) -> str | None:
        """The answer of the reference; None where it has none that this verifier compares."""

    def same(self, found: str, right: str) -> bool:
        """Whether an answer is the right one."""
        return found == right

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong, unparsed where there is no answer, error where the reference has none."""
        right, found = self.right(problem), self.stated(problem, text)
        if right is None:
            return Verdict(0.0, Status.ERROR, str(self.refuses(problem)))
        if found is None:
            return Verdict(0.0, Status.UNPARSED, "no answer")
        if self.same(found, right):
            return Verdict(1.0, Status.CORRECT, shortened(found))
        return Verdict(0.0, Status.WRONG, f"{shortened(found)}, not {shortened(right)}")

    def refuses(self, problem: Problem) -> str | None:
        """Why the problem cannot be judged: its reference is none that this verifier compares; else None."""
        if self.right(problem) is not None:
            return None
        return f"{type(self).__name__} wants a reference that is {self.wants}, not {shortened(repr(problem.reference))}"


class Answer(Comparing):
    """Compares simple numbers and texts; mathematics in LaTeX wants a verifier that understands it.

    Of a reference that is a worked solution, what it boxes counts, or what follows its `####`.

    Fields:
        box_required: an answer tag without a box in it is unparsed (the rule of Open-Reasoner-Zero's code).
    """

    wants: ClassVar[str] = "a text or a number"
    extract: Where = "boxed"
    box_required: bool = False

    def found(self, text: str) -> str | None:
        """The answer of a whole response, as it is written there."""
        return extract_answer(text, self.extract, self.box_required)

    def right(self, problem: Problem) -> str | None:
        """The canonical form of the answer that the reference states."""
        reference = reference_text(problem)
        return None if reference is None else canonical(stated_answer(reference))

    def caution(self, problem: Problem) -> str | None:
        """Where the reference is a formula, which other formulas equal that are written otherwise."""
        reference = reference_text(problem)
        if reference is None or _FORMULA.search(normalise(stated_answer(reference))) is None:
            return None
        return "Answer compares formulas as texts, and takes no other way to write one; verifier=MathVerifier does"


def stated_answer(reference: str) -> str:
    """The answer that a reference states: its last box, or what follows its last `####`, else all of it."""
    return last_boxed(reference) or reference.rpartition("####")[2].strip() or reference


class MultipleChoice(Comparing):
    """The letter of a choice: `B`, `(B)`, `B. Paris`, `The answer is (B)`; never one that a sentence only mentions.

    The text of one of the options at the end of the question stands for its letter.

    Fields:
        extract: where the answer stands; with `any`, outside boxes and tags, also where a sentence states it.
        choices: the letters that may be chosen; another letter is unparsed.
    """

    wants: ClassVar[str] = "one of the choices"
    extract: Literal["boxed", "answer_tag", "any"] = "any"
    choices: str = Field("ABCDEFGHIJ", min_length=2)

    def right(self, problem: Problem) -> str | None:
        """The letter of the reference, which may be the text of an option."""
        reference = problem.reference
        return letter_of(reference, self.choices, problem.question) if isinstance(reference, str) else None

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the letter where `extract` looks for it."""
        return instruction_for(self.extract) if self.extract == "answer_tag" else LETTER

    def stated(self, problem: Problem, text: str) -> str | None:
        """The letter that a response chooses."""
        return chosen(text, self.extract, self.choices, problem.question)


class ExactMatch(Comparing):
    """The answer is the reference, character by character.

    Fields:
        extract: where the answer stands; `all` is the whole text after the thinking.
        ignore_case: `Paris` is `paris`.
        ignore_space: runs of white space count as one, and none at the ends.
    """

    wants: ClassVar[str] = "a text"
    extract: Where | Literal["all"] = "boxed"
    ignore_case: bool = False
    ignore_space: bool = True

    def right(self, problem: Problem) -> str | None:
        """The reference, as it is compared."""
        return self._key(problem.reference) if isinstance(problem.reference, str) else None

    def stated(self, problem: Problem, text: str) -> str | None:
        """The answer of a whole response, as it is compared."""
        found = self.found(text)
        return None if found is None else self._key(found)

    def _key(self, text: str) -> str:
        text = " ".join(text.split()) if self.ignore_space else text
        return text.casefold() if self.ignore_case else text


class Numeric(Comparing):
    """A number within a tolerance of the reference: |answer − reference| ≤ max(absolute, relative · |reference|).

    Fields:
        extract: where the answer stands.
        absolute, relative: the tolerances; at least one is above 0 (for exact numbers there is `Answer`).
    """

    wants: ClassVar[str] = "a number"
    extract: Where = "any"
    absolute: NonNegativeFloat = 0.0
    relative: NonNegativeFloat = 1e-4

    @model_validator(mode="after")
    def _tolerates_something(self) -> Numeric:
        if not self.absolute and not self.relative:
            raise ValueError("absolute and relative are both 0; use Answer for exact numbers")
        return self

    def right(self, problem: Problem) -> str | None:
        """The reference, where it is a number."""
        reference = reference_text(problem)
        return None if measured_number(reference) is None else reference

    def same(self, found: str, right: str) -> bool:
        """Whether a number is within the tolerance of the reference."""
        number, reference = measured_number(found), measured_number(right)
        assert number is not None and reference is not None  # what `stated` and `right` returned
        allowed = max(Decimal(repr(self.absolute)), Decimal(repr(self.relative)) * abs(reference))
        return abs(number - reference) <= allowed

    def stated(self, problem: Problem, text: str) -> str | None:
        """The number of a whole response, in canonical form."""
        found = self.found(text)
        return None if found is None or measured_number(found) is None else canonical(found)


class ReasoningGymScorer(Extracting):
    """Asks the task that made the problem (`data.ReasoningGym`) to score the answer; needs the extra `gym`.

    Fields:
        extract: where the answer stands in the response (see `extract_answer`).
        partial_credit: keep the task's scores between 0 and 1; else anything short of 1 is worth 0.
    """

    extract: Where = "any"
    partial_credit: bool = False

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """The task's verdict; an exception of its scorer is an error, never a reward.

        Raises:
            InputError: the package is absent.
        """
        from strop.data.generators import open_entry, open_task

        found = self.found(text)
        if found is None:
            return Verdict(0.0, Status.UNPARSED, "no answer")
        extra = problem.extra
        if "task" not in extra or "index" not in extra:
            return Verdict(0.0, Status.ERROR, f"problem {problem.id} does not come from reasoning-gym")
        dataset = open_task(extra["task"], extra["size"], extra["seed"], extra["parameters"])
        entry = open_entry(dataset, extra["index"])
        if entry["question"] != problem.prompt:
            return Verdict(0.0, Status.ERROR, f"reasoning-gym no longer makes problem {problem.id} as it did")
        try:
            score = float(dataset.score_answer(answer=found, entry=entry))
        except Exception as error:  # a scorer may raise anything; it becomes a verdict that says so
            return Verdict(0.0, Status.ERROR, f"{type(error).__name__} in {extra['task']}: {shortened(str(error))}")
        return scored(score, shortened(found), self.partial_credit)
