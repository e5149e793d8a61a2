"""Which judge a verifier wants: this process, killable worker processes, a sandbox, or several of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strop.base.types import Completion, Problem, Status, Verdict
from strop.verifiers.base import Verifier
from strop.verifiers.by_domain import ByDomain
from strop.verifiers.code import CodeVerifier
from strop.verifiers.code.judge import SandboxJudge
from strop.verifiers.pool import InlineJudge, Judge, Key, ProcessJudge


def judge_for(verifier: Verifier) -> Judge:
    """A sandbox for programs, worker processes for what may hang, else the calling process; closed by the caller.

    Raises:
        NoIsolation: programs are to be judged, and this machine has no walls for them.
    """
    if isinstance(verifier, ByDomain):
        return DomainJudge({domain: judge_for(member) for domain, member in verifier.members.items()})
    if isinstance(verifier, CodeVerifier):
        return SandboxJudge(verifier)
    return InlineJudge(verifier) if verifier.isolated() is None else ProcessJudge(verifier)


class Judges:
    """A judge for each verifier, opened when it is first asked for: one that works in processes takes seconds to start.

    `known` are open already, and their owner's to close.
    """

    def __init__(self, known: Sequence[tuple[Verifier, Judge]] = ()) -> None:
        self._known = tuple(known)
        self._own: list[tuple[Verifier, Judge]] = []

    def of(self, verifier: Verifier) -> Judge:
        """The judge of `verifier`."""
        for known, judge in (*self._known, *self._own):
            if known == verifier:
                return judge
        self._own.append((verifier, judge_for(verifier)))
        return self._own[-1][1]

    def close(self) -> None:
        """End those that were opened here; may be called twice."""
        for _, judge in self._own:
            judge.close()
        self._own = []


class DomainJudge:
    """Hands each completion to the judge of its problem's domain."""

    def __init__(self, members: Mapping[str, Judge]) -> None:
        self._members = dict(members)
        self._strays: list[tuple[Key, Verdict]] = []

    @property
    def pending(self) -> int:
        """Completions submitted whose verdict was not yet polled."""
        return len(self._strays) + sum(member.pending for member in self._members.values())

    def submit(self, key: Key, problem: Problem, completion: Completion) -> None:
        """Begin to judge a completion; one of a domain without a judge is an error."""
        member = self._members.get(problem.domain)
        if member is None:
            reason = f"no verifier for the domain {problem.domain!r}"
            self._strays.append((key, Verdict(0.0, Status.ERROR, reason)))
        else:
            member.submit(key, problem, completion)

    def poll(self) -> list[tuple[Key, Verdict]]:
        """The verdicts that are there; does not wait."""
        ready, self._strays = self._strays, []
        return [*ready, *(found for member in self._members.values() for found in member.poll())]

    def wait(self, seconds: float) -> None:
        """Sleep until the first member with work may have a verdict, at most `seconds`."""
        busy = [member for member in self._members.values() if member.pending]
        if busy and not self._strays:
            busy[0].wait(seconds / len(busy))

    def close(self) -> None:
        """End every member."""
        for member in self._members.values():
            member.close()
