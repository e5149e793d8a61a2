"""Small environments: a guessing game as an example, a single turn, and retries with a verifier."""

from __future__ import annotations

import re

from pydantic import SerializeAsAny

from strop.base.types import Message, Problem, Verdict
from strop.environments.base import Environment, Reply, Session
from strop.verifiers.base import Verifier
from strop_verify.verdict import Status


def _user(text: str) -> Reply:
    return Reply((Message(role="user", content=text),))


class GuessingGame(Environment):
    """The policy guesses the problem's reference, a number, and is answered `higher` or `lower`."""

    @property
    def inline(self) -> bool:
        """It only compares two numbers."""
        return True

    def open(self) -> Session:
        """A new game."""
        return _Guessing()


class _Guessing(Session):
    def reset(self, problem: Problem, seed: int) -> None:
        """Read the number."""
        self._number = int(problem.reference)

    def step(self, reply: str) -> Reply | Verdict:
        """Compare the last number in the reply."""
        guesses = re.findall(r"-?\d{1,18}", reply)
        if not guesses:
            return _user("Say a number.")
        guess = int(guesses[-1])
        if guess == self._number:
            return Verdict(1.0, Status.CORRECT)
        return _user("higher" if self._number > guess else "lower")

    def end(self, reply: str) -> Verdict:
        """The number was not guessed in time."""
        return Verdict(0.0, Status.WRONG, "not guessed")


class OneTurn(Environment):
    """Ends after the first turn; a run with it equals the run without an environment."""

    @property
    def inline(self) -> bool:
        """It runs no code."""
        return True

    def open(self) -> Session:
        """A session of one turn."""
        return _OneTurn()


class _OneTurn(Session):
    def step(self, reply: str) -> None:
        """Leave the turn to the verifier."""
        return None


class Retry(Environment):
    """Judges each turn with `verifier`; while it is wrong and turns are left, the policy reads the reason.

    Fields:
        verifier: judges each try. The policy reads its reasons: choose one that does not reveal the answer.
        complaint: the message to the policy; `{detail}` is the verifier's reason.
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
        """Keep the problem."""
        self._problem = problem

    def step(self, reply: str) -> Reply | Verdict:
        """The complaint, or the verdict on the last try."""
        self._tries += 1
        verdict = self._environment.verifier(self._problem, reply)
        if not verdict.usable or verdict.status is Status.CORRECT or self._tries >= self._environment.max_turns:
            return verdict
        text = self._environment.complaint.replace("{detail}", verdict.detail or verdict.status.value)
        return Reply((Message(role="user", content=text),))

    def end(self, reply: str) -> Verdict:
        """The verdict on a truncated try."""
        return self._environment.verifier(self._problem, reply, truncated=True)
