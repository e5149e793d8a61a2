"""Games as examples of environments: guess a number, and find the way in a grid."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import SerializeAsAny

from strop.base.types import Message, Problem, Verdict
from strop.environments.base import Environment, Reply, Session
from strop.verifiers.base import Verifier
from strop_verify.verdict import Status

MOVES: Mapping[str, tuple[int, int]] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def _user(text: str) -> Reply:
    return Reply((Message(role="user", content=text),))


class GuessingGame(Environment):
    """The policy guesses the number that is the problem's reference, and hears `higher` or `lower`."""

    @property
    def inline(self) -> bool:
        """A comparison of two numbers."""
        return True

    def open(self) -> Session:
        """A game that has not begun."""
        return _Guessing()


class _Guessing(Session):
    def reset(self, problem: Problem, seed: int) -> None:
        """Take the number."""
        self._number = int(problem.reference)

    def step(self, reply: str) -> Reply | Verdict:
        """The last number of the reply counts."""
        guesses = re.findall(r"-?\d{1,18}", reply)
        if not guesses:
            return _user("Say a number.")
        guess = int(guesses[-1])
        if guess == self._number:
            return Verdict(1.0, Status.CORRECT)
        return _user("higher" if self._number > guess else "lower")

    def end(self, reply: str) -> Verdict:
        """It was not guessed in time."""
        return Verdict(0.0, Status.WRONG, "not guessed")


class GridGame(Environment):
    """The policy walks from S to G by `up`, `down`, `left` and `right`, around the walls #.

    The problem's reference is the grid, a text of its rows, such as `S.#` `..#` `#.G`, joined by new lines. A wall or
    the edge leaves the walker where he is.
    """

    @property
    def inline(self) -> bool:
        """A few look-ups."""
        return True

    def open(self) -> Session:
        """A game that has not begun."""
        return _Grid()


class _Grid(Session):
    def reset(self, problem: Problem, seed: int) -> None:
        """Stand on S."""
        self._rows = str(problem.reference).splitlines()
        places = {cell: (r, c) for r, row in enumerate(self._rows) for c, cell in enumerate(row)}
        self._at = places["S"]

    def step(self, reply: str) -> Reply | Verdict:
        """The last move of the reply counts."""
        moves = re.findall(r"\b(up|down|left|right)\b", reply.lower())
        if not moves:
            return _user("Say up, down, left or right.")
        row, column = self._at[0] + MOVES[moves[-1]][0], self._at[1] + MOVES[moves[-1]][1]
        inside = 0 <= row < len(self._rows) and 0 <= column < len(self._rows[row])
        if not inside or self._rows[row][column] == "#":
            return _user("a wall")
        self._at = row, column
        if self._rows[row][column] == "G":
            return Verdict(1.0, Status.CORRECT)
        return _user(f"row {row + 1}, column {column + 1}")

    def end(self, reply: str) -> Verdict:
        """G was not reached in time."""
        return Verdict(0.0, Status.WRONG, "did not arrive")


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
