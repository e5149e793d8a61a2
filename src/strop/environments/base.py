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

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from strop.base.pieces import Piece
from strop.data.templates import Instruction

if TYPE_CHECKING:
    from strop.environments.session import Session, Tool

Count = Annotated[int, Field(ge=1)]
NOTHING = Instruction("", "")  # every prompt holds its mark


class Environment(Piece):
    """Opens sessions; its fields are the limits and whatever else a subclass needs.

    Sessions run in worker processes, many in each: plain functions in threads, `async` ones on its event loop. One that
    hangs, raises, floods or ends its process costs its own sample alone. The others of an ended process are rebuilt in
    a fresh one by playing their turns again.

    Fields:
        max_turns: turns of the policy; an observation after the last of them ends the trajectory (`Session.end`).
        history: what the policy reads of earlier turns where the chat template rewrites them (drops their thinking):
            `keep`, what was sampled, a trajectory being one sequence; `separate`, what the template makes of them, the
            turns behind that being sequences of their own, which share the trajectory's advantage.
        turn_tokens: most tokens of a turn, which then goes to the environment as it is; None: the trajectory's budget.
        reply_characters: most characters of one reply; a longer one is an error of the environment.
        step_seconds: most seconds of one `reset` or `step`; a longer one is an error of the environment.
        processes: how many; None: one less than the cores this process may use, at least 1 and at most 8.
        threads: plain functions that run at once in one process.
        memory_mib: address space of one process.
    """

    modules: ClassVar[tuple[str, ...]] = (
        "strop.environments.one_turn",
        "strop.environments.calculator",
        "strop.environments.python_tool",
        "strop.environments.search",
        "strop.environments.retry",
        "strop.environments.games",
        "strop.environments.outside",
        "strop.environments.openenv",
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
