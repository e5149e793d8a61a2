"""A fallible demonstrator of chain sums: what makes a small base policy worth sharpening.

Like a real base model it knows more than it does: now and then it works a sum out step by step and is mostly right, far
more often it guesses. pass@1 of a policy that imitates it is low, pass@k high, and reinforcement learning has something
to find.
"""

from __future__ import annotations

import random
from typing import Annotated

from pydantic import Field, model_validator

from strop.base.pieces import Settings
from strop.data.chain_sum import signed_terms

Share = Annotated[float, Field(ge=0, le=1)]


class FallibleDemonstrator(Settings):
    r"""Completions of chain sums by three strategies of different reliability.

    Example, for `3+5-2=` (answer 6): a guess `\boxed{9}`, some steps `3+5=8 \boxed{4}`, every step
    `3+5=8 8-2=6 \boxed{6}`.

    Fields:
        guess: share of answers guessed outright, within `spread` of the truth.
        partial: share that works out some of the steps and guesses the rest; what is left works out every step.
        slip: how often a step's result is off by one.
        spread: how far a guess lies off at most.
    """

    guess: Share = 0.6
    partial: Share = 0.15
    slip: Share = 0.02
    spread: Annotated[int, Field(ge=1)] = 5

    @model_validator(mode="after")
    def _shares_add_up(self) -> FallibleDemonstrator:
        if self.guess + self.partial > 1:
            raise ValueError(f"guess={self.guess} and partial={self.partial} must not exceed 1 together")
        return self

    def turns(self, question: str, rng: random.Random, end: str) -> list[tuple[str, str]]:
        """What was read and written: the question, and one completion."""
        return [(question, self(question, rng))]

    def __call__(self, question: str, rng: random.Random) -> str:
        """One completion."""
        terms = signed_terms(question)
        steps = len(terms) - 1
        total, text = int(terms[0]), ""
        worked = self._steps_worked(steps, rng)
        for term in terms[1 : worked + 1]:
            result = total + int(term)
            if rng.random() < self.slip:
                result = abs(result + rng.choice((-1, 1)))
            text += f"{total}{term}={result} "
            total = result
        if worked < steps:
            rest = sum(int(term) for term in terms[worked + 1 :])
            total = abs(total + rest + rng.randint(-self.spread, self.spread))
        return f"{text}\\boxed{{{total}}}"

    def _steps_worked(self, steps: int, rng: random.Random) -> int:
        draw = rng.random()
        if draw < self.guess:
            return 0
        if draw < self.guess + self.partial and steps > 1:
            return rng.randint(1, steps - 1)
        return steps


CALL, CALL_END = '<tool_call>{"name": "calculator", "arguments": {"expression": "', '"}}</tool_call>'


class CallingDemonstrator(Settings):
    r"""Completions of chain sums too long to be worked out: mostly guesses, now and then what a calculator says.

    Example, for `345+678=` (answer 1023): a guess `\boxed{870}`; or a call of the calculator, which answers `1023`, and
    then `\boxed{1023}`.

    Fields:
        calls: share that calls the calculator.
        spread: how far a guess lies off at most.
    """

    calls: Share = 0.15
    spread: Annotated[int, Field(ge=1)] = 500

    def turns(self, question: str, rng: random.Random, end: str) -> list[tuple[str, str]]:
        """What was read and written in each turn, `end` being the token that ends one.

        What the calculator says is read, so that nobody imitates it.
        """
        result = sum(int(term) for term in signed_terms(question))
        if rng.random() >= self.calls:
            return [(question, f"\\boxed{{{abs(result + rng.randint(-self.spread, self.spread))}}}")]
        call = f"{CALL}{question.removesuffix('=')}{CALL_END}"
        return [(question, call), (f"{question}{call}{end}{result}", f"\\boxed{{{result}}}")]
