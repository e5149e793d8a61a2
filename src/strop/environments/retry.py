"""Several tries: the verifier's complaint comes back, and the policy may answer again."""

from __future__ import annotations

from pydantic import SerializeAsAny

from strop.base.types import Message, Problem, Verdict
from strop.environments.base import Environment, Reply, Session
from strop.verifiers.base import Verifier
from strop_verify.verdict import Status


class OneTurn(Environment):
    """Ends after the first turn; a run with it comes to what the run without an environment comes to."""

    @property
    def inline(self) -> bool:
        """There is nothing to run."""
        return True

    def open(self) -> Session:
        """A session of one turn."""
        return _OneTurn()


class _OneTurn(Session):
    def step(self, reply: str) -> None:
        """The verifier judges the turn."""
        return None


class Retry(Environment):
    """Asks `verifier` after each turn; while it is not satisfied and turns are left, the policy reads why.

    Fields:
        verifier: judges each try. What it says is read by the policy: choose one that does not give the answer away.
        complaint: what the policy reads; `{detail}` is the verifier's reason.
    """

    max_turns: int = 3
    verifier: SerializeAsAny[Verifier]
    complaint: str = "That is not right ({detail}). Try again."

    def open(self) -> Session:
        """A session of several tries."""
        return _Retry(self)


class _Retry(Session):
    def __init__(self, environment: Retry) -> None:
        self._environment = environment
        self._tries = 0

    def reset(self, problem: Problem, seed: int) -> None:
        """Remember what is asked."""
        self._problem = problem

    def step(self, reply: str) -> Reply | Verdict:
        """The complaint, or the last try's verdict."""
        self._tries += 1
        verdict = self._environment.verifier(self._problem, reply)
        if not verdict.usable or verdict.status is Status.CORRECT or self._tries >= self._environment.max_turns:
            return verdict
        text = self._environment.complaint.replace("{detail}", verdict.detail or verdict.status.value)
        return Reply((Message(role="user", content=text),))

    def end(self, reply: str) -> Verdict:
        """The verdict on a try that was cut off."""
        return self._environment.verifier(self._problem, reply, truncated=True)
