"""`AnyOf`: several verifiers, of which one that says correct is enough."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SerializeAsAny

from strop.base.types import Problem, Status, Verdict
from strop.data.templates import Instruction
from strop.verifiers.answer import Answer
from strop.verifiers.base import Verifier, response
from strop.verifiers.isolation import Isolation
from strop.verifiers.math.verifier import MathVerifier

_WORTH = {Status.CORRECT: 4, Status.WRONG: 3, Status.UNPARSED: 2, Status.TIMEOUT: 1, Status.ERROR: 0}


class AnyOf(Verifier):
    """Asks its members in order until one says correct (Archer: DeepScaleR's rules, then math-verify).

    Where none does, the best verdict counts: wrong before unparsed before timeout before error, and among equals the
    one with the higher score. So a member's failure is the verdict only where every member failed.

    Fields:
        members: the verifiers, quick ones first.
    """

    members: Annotated[tuple[SerializeAsAny[Verifier], ...], Field(min_length=1)] = (Answer(), MathVerifier())

    def isolated(self) -> Isolation | None:
        """The worker processes of the first member that needs some; None where none does."""
        return next((found for found in (member.isolated() for member in self.members) if found is not None), None)

    def warm(self) -> None:
        """Warm every member."""
        for member in self.members:
            member.warm()

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """The first correct verdict, else the best."""
        best: Verdict | None = None
        for member in self.members:
            if truncated and member.require_stop:
                verdict = Verdict(0.0, Status.UNPARSED, "truncated")
            else:
                verdict = member.judge(problem, text, truncated)
            if verdict.status is Status.CORRECT:
                return verdict
            if best is None or (_WORTH[verdict.status], verdict.score) > (_WORTH[best.status], best.score):
                best = verdict
        assert best is not None  # there is at least one member
        return best

    def refuses(self, problem: Problem) -> str | None:
        """Why every member refuses the problem; None where one of them can judge it."""
        reasons = [member.refuses(problem) for member in self.members]
        if any(reason is None for reason in reasons):
            return None
        return "; ".join(reason for reason in reasons if reason is not None)

    def instruction(self, problem: Problem) -> Instruction | None:
        """What the first member asks for."""
        return self.members[0].instruction(problem)

    def answer(self, problem: Problem, text: str) -> str | None:
        """The answer that the first member finds."""
        whole = response(problem, text)
        plain = Problem(problem.id, problem.prompt, problem.reference, problem.domain, problem.source)
        return next((found for found in (member.answer(plain, whole) for member in self.members) if found), None)
