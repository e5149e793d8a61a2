"""Problems from an environment, whose first text is the prompt."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, SerializeAsAny

from strop.base.seeds import derive
from strop.base.types import InputError, Problem
from strop.data.source import ProblemSource
from strop.environments.base import SEED, Environment

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
