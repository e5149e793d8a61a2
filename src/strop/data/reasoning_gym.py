"""The generators of reasoning-gym (extra `gym`): a hundred tasks with scorers of their own.

A problem's `extra` says how to make it again, from which `verifiers.ReasoningGymScorer` scores a completion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, JsonValue, field_validator

from strop.base.imports import require
from strop.base.near import nearest
from strop.base.types import InputError, Problem
from strop.data.source import ProblemSource


class ReasoningGym(ProblemSource):
    """`size` problems of a reasoning-gym task: `ReasoningGym(task="chain_sum", parameters={"max_terms": 4})`."""

    task: str
    size: Annotated[int, Field(ge=1, le=10_000_000)] = 4096
    seed: int = 0
    parameters: dict[str, JsonValue] = {}

    @field_validator("parameters")
    @classmethod
    def _leave_fields_alone(cls, parameters: dict[str, JsonValue]) -> dict[str, JsonValue]:
        taken = {"size", "seed"} & set(parameters)
        if taken:
            raise ValueError(f"{' and '.join(sorted(taken))} belong beside parameters, not inside")
        return parameters

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
                # Some tasks have no one answer and score whatever they are given.
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


@lru_cache(maxsize=65_536)  # a few tasks do not make the same entry twice in a process: it is made once
def open_entry(dataset: Any, index: int) -> Any:
    """Entry `index` of what `open_task` gave: a dictionary with question, answer and metadata."""
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
