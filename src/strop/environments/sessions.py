"""Running sessions: turns go in, replies and verdicts come out; an error in one session does not affect the others."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from strop.base.types import Problem, Verdict
from strop.environments.base import Environment, Outcome, Reply, Session, Unjudged
from strop.verifiers.protocol import Key
from strop_verify.verdict import Status

Call: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]


class Turn(NamedTuple):
    """A turn of the policy in the session `key`; the first turn opens the session on `problem` with `seed`.

    Attributes:
        reply: its text; None asks the session for its prompt.
        cut: it was truncated by the token budget, and the trajectory ends.
        past: earlier turns from which the session is rebuilt first.
    """

    key: Key
    problem: Problem
    seed: int
    reply: str | None
    cut: bool
    past: tuple[str, ...] = ()


@dataclass
class _Running:
    session: Session
    turns: int = 0


class SessionHost:
    """The sessions of one environment in one process, by key.

    Args:
        environment: opens the sessions.
        call: awaits a function that may block; by default it is called directly.
    """

    def __init__(self, environment: Environment, call: Call | None = None) -> None:
        self._environment = environment
        self._call = call or _here
        self._running: dict[Key, _Running] = {}
        self._closing: set[asyncio.Future[None]] = set()

    async def turn(self, turn: Turn) -> Outcome:
        """The outcome of a turn; an exception or an invalid reply gives a verdict of status error."""
        try:
            outcome = await self._outcome(turn)
        except TimeoutError:
            outcome = failed(f"a step took longer than {self._environment.step_seconds:g} s")
        except Exception as error:  # user code may raise anything
            outcome = failed(f"{type(error).__name__} in the environment: {' '.join(str(error).split())[:120]}")
        if not isinstance(outcome, Reply):
            self.forget(turn.key)
        return outcome

    def forget(self, key: Key) -> None:
        """Close a session, if it is known."""
        running = self._running.pop(key, None)
        if running is not None:
            with suppress(Exception):  # the trajectory is already judged or dropped
                closing = running.session.close()
                if inspect.isawaitable(closing):
                    task = asyncio.ensure_future(closing)
                    self._closing.add(task)  # an event loop keeps no task alive
                    task.add_done_callback(self._closing.discard)

    def close(self) -> None:
        """Close every session."""
        for key in list(self._running):
            self.forget(key)

    async def _outcome(self, turn: Turn) -> Outcome:
        running = self._running.get(turn.key)
        if running is None:
            running = self._running[turn.key] = _Running(self._environment.open())
            first = await self._of(running.session.reset, turn.problem, turn.seed)
            if turn.reply is None:
                if not isinstance(first, Reply):
                    raise TypeError(f"its reset gave {type(first).__name__}, not Reply")
                return self._bounded(first)
            for reply in turn.past:
                running.turns += 1
                if not isinstance(await self._of(running.session.step, reply), Reply):
                    raise RuntimeError("played again, the session ended earlier")
        if turn.cut:
            return _checked(await self._of(running.session.end, turn.reply))
        running.turns += 1
        outcome: Outcome | None = await self._of(running.session.step, turn.reply)
        bounded = self._bounded(outcome) if isinstance(outcome, Reply) else _checked(outcome)
        if isinstance(bounded, Reply) and running.turns >= self._environment.max_turns:
            end = _checked(await self._of(running.session.end, ""))
            if isinstance(end, Verdict):
                return with_turns(end, [bounded.score], bounded.malformed_calls)
            return Unjudged(bounded.score, bounded.malformed_calls)
        return bounded

    def _bounded(self, reply: Reply) -> Reply | Verdict:
        size, allowed = sum(len(message["content"]) for message in reply.messages), self._environment.reply_characters
        if size > allowed:
            return failed(f"the environment's reply has {size} characters of {allowed} allowed")
        return reply if math.isfinite(reply.score) else _not_finite(reply.score)

    async def _of(self, function: Callable[..., Any], *arguments: object) -> Any:
        if inspect.iscoroutinefunction(function):
            return await asyncio.wait_for(function(*arguments), self._environment.step_seconds)
        return await self._call(lambda: function(*arguments))


def failed(reason: str) -> Verdict:
    """The verdict for a failure of the environment: the sample leaves the loss."""
    return Verdict(0.0, Status.ERROR, reason)


def with_turns(verdict: Verdict, scores: Sequence[float], malformed: int) -> Verdict:
    """The verdict with the scores of earlier turns (none if all are 0) and their malformed calls added."""
    every = (*scores, *verdict.turn_scores)
    return replace(
        verdict, turn_scores=every if any(every) else (), malformed_calls=malformed + verdict.malformed_calls
    )


async def _here(function: Callable[[], Any]) -> Any:
    return function()


def _checked(outcome: object) -> Verdict | Unjudged:
    if isinstance(outcome, Unjudged):
        return outcome if math.isfinite(outcome.score) else _not_finite(outcome.score)
    if outcome is None or isinstance(outcome, Verdict):
        return Unjudged() if outcome is None else outcome
    raise TypeError(f"a session gave {type(outcome).__name__}, not Reply, Verdict, Unjudged or None")


def _not_finite(score: float) -> Verdict:
    return failed(f"the environment's score of a turn is {score}")


class InlineSessions:
    """Sessions in the calling process, stepped by `poll`, for quick environments that cannot hang."""

    def __init__(self, environment: Environment) -> None:
        self._host = SessionHost(environment)
        self._loop = asyncio.new_event_loop()
        self._waiting: list[Turn] = []

    @property
    def pending(self) -> int:
        """The number of queued turns."""
        return len(self._waiting)

    def take(self, turn: Turn) -> None:
        """Queue a turn."""
        self._waiting.append(turn)

    def poll(self) -> list[tuple[Key, Outcome]]:
        """Play every queued turn."""
        turns, self._waiting = self._waiting, []
        if not turns:
            return []
        outcomes = self._loop.run_until_complete(self._play(turns))
        return [(turn.key, outcome) for turn, outcome in zip(turns, outcomes, strict=True)]

    async def _play(self, turns: list[Turn]) -> list[Outcome]:
        return await asyncio.gather(*(self._host.turn(turn) for turn in turns))

    def forget(self, key: Key) -> None:
        """End a session."""
        self._waiting = [turn for turn in self._waiting if turn.key != key]
        self._host.forget(key)

    def wait(self, seconds: float) -> None:
        """Returns at once: `poll` does the work."""

    def close(self) -> None:
        """End all sessions."""
        self._host.close()
        self._loop.close()
