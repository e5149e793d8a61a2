"""An environment as the loop sees it: completions go in, observations and verdicts come out."""

from __future__ import annotations

from dataclasses import dataclass

from strop.base.seeds import derive
from strop.base.types import Completion, Observation, Problem, Verdict
from strop.environments.base import Environment
from strop.environments.pool import SessionPool
from strop.environments.session import SEED, Reply
from strop.environments.sessions import InlineSessions, Sessions, Turn
from strop.environments.tokens import TurnTokens
from strop.verifiers.judge import Judge, Key, Responder


@dataclass(frozen=True, eq=False)
class Play:
    """An environment, and how its messages become tokens of the model that plays in it."""

    environment: Environment
    tokens: TurnTokens

    def responder(self, judge: Judge) -> EnvironmentJudge:
        """The environment opened; `judge` is of the run's verifier, and closed with it."""
        sessions = InlineSessions(self.environment) if self.environment.inline else SessionPool(self.environment)
        return EnvironmentJudge(sessions, self.tokens, judge, self.environment.turn_tokens)


class EnvironmentJudge(Responder):
    """Hands each turn to its session; where the session leaves the verdict to the verifier, to that one's judge.

    Args:
        sessions: of the environment.
        tokens: turns its messages into tokens.
        judge: of the run's verifier.
        turn_tokens: most tokens of one turn, or None.
    """

    several_turns = True

    def __init__(self, sessions: Sessions, tokens: TurnTokens, judge: Judge, turn_tokens: int | None = None) -> None:
        self.turn_tokens = turn_tokens
        self._sessions = sessions
        self._tokens = tokens
        self._judge = judge
        self._open: dict[Key, tuple[Problem, Completion]] = {}  # each sample's last turn

    @property
    def pending(self) -> int:
        """Turns whose answer was not yet polled."""
        return self._sessions.pending + self._judge.pending

    def submit(self, key: Key, problem: Problem, completion: Completion, seed: int = 0) -> None:
        """Hand a turn to the session of `key`, which begins with the first one."""
        self._open[key] = problem, completion
        drawn = problem.extra.get(SEED, derive(seed, "environment", key[1]))
        cut = completion.truncated and len(completion.token_ids) != self.turn_tokens
        self._sessions.take(Turn(key, problem, drawn, completion.text, cut))

    def poll(self) -> list[tuple[Key, Verdict | Observation]]:
        """Observations and verdicts that are there."""
        found: list[tuple[Key, Verdict | Observation]] = []
        for key, outcome in self._sessions.poll():
            if key not in self._open:  # forgotten
                continue
            problem, turn = self._open[key]
            if isinstance(outcome, Reply):
                found.append((key, self._tokens.observation(turn, outcome.messages)))
                continue
            del self._open[key]
            if outcome is None:
                self._judge.submit(key, problem, turn)
            else:
                found.append((key, outcome))
        return [*found, *self._judge.poll()]

    def forget(self, request_id: str) -> None:
        """End the sessions of a request's samples."""
        for key in [key for key in self._open if key[0] == request_id]:
            del self._open[key]
            self._sessions.forget(key)

    def wait(self, seconds: float) -> None:
        """Sleep until an answer may be there, at most `seconds`."""
        (self._sessions if self._sessions.pending else self._judge).wait(seconds)

    def close(self) -> None:
        """End the sessions, and the verifier's judge."""
        self._sessions.close()
        self._judge.close()
