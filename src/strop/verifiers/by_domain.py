"""`ByDomain`: each problem is judged by the verifier of its domain."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SerializeAsAny

from strop.base.types import Problem, Verdict
from strop.data.templates import Instruction
from strop.verifiers.base import Verifier, response
from strop_verify.verdict import Status


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
        if truncated and member.require_stop:
            return Verdict(0.0, Status.UNPARSED, "truncated")
        return member.judge(problem, text, truncated)

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

    def session_functions(self) -> tuple[str, ...]:
        """Those of every member."""
        return tuple(name for member in self.members.values() for name in member.session_functions())

    def instruction(self, problem: Problem) -> Instruction | None:
        """The instruction of the problem's own verifier."""
        member = self.members.get(problem.domain)
        return None if member is None else member.instruction(problem)

    def answer(self, problem: Problem, text: str) -> str | None:
        """The answer that the problem's own verifier finds."""
        member = self.members.get(problem.domain)
        plain = Problem(problem.id, problem.prompt, problem.reference, problem.domain, problem.source)
        return None if member is None else member.answer(plain, response(problem, text))
