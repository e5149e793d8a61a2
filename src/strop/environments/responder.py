"""An environment as the loop sees it: completions go in, observations and verdicts come out."""

from __future__ import annotations

from dataclasses import dataclass, field

from strop.base.seeds import derive
from strop.base.types import Completion, InputError, Observation, Problem, Verdict
from strop.environments.base import SEED, Environment, Reply, Unjudged
from strop.environments.pool import SessionPool
from strop.environments.sessions import InlineSessions, Sessions, Turn, failed, with_turns
from strop.environments.tokens import Chat, TurnTokens
from strop.verifiers.protocol import Judge, Key, Responder


@dataclass(frozen=True, eq=False)
class Play:
    """An environment, and how its messages become tokens of the model that plays in it.

    Attributes:
        longest_prompt: most tokens of a prompt that the environment gives, where it speaks first; None: any.

    Raises:
        InputError: `history` is separate, and the chat template cannot be used so.
    """

    environment: Environment
    tokens: TurnTokens
    longest_prompt: int | None = None

    def __post_init__(self) -> None:
        self.speaker()

    def responder(self, judge: Judge) -> EnvironmentJudge:
        """The environment opened; `judge` is of the run's verifier, and closed with it."""
        sessions = InlineSessions(self.environment) if self.environment.inline else SessionPool(self.environment)
        return EnvironmentJudge(sessions, self, judge)

    def speaker(self) -> Chat | TurnTokens:
        """What turns the messages of one trajectory into observations."""
        return Chat(self.tokens) if self.environment.history == "separate" else self.tokens

    def notes(self) -> list[str]:
        """Warnings about the chat template, one line each."""
        return self.tokens.notes(self.environment.history == "separate")


@dataclass
class _Trajectory:
    """What is known of a sample until its verdict: its last turn, where it had one, and what was said to its turns."""

    problem: Problem
    speaker: Chat | TurnTokens
    turn: Completion | None = None
    said: list[Reply | Unjudged] = field(default_factory=list)


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
        self._play = play
        self._judge = judge
        self._open: dict[Key, _Trajectory] = {}

    @property
    def pending(self) -> int:
        """Turns whose answer was not yet polled."""
        return self._sessions.pending + self._judge.pending

    def begin(self, key: Key, problem: Problem, seed: int) -> None:
        """Ask the session of `key` for its prompt."""
        self._open[key] = _Trajectory(problem, self._play.speaker())
        self._sessions.take(Turn(key, problem, self._drawn(key, problem, seed), None, False))

    def submit(self, key: Key, problem: Problem, completion: Completion, seed: int = 0) -> None:
        """Hand a turn to the session of `key`, which begins with the first one."""
        if key not in self._open:
            self._open[key] = _Trajectory(problem, self._play.speaker())
        self._open[key].turn = completion
        drawn = self._drawn(key, problem, seed)
        self._sessions.take(Turn(key, problem, drawn, completion.text, completion.truncated))

    def _drawn(self, key: Key, problem: Problem, seed: int) -> int:
        """The session's seed."""
        drawn: int = problem.extra.get(SEED, derive(seed, "environment", key[1]))
        return drawn

    def poll(self) -> list[tuple[Key, Verdict | Observation]]:
        """Observations and verdicts that are there."""
        found: list[tuple[Key, Verdict | Observation]] = []
        for key, outcome in self._sessions.poll():
            if key not in self._open:  # forgotten
                continue
            trajectory = self._open[key]
            if not isinstance(outcome, Verdict) and trajectory.turn is not None and outcome != Unjudged():
                trajectory.said.append(outcome)
            answer = self._said(trajectory, outcome) if isinstance(outcome, Reply) else outcome
            if isinstance(outcome, Reply) and isinstance(answer, Verdict):
                self._sessions.forget(key)
            if isinstance(answer, Unjudged):
                assert trajectory.turn is not None, "a session ends with a turn"
                self._judge.submit(key, trajectory.problem, trajectory.turn)
            else:
                found.append((key, self._whole(key, answer) if isinstance(answer, Verdict) else answer))
        return [*found, *((key, self._whole(key, verdict)) for key, verdict in self._judge.poll())]

    def _whole(self, key: Key, verdict: Verdict) -> Verdict:
        """The verdict of a trajectory, with what was said to its turns; the trajectory is over."""
        trajectory = self._open.pop(key, None)
        said = [] if trajectory is None else trajectory.said
        return with_turns(verdict, [one.score for one in said], sum(one.malformed_calls for one in said))

    def _said(self, trajectory: _Trajectory, reply: Reply) -> Observation | Verdict:
        """What the environment says as tokens; where they cannot be had, its own sample is an error."""
        most = self._play.longest_prompt
        try:
            if trajectory.turn is not None:
                return trajectory.speaker.observation(trajectory.turn, reply.messages)
            prompt = self._play.tokens.prompt(reply.messages, reply.tools)
        except InputError as error:
            return failed(f"the environment's messages cannot be rendered: {error}")
        if most is not None and len(prompt.token_ids) > most:
            return failed(f"the environment's prompt has {len(prompt.token_ids)} tokens of {most}")
        return prompt

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
