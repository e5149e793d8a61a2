"""An environment as the loop sees it: completions go in, observations and verdicts come out."""

from __future__ import annotations

from dataclasses import dataclass

from strop.base.seeds import derive
from strop.base.types import Completion, InputError, Observation, Problem, Verdict
from strop.environments.base import Environment
from strop.environments.pool import SessionPool
from strop.environments.session import SEED, Reply
from strop.environments.sessions import InlineSessions, Sessions, Turn, failed, with_turns
from strop.environments.tokens import TurnTokens
from strop.verifiers.judge import Judge, Key, Responder


@dataclass(frozen=True, eq=False)
class Play:
    """An environment, and how its messages become tokens of the model that plays in it.

    Attributes:
        longest_prompt: most tokens of a prompt that the environment gives, where it speaks first; None: any.
    """

    environment: Environment
    tokens: TurnTokens
    longest_prompt: int | None = None

    def responder(self, judge: Judge) -> EnvironmentJudge:
        """The environment opened; `judge` is of the run's verifier, and closed with it."""
        sessions = InlineSessions(self.environment) if self.environment.inline else SessionPool(self.environment)
        return EnvironmentJudge(sessions, self, judge)


class EnvironmentJudge(Responder):
    """Hands each turn to its session; where the session leaves the verdict to the verifier, to that one's judge.

    Args:
        sessions: of the environment.
        play: the environment, and what turns its messages into tokens.
        judge: of the run's verifier.
    """

    def __init__(self, sessions: Sessions, play: Play, judge: Judge) -> None:
        self.several_turns = play.environment.max_turns > 1
        self.turn_tokens = play.environment.turn_tokens
        self.speaks_first = play.environment.speaks_first
        self._sessions = sessions
        self._tokens, self._longest_prompt = play.tokens, play.longest_prompt
        self._judge = judge
        self._replies: dict[Key, list[Reply]] = {}  # to the turns of each sample so far
        self._open: dict[Key, tuple[Problem, Completion | None]] = {}  # each sample's last turn, where it had one

    @property
    def pending(self) -> int:
        """Turns whose answer was not yet polled."""
        return self._sessions.pending + self._judge.pending

    def begin(self, key: Key, problem: Problem, seed: int) -> None:
        """Ask the session of `key` for its prompt."""
        self._take(key, problem, None, seed)

    def submit(self, key: Key, problem: Problem, completion: Completion, seed: int = 0) -> None:
        """Hand a turn to the session of `key`, which begins with the first one."""
        self._take(key, problem, completion, seed)

    def _take(self, key: Key, problem: Problem, turn: Completion | None, seed: int) -> None:
        self._open[key] = problem, turn
        drawn = problem.extra.get(SEED, derive(seed, "environment", key[1]))
        if turn is None:
            self._sessions.take(Turn(key, problem, drawn, None, False))
            return
        cut = turn.truncated and len(turn.token_ids) != self.turn_tokens
        self._sessions.take(Turn(key, problem, drawn, turn.text, cut))

    def poll(self) -> list[tuple[Key, Verdict | Observation]]:
        """Observations and verdicts that are there."""
        found: list[tuple[Key, Verdict | Observation]] = []
        for key, outcome in self._sessions.poll():
            if key not in self._open:  # forgotten
                continue
            problem, turn = self._open[key]
            answer = self._said(turn, outcome) if isinstance(outcome, Reply) else outcome
            if isinstance(outcome, Reply) and turn is not None:
                self._replies.setdefault(key, []).append(outcome)
            if isinstance(answer, Observation):
                found.append((key, answer))
                continue
            del self._open[key]
            if isinstance(outcome, Reply):
                self._sessions.forget(key)
            if answer is not None:
                found.append((key, self._whole(key, answer)))
            elif turn is not None:
                self._judge.submit(key, problem, turn)
        return [*found, *((key, self._whole(key, verdict)) for key, verdict in self._judge.poll())]

    def _whole(self, key: Key, verdict: Verdict) -> Verdict:
        """The verdict of a trajectory, with what the replies to its turns said of them."""
        replies = self._replies.pop(key, [])
        return with_turns(verdict, [one.score for one in replies], sum(one.malformed_calls for one in replies))

    def _said(self, turn: Completion | None, reply: Reply) -> Observation | Verdict:
        """What the environment says as tokens; where they cannot be had, its own sample is an error."""
        if turn is not None:
            return self._tokens.observation(turn, reply.messages)
        try:
            prompt = self._tokens.prompt(reply.messages, reply.tools)
        except InputError as error:
            return failed(f"the environment's prompt cannot be rendered: {error}")
        if self._longest_prompt is not None and len(prompt.token_ids) > self._longest_prompt:
            return failed(f"the environment's prompt has {len(prompt.token_ids)} tokens of {self._longest_prompt}")
        return prompt

    def forget(self, request_id: str) -> None:
        """End the sessions of a request's samples."""
        for key in [key for key in self._open if key[0] == request_id]:
            del self._open[key]
            self._sessions.forget(key)
        for key in [key for key in self._replies if key[0] == request_id]:
            del self._replies[key]

    def wait(self, seconds: float) -> None:
        """Sleep until an answer may be there, at most `seconds`."""
        (self._sessions if self._sessions.pending else self._judge).wait(seconds)

    def close(self) -> None:
        """End the sessions, and the verifier's judge."""
        self._sessions.close()
        self._judge.close()
