"""Sources that read no file: chain sums, the tasks of reasoning-gym (extra `gym`), and mixtures of other sources."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, SerializeAsAny, model_validator

from strop.base.imports import require
from strop.base.near import nearest
from strop.base.types import InputError, Problem
from strop.data.source import ProblemSource

MAX_DRAWS_PER_PROBLEM = 200


class ChainSum(ProblemSource):
    """`count` different chain sums such as `3+5-2+7+1=`, which a tiny model can learn.

    The same fields give the same sums on every machine. The reference is the result as text; the running sum never
    falls below zero.

    Fields:
        part: `train` and `held_out` draw from disjoint sets of questions, separated by a hash of their text, so that
            models trained on one can be tested on the other whatever the seeds; `all` draws from both.
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
    """The part of a question, which depends only on its text: one in eight is held out."""
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


class ReasoningGym(ProblemSource):
    """`size` problems of a reasoning-gym task: `ReasoningGym(task="chain_sum", parameters={"max_terms": 4})`.

    `Problem.extra` says how to make the problem again; `verifiers.ReasoningGymScorer` scores completions with it.
    """

    task: str
    size: Annotated[int, Field(ge=1, le=10_000_000)] = 4096
    seed: int = 0
    parameters: dict[str, JsonValue] = {}

    @property
    def label(self) -> str:
        return f"reasoning-gym:{self.task}"

    def problems(self) -> Iterator[Problem]:
        """The task's entries 0 … size - 1.

        Raises:
            InputError: the package is absent, or it has no such task or parameter.
        """
        dataset = open_task(self.task, self.size, self.seed, self.parameters)
        recipe = {"task": self.task, "size": self.size, "seed": self.seed, "parameters": self.parameters}
        for index in range(self.size):
            entry = open_entry(dataset, index)
            answer = entry["answer"]
            yield Problem(
                id=f"{self.task}-{self.seed}-{index}",
                prompt=entry["question"],
                # Some tasks have no single answer and score every response.
                reference={"scored_by": self.label} if answer is None else answer,
                domain="reasoning-gym",
                source=self.label,
                extra={**recipe, "index": index},
            )


def open_task(task: str, size: int, seed: int, parameters: Mapping[str, Any]) -> Any:
    """The `ProceduralDataset` of a task, made once for the same arguments.

    Raises:
        InputError: the package is absent, or it has no such task or parameter.
    """
    return _open_task(task, size, seed, json.dumps(dict(parameters), sort_keys=True))


@lru_cache(maxsize=65_536)  # some tasks give another entry at the second call
def open_entry(dataset: Any, index: int) -> Any:
    """Entry `index` of a task from `open_task`: a dictionary with question, answer and metadata."""
    return dataset[index]


@lru_cache(maxsize=64)
def _open_task(task: str, size: int, seed: int, parameters: str) -> Any:
    package = require("reasoning_gym", extra="gym", purpose="reasoning-gym tasks")
    known = package.factory.DATASETS
    if task not in known:
        raise InputError(f"reasoning-gym has no task {task!r}; {nearest(task, known)}")
    try:
        return package.create_dataset(task, **{**json.loads(parameters), "size": size, "seed": seed})
    except (TypeError, ValueError, AssertionError) as error:
        raise InputError(f"reasoning-gym:{task}: parameters {parameters} are refused ({error})") from error


class Mixture(ProblemSource):
    """The problems of several sources, one after the other; `data.weights` sets how often each domain is drawn.

    Fields:
        sources: at least one.
        repeats: how many times per epoch the problems of each source occur; empty means once. The ids of repetitions
            end in `#2`, `#3` …
        domains: the domain of each source's problems; empty keeps their domains. With it the ids are `DOMAIN/ID`, so
            that sources with equal ids can be mixed.
    """

    sources: Annotated[tuple[SerializeAsAny[ProblemSource], ...], Field(min_length=1)]
    repeats: tuple[Annotated[int, Field(ge=1)], ...] = ()
    domains: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_domain_a_source(self) -> Self:
        if self.domains and len(self.domains) != len(self.sources):
            raise ValueError(f"{len(self.sources)} sources and {len(self.domains)} domains; name one for each, or none")
        if self.repeats and len(self.repeats) != len(self.sources):
            raise ValueError(f"{len(self.sources)} sources and {len(self.repeats)} repeats; give one for each, or none")
        return self

    @property
    def label(self) -> str:
        """The labels of the sources."""
        return " + ".join(source.label for source in self.sources)

    def problems(self) -> Iterator[Problem]:
        """The problems of the first source, then those of the next one."""
        for number, source in enumerate(self.sources):
            domain = self.domains[number] if self.domains else None
            for time in range(1, (self.repeats[number] if self.repeats else 1) + 1):
                for problem in source.problems():
                    identity = problem.id if domain is None else f"{domain}/{problem.id}"
                    again = f"#{time}" if time > 1 else ""
                    yield replace(problem, id=f"{identity}{again}", domain=domain or problem.domain)
