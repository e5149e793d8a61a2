"""The environment family: several turns on a problem, with tools or without.

    session = Environment.open()
    session.reset(problem, seed=3)
    session.step("<tool_call>…</tool_call>")   # Reply(messages): what the environment says; the next turn follows
    session.step("It is \\boxed{46}")          # a Verdict; or None: the run's verifier judges this turn

An environment speaks text. How its messages become tokens is the business of `tokens`; the loop puts them behind the
sampled tokens exactly as these are. What the policy caused scores 0 (`wrong`, `unparsed`); what fails in the
environment itself is `error`, which is never a reward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import Field

from strop.base.pieces import Piece
from strop.base.types import Message, Problem, Verdict
from strop.data.templates import Instruction

SEED = "environment_seed"  # in `Problem.extra`: the seed of every session of the problem


@dataclass(frozen=True)
class Reply:
    """The messages that an environment adds to the conversation, after which the policy has the next turn.

    Where the environment speaks first (`Environment.speaks_first`), the first of them are the trajectory's prompt, in
    which the model's chat template describes `tools`, given by their JSON schemas.

    `score` is the reward of the turn that is answered, any finite number; only `TurnLevel` advantages read it.
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


Count = Annotated[int, Field(ge=1)]
NOTHING = Instruction("", "")  # every prompt holds its mark


class Environment(Piece):
    """Opens sessions; its fields are the limits and whatever else a subclass needs.

    Sessions run in worker processes, many in each: plain functions in threads, `async` ones on its event loop. One that
    hangs, raises, floods or ends its process costs only its own sample. The others of an ended process are rebuilt in
    a fresh one by playing their turns again.

    Fields:
        max_turns: turns of the policy; an observation after the last of them ends the trajectory (`Session.end`).
        history: what the policy reads of earlier turns where the chat template rewrites them (drops their thinking):
            `keep`, what was sampled, a trajectory being one sequence; `separate`, what the template makes of them, the
            turns behind that being separate sequences, which share the trajectory's advantage.
        turn_tokens: most tokens of a turn, which then goes to the environment as it is; None: the trajectory's budget.
        reply_characters: most characters of one reply; a longer one is an error of the environment.
        step_seconds: most seconds of one `reset` or `step`; a longer one is an error of the environment.
        processes: how many; None: one less than the cores this process may use, at least 1 and at most 8.
        threads: plain functions that run at once in one process.
        memory_mib: address space of one process.
    """

    modules: ClassVar[tuple[str, ...]] = (
        "strop.environments.games",
        "strop.environments.tools",
        "strop.environments.outside",
        "strop.environments.agent",
    )

    max_turns: Count = 8
    history: Literal["keep", "separate"] = "keep"
    turn_tokens: Count | None = None
    reply_characters: Count = 20_000
    step_seconds: Annotated[float, Field(gt=0)] = 30.0
    processes: Count | None = None
    threads: Count = 64
    memory_mib: Count = 8192

    @property
    def inline(self) -> bool:
        """Whether its sessions are so quick and safe that they run in the loop's own process."""
        return False

    @property
    def repeatable(self) -> bool:
        """Whether equal problems, seeds and turns give equal sessions, so that a lost one can be played again."""
        return True

    @property
    def speaks_first(self) -> bool:
        """Whether `Session.reset` gives the prompt (a `Reply`), whatever the problem's own prompt is."""
        return False

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What the policy may call; described in the prompt by the model's chat template."""
        return ()

    @property
    def takes_any_problem(self) -> bool:
        """Whether problems that were not made for it, a benchmark's, can be put in it: it offers tools, no more."""
        return bool(self.tools) and not self.speaks_first

    def instruction(self, asked: Instruction | None) -> Instruction | None:
        """What a prompt should say: what was `asked` by the verifier, and which tools there are."""
        tools = tuple(tool.schema() for tool in self.tools)
        return (asked or NOTHING)._replace(tools=tools) if tools else asked

    @abstractmethod
    def open(self) -> Session:
        """A session that has not begun."""
