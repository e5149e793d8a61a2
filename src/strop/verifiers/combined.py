"""Several verifiers as one: `AnyOf`, of which one that says correct is enough, and `WeightedSum` of their scores."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, SerializeAsAny, model_validator

from strop.base.types import Problem, Verdict
from strop.data.templates import Instruction
from strop.verifiers.answer import Answer
from strop.verifiers.base import Isolation, Verifier, scored
from strop.verifiers.math_verifier import MathVerifier
from strop_verify.verdict import Status

_WORTH = {status: place for place, status in enumerate(reversed(Status))}
Members = Annotated[tuple[SerializeAsAny[Verifier], ...], Field(min_length=1)]
Weight = Annotated[float, Field(gt=0)]
LARGEST = 1.0 - 1e-9  # score of what is not correct in every part


class Combined(Verifier):
    """A verifier that asks its members.

    Fields:
        members: the verifiers.
    """

    members: Members

    def isolated(self) -> Isolation | None:
        """The worker processes of the first member that needs some; None where none does, or a member is bound to
        this process: to a function of its session, or to a judge that is asked from it.
        """
        if self.session_functions() or self.threads():
            return None
        return next((found for found in (member.isolated() for member in self.members) if found is not None), None)

    def warm(self) -> None:
        """Warm every member."""
        for member in self.members:
            member.warm()

    def asks(self) -> tuple[Verifier, ...]:
        """Every member."""
        return self.members

    def instruction(self, problem: Problem) -> Instruction | None:
        """The instruction of the first member."""
        return self.members[0].instruction(problem)

    def stated(self, problem: Problem, text: str) -> str | None:
        """The answer that the first member finds."""
        return next((found for found in (member.stated(problem, text) for member in self.members) if found), None)


class AnyOf(Combined):
    """Asks its members in order; the first that says correct wins (Archer: DeepScaleR's rules, then math-verify).

    Without one the best verdict counts: undecided before wrong before unparsed before timeout before error, and of
    equals the one with the higher score. So a member's failure is the verdict only where every member failed.

    Fields:
        members: the verifiers, quick ones first.
    """

    members: Members = (Answer(), MathVerifier())

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """The first correct verdict, else the best."""
        best: Verdict | None = None
        for member in self.members:
            verdict = member.verdict(problem, text, truncated)
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


class WeightedSum(Combined):
    """score = Σ_i w_i · score_i / Σ_i w_i, which lies in [0, 1] as the members' scores do.

    The verdict is correct where every member says so, unparsed where none could read the response, and else wrong with
    the sum for partial credit. A member that fails (timeout, error) makes the whole verdict its own: a part of the sum
    would be another reward.

    Fields:
        members: the verifiers.
        weights: of each; none weighs all alike.
    """

    weights: tuple[Weight, ...] = ()

    @model_validator(mode="after")
    def _a_weight_each(self) -> Self:
        if self.weights and len(self.weights) != len(self.members):
            raise ValueError(f"{len(self.members)} members and {len(self.weights)} weights; give one for each, or none")
        return self

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """The weighted mean of the members' scores; its detail says what each of them said."""
        verdicts = [member.verdict(problem, text, truncated) for member in self.members]
        failed = next((verdict for verdict in verdicts if not verdict.usable), None)
        if failed is not None:
            return failed
        detail = "; ".join(f"{verdict.score:g} {verdict.detail}".rstrip() for verdict in verdicts)
        (status, *others) = {verdict.status for verdict in verdicts}
        if not others and status is not Status.WRONG:
            return Verdict(float(status is Status.CORRECT), status, detail)
        weights = self.weights or (1.0,) * len(verdicts)
        total = sum(weight * verdict.score for weight, verdict in zip(weights, verdicts, strict=True))
        return scored(min(total / sum(weights), LARGEST), detail, partial_credit=True)

    def refuses(self, problem: Problem) -> str | None:
        """The first member's reason to refuse the problem: all of them judge every problem."""
        return next((reason for member in self.members if (reason := member.refuses(problem)) is not None), None)

    def caution(self, problem: Problem) -> str | None:
        """The first member's warning."""
        return next((said for member in self.members if (said := member.caution(problem)) is not None), None)


class ByDomain(Verifier):
    """A verifier for each domain of a mixture, such as mathematics and code.

    Fields:
        members: by the domain of the problems they judge.
    """

    members: Annotated[dict[str, SerializeAsAny[Verifier]], Field(min_length=1)]

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """The verdict of the problem's own verifier; an error where its domain has none."""
        member = self.members.get(problem.domain)
        if member is None:
            return Verdict(0.0, Status.ERROR, f"no verifier for the domain {problem.domain!r}")
        return member.verdict(problem, text, truncated)

    def refuses(self, problem: Problem) -> str | None:
        """Why the problem cannot be judged: its domain has no verifier, or that verifier refuses it; else None."""
        member = self.members.get(problem.domain)
        if member is None:
            return f"its domain {problem.domain!r} has no verifier; there are {', '.join(sorted(self.members))}"
        return member.refuses(problem)

    def caution(self, problem: Problem) -> str | None:
        """That of the problem's own verifier."""
        member = self.members.get(problem.domain)
        return None if member is None else member.caution(problem)

    def asks(self) -> tuple[Verifier, ...]:
        """Every member."""
        return tuple(self.members.values())

    def instruction(self, problem: Problem) -> Instruction | None:
        """The instruction of the problem's own verifier."""
        member = self.members.get(problem.domain)
        return None if member is None else member.instruction(problem)

    def stated(self, problem: Problem, text: str) -> str | None:
        """The answer that the problem's own verifier finds."""
        member = self.members.get(problem.domain)
        return None if member is None else member.stated(problem, text)
