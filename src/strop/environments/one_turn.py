"""The environment that every verifier is: one turn, and the verifier judges it."""

from __future__ import annotations

from strop.environments.base import Environment, Session


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
