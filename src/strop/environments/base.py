"""The environment family: several turns on a problem, with tools or without.

    session = Environment.open()
    session.reset(problem, seed=3)
    session.step("<tool_call>…</tool_call>")   # Reply(messages): what the environment says; the next turn follows
    session.step("It is \\boxed{46}")          # a Verdict; or None: the run's verifier judges this turn

Environments exchange text; `environments.tokens` renders their messages as tokens, which the loop appends to the
sampled tokens. Failures that the policy caused score 0 (`wrong`, `unparsed`); a failure of the environment is `error`,
which is never a reward.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import Field, SerializeAsAny

from strop.base.pieces import Piece
from strop.base.seeds import derive
from strop.base.types import InputError, Message, Problem, Verdict
from strop.data.source import ProblemSource
from strop.data.templates import Instruction

SEED = "environment_seed"  # in `Problem.extra`: the seed of every session of the problem


@dataclass(frozen=True)
class Reply:
    """The messages that an environment adds to the conversation; the policy has the next turn.

    If the environment speaks first (`Environment.speaks_first`), its first reply is the trajectory's prompt; the
    model's chat template then describes `tools`, given as JSON schemas.

    `score` is the reward of the answered turn, any finite number; only `TurnLevel` advantages use it.
    `malformed_calls` counts malformed tool calls in that turn, for the metrics.
    """

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    score: float = 0.0
    malformed_calls: int = 0


class Tool(NamedTuple):
    """A function that the policy may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]

    def schema(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        return {"type": "function", "function": self._asdict()}


class Unjudged(NamedTuple):
    """The trajectory ends, and the run's verifier judges the policy's last turn.

    `score` and `malformed_calls` are those of that turn, see `Reply`.
    """

    score: float = 0.0
    malformed_calls: int = 0


Outcome: TypeAlias = Reply | Verdict | Unjudged


class Session(ABC):
    """One trajectory in an environment. All methods may be `async`."""

    def reset(self, problem: Problem, seed: int) -> Awaitable[str | Reply | None] | str | Reply | None:
        """Begin: equal problems and seeds must give equal sessions. Called once, before the first step.

        Returns:
            The environment's first text, which `FromEnvironment` uses as the problem's prompt. An environment that
            speaks first returns a `Reply` with the prompt.
        """
        return None

    @abstractmethod
    def step(self, reply: str) -> Outcome | None | Awaitable[Outcome | None]:
        """Answer the policy's turn (without special tokens).

        Returns:
            A `Reply`; a `Verdict`, which ends the trajectory; or `Unjudged`, which ends it and leaves this turn to the
            run's verifier. None means `Unjudged()`.
        """

    def end(self, reply: str) -> Verdict | Awaitable[Verdict | None] | None:
        """The trajectory ends without a verdict, because its turns or tokens are used up.

        Args:
            reply: the truncated turn; empty if no turn was left.

        Returns:
            A verdict; None: the run's verifier judges the policy's last turn.
        """
        return None

    def close(self) -> Awaitable[None] | None:
        """Release resources: the trajectory has ended or was dropped."""
        return None


Count = Annotated[int, Field(ge=1)]
NOTHING = Instruction("", "")  # adds no text to a prompt


class Environment(Piece):
    """Opens sessions; its fields are limits and the settings of a subclass.

    Sessions run in worker processes, many in each: plain functions in threads, `async` ones on its event loop. A
    session that hangs, raises, floods or ends its process loses only its own sample. The others are rebuilt in a new
    process by playing their turns again.

    Fields:
        max_turns: turn limit of the policy; a reply to the last turn ends the trajectory (`Session.end`).
        history: how the policy reads earlier turns if the chat template rewrites them (drops their thinking): `keep`,
            as they were sampled, in one sequence; `separate`, as the template renders them, in separate sequences that
            share the trajectory's advantage.
        turn_tokens: token limit of one turn, which goes to the environment without being truncated; None: only the
            trajectory's budget.
        reply_characters: most characters of one reply; a longer one is an error of the environment.
        step_seconds: most seconds of one `reset` or `step`; a longer one is an error of the environment.
        processes: number of processes; None: one less than the cores of this process, between 1 and 8.
        threads: plain functions that run at once in one process.
        memory_mib: address space of one process.
    """

    modules: ClassVar[tuple[str, ...]] = (
        "strop.environments.tools",
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
        """Whether its sessions are quick and safe enough to run in the loop's process."""
        return False

    @property
    def repeatable(self) -> bool:
        """Whether equal problems, seeds and turns give equal sessions, so that a lost session can be played again."""
        return True

    @property
    def speaks_first(self) -> bool:
        """Whether `Session.reset` returns the prompt (a `Reply`) instead of the problem's prompt."""
        return False

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the policy may call; the chat template describes them in the prompt."""
        return ()

    @property
    def takes_any_problem(self) -> bool:
        """Whether it works with any problem, such as a benchmark's: it only offers tools."""
        return bool(self.tools) and not self.speaks_first

    def instruction(self, asked: Instruction | None) -> Instruction | None:
        """The instruction `asked` for by the verifier, with the tools added."""
        tools = tuple(tool.schema() for tool in self.tools)
        return (asked or NOTHING)._replace(tools=tools) if tools else asked

    @abstractmethod
    def open(self) -> Session:
        """A new session."""


AT_ONCE = 64  # sessions that are open at once


class FromEnvironment(ProblemSource):
    """`count` problems, one for each seed; in training, a problem's sessions begin with the same seed.

    Fields:
        environment: usually the same as the run's.
        instruction: text before the environment's first text.
        part: name of a set of seeds; use another one for held-out problems.
    """

    environment: SerializeAsAny[Environment]
    count: Annotated[int, Field(ge=1)] = 256
    instruction: str = ""
    part: str = "train"
    seed: int = 0

    @property
    def label(self) -> str:
        return f"{self.environment.piece_name()} ({self.part})"

    def problems(self) -> Iterator[Problem]:
        """The problems in the order of their seeds, each question once.

        Raises:
            InputError: the environment's `reset` returns no text.
        """
        seen: set[str] = set()
        for start in range(0, self.count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, self.count))
            for problem in asyncio.run(self._opened(numbers)):
                if problem.question not in seen:
                    seen.add(problem.question)
                    yield problem

    async def _opened(self, numbers: range) -> list[Problem]:
        return await asyncio.gather(*map(self._one, numbers))

    async def _one(self, number: int) -> Problem:
        drawn = derive(self.seed, "problem", self.part, number) % 2**31  # many libraries need 31 bits
        name = f"{self.environment.piece_name()}-{self.part}-{number}"
        problem = Problem(name, "", None, domain="environment", source=self.label, extra={SEED: drawn})
        session = self.environment.open()
        first = session.reset(problem, drawn)
        said = await first if inspect.isawaitable(first) else first
        closing = session.close()
        if inspect.isawaitable(closing):
            await closing
        if not isinstance(said, str) or not said:
            raise InputError(f"{self.label}: its reset returns no text; set another data.source")
        prompt = f"{self.instruction}\n{said}" if self.instruction else said
        return Problem(name, prompt, None, domain="environment", source=self.label, extra={SEED: drawn})
