"""An environment that takes its time, for `bench/environments.py`; its worker processes import this file."""

from __future__ import annotations

import asyncio

from strop.base.types import Message, Verdict
from strop.environments.base import Environment, Reply, Session
from strop_verify.verdict import Status


class Timed(Environment):
    """Answers each turn but the last after `seconds` with `said` characters."""

    turns: int
    said: int
    seconds: float

    def open(self) -> Session:
        """A session that has not begun."""
        return _Timed(self)


class _Timed(Session):
    def __init__(self, environment: Timed) -> None:
        self._environment, self._left = environment, environment.turns

    async def step(self, reply: str) -> Reply | Verdict:
        """An observation, or the end."""
        await asyncio.sleep(self._environment.seconds)
        self._left -= 1
        if self._left:
            return Reply((Message(role="user", content="." * self._environment.said),))
        return Verdict(1.0, Status.CORRECT)

    def end(self, reply: str) -> Verdict:
        """Not reached: the budget has room for every turn."""
        return Verdict(0.0, Status.ERROR, "out of room")
