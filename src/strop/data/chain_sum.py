"""Chain sums such as `3+5-2+7+1=`: problems without end, without a download, that a tiny model can learn."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from strop.base.pieces import Settings
from strop.base.types import InputError, Problem
from strop.data.source import ProblemSource

MAX_DRAWS_PER_PROBLEM = 200


class ChainSum(ProblemSource):
    """`count` different chain sums, the same for the same fields on every machine.

    The prompt is `3+5-2+7+1=`, the reference its result as text; the running sum never falls below zero.

    Fields:
        part: `train` and `held_out` draw from two disjoint sets of questions, told apart by a hash of their text, so
            that models trained on one can be tested on the other whatever the seeds; `all` draws from both.
    """

    count: Annotated[int, Field(ge=1, le=10_000_000)] = 4096
    terms: Annotated[int, Field(ge=1)] = 5
    digits: Annotated[int, Field(ge=1, le=9)] = 1
    signs: Literal["+", "+-"] = "+-"
    part: Literal["all", "train", "held_out"] = "all"
    seed: int = 0

    @property
    def label(self) -> str:
        return f"chain sums of {self.terms} terms with {self.digits} digit{'s' * (self.digits > 1)}"

    def problems(self) -> Iterator[Problem]:
        """The sums in the order in which they are drawn, each text once.

        Raises:
            InputError: there are fewer different sums than `count`.
        """
        rng = random.Random(self.seed)
        seen: set[str] = set()
        for _ in range(self.count * MAX_DRAWS_PER_PROBLEM):
            question = draw_question(rng, self.terms, self.digits, self.signs)
            if question in seen or self.part not in ("all", part_of(question)):
                continue
            identity, answer = f"chain_sum-{len(seen)}", str(solve(question))
            yield Problem(id=identity, prompt=question, reference=answer, source="chain_sum", verbatim=True)
            seen.add(question)
            if len(seen) == self.count:
                return
        raise InputError(
            f"{self.label}: only {len(seen)} different ones were found and count is {self.count}; "
            "raise terms or digits, or lower count"
        )


def part_of(question: str) -> Literal["train", "held_out"]:
    """The part a question belongs to by its text alone: one in eight is held out."""
    return "held_out" if hashlib.blake2b(question.encode(), digest_size=1).digest()[0] < 32 else "train"


def draw_question(rng: random.Random, terms: int, digits: int = 1, signs: str = "+-") -> str:
    """One chain sum; a minus is drawn only where the running sum stays at zero or above."""
    low, high = (1 if digits == 1 else 10 ** (digits - 1)), 10**digits - 1
    total = rng.randint(low, high)
    text = str(total)
    for _ in range(terms - 1):
        term = rng.randint(low, high)
        sign = rng.choice(signs) if term <= total else "+"
        total += term if sign == "+" else -term
        text += f"{sign}{term}"
    return text + "="


def signed_terms(question: str) -> tuple[str, ...]:
    """The terms with their signs: `"3+5-2="` gives `("3", "+5", "-2")`."""
    return tuple(re.findall(r"[+-]?[0-9]+", question))


def solve(question: str) -> int:
    """The result of a chain sum."""
    return sum(int(term) for term in signed_terms(question))


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
