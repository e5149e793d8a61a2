"""A session: one trajectory in an environment, what it says, and the tools that it offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from strop.base.types import Message, Problem, Verdict

SEED = "environment_seed"  # in `Problem.extra`: the seed of every session of the problem


@dataclass(frozen=True)
class Reply:
    """The messages that an environment adds to the conversation, after which the policy has the next turn.

    Where the environment speaks first (`Environment.speaks_first`), the first of them are the trajectory's prompt, in
    which the model's chat template describes `tools`, given by their JSON schemas.

    `score` is the reward of the turn that is answered, any finite number; `TurnLevel` advantages alone read it.
    `malformed_calls` of tools in that turn are counted for the run's metrics.
    """

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    score: float = 0.0
    malformed_calls: int = 0


class Tool(NamedTuple):
    """A function that the policy may call; `parameters` is the JSON schema of its arguments, an object."""

    name: str
    description: str
    parameters: dict[str, Any]

    def schema(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        return {"type": "function", "function": self._asdict()}


class Unjudged(NamedTuple):
    """The trajectory ends, and the run's verifier judges the policy's last turn.

    `score` is the reward of that turn, see `Reply`; `malformed_calls` are counted for the run's metrics.
    """

    score: float = 0.0
    malformed_calls: int = 0


Outcome: TypeAlias = Reply | Verdict | Unjudged


class Session(ABC):
    """One trajectory in an environment. Every method may be `async`."""

    def reset(self, problem: Problem, seed: int) -> Awaitable[str | Reply | None] | str | Reply | None:
        """Begin: equal problems and seeds must give equal sessions. Called once, before the first step.

        Returns:
            What the environment says first. It is read where problems are made from it (`FromEnvironment`); in training
            the problem's prompt has said it already. One that speaks first gives its prompt.
        """
        return None

    @abstractmethod
    def step(self, reply: str) -> Outcome | None | Awaitable[Outcome | None]:
        """Take the policy's turn (special tokens left out).

        Returns:
            A `Reply`; a `Verdict`, which ends the trajectory; or `Unjudged`, by which it ends too, and the run's
            verifier judges this turn. None is `Unjudged` without a score.
        """

    def end(self, reply: str) -> Verdict | Awaitable[Verdict | None] | None:
        """The trajectory ends without a verdict, because its turns or its tokens are spent.

        Args:
            reply: what the policy had sampled of the turn that was cut off; empty where it had no turn left.

        Returns:
            A verdict; None: the run's verifier judges the policy's last turn.
        """
        return None

    def close(self) -> Awaitable[None] | None:
        """The trajectory has ended, or is not wanted any more."""
        return None
