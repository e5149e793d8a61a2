"""Checking an environment: it is played with replies from a script, twice from each seed."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from strop.base.imports import allow_module
from strop.base.types import InputError, Problem, Status, Verdict
from strop.environments.base import Environment
from strop.environments.outside import OutsideClass
from strop.environments.session import Outcome, Reply, Tool, Unjudged
from strop.environments.sessions import Host, Turn

SLOW_SECONDS = 1.0
UNJUDGED, UNFINISHED = "unjudged", "unfinished"  # ends of sessions beside the statuses of verdicts
_TALK = ("", "I do not know.", "7", "\\boxed{7}", "up", "<tool_call>", '{"name": "none", "parameters": {}}')


class Checked(NamedTuple):
    """What was found: complaints, one line each, and how many sessions came to each end: the status of a verdict of the
    environment's, `UNJUDGED` where the run's verifier has to judge, `UNFINISHED` where the turns were not enough."""

    complaints: tuple[str, ...]
    sessions: int
    turns: int
    slowest: float
    ends: dict[str, int]


def environment_named(name: str) -> Environment:
    """An environment by its name, `module:Class` (a piece, or a class in TRL's shape), or as JSON with its settings.

    Raises:
        InputError: there is none, or it cannot be set so.
    """
    family: TypeAdapter[Environment] = TypeAdapter(Environment)
    given: Any = json.loads(name) if name.lstrip().startswith("{") else {"piece": name}
    module, colon, _ = str(given.get("piece", "")).partition(":")
    try:
        if colon:
            allow_module(module)
        return family.validate_python(given)
    except ValidationError as first:
        if not colon:
            raise InputError(f"{name}: {first.errors()[0]['msg']}") from first
        try:
            return OutsideClass(cls=given["piece"])
        except ValidationError as error:
            raise InputError(f"{name}: {error.errors()[0]['msg']}") from error


def check(environment: Environment, problem: Problem, seeds: int = 4) -> Checked:
    """Play `seeds` sessions twice each, in this process."""
    complaints: list[str] = []
    ends: dict[str, int] = {}
    turns, slowest = 0, 0.0
    for seed in range(seeds):
        played = [asyncio.run(_played(environment, problem, seed, ("first", "again")[which])) for which in range(2)]
        if [outcome for outcome, _ in played[0]] != [outcome for outcome, _ in played[1]]:
            complaints.append(f"seed {seed}: the same replies were answered otherwise the second time")
        for outcome, seconds in played[0]:
            turns, slowest = turns + 1, max(slowest, seconds)
            if isinstance(outcome, Verdict):
                complaints += _of_verdict(outcome, seed)
        last = played[0][-1][0]
        without = UNJUDGED if isinstance(last, Unjudged) else UNFINISHED
        end = last.status.value if isinstance(last, Verdict) else without
        ends[end] = ends.get(end, 0) + 1
    if slowest > SLOW_SECONDS:
        complaints.append(f"a step took {slowest:.1f} s; thousands of them wait for each other")
    return Checked(tuple(dict.fromkeys(complaints)), seeds, turns, slowest, ends)


def _of_verdict(verdict: Verdict, seed: int) -> list[str]:
    if verdict.status is Status.ERROR:
        return [f"seed {seed}: {verdict.detail}"]
    if not (math.isfinite(verdict.score) and 0.0 <= verdict.score <= 1.0):
        return [f"seed {seed}: a score of {verdict.score}; it lies in [0, 1]"]
    return []


async def _played(environment: Environment, problem: Problem, seed: int, name: str) -> list[tuple[Outcome, float]]:
    host, chance = Host(environment), random.Random(seed)
    found: list[tuple[Outcome, float]] = []
    for _ in range(environment.max_turns + 1):
        begin = time.perf_counter()
        outcome = await host.turn(Turn((name, seed), problem, seed, _reply(environment.tools, chance), False))
        found.append((outcome, time.perf_counter() - begin))
        if not isinstance(outcome, Reply):
            break
    host.close()
    await asyncio.sleep(0)
    return found


def _reply(tools: Sequence[Tool], chance: random.Random) -> str:
    """Talk, or a call whose arguments fit the schema."""
    if not tools or chance.random() < 0.25:
        return chance.choice(_TALK)
    tool = chance.choice(tools)
    arguments = {name: _value(schema, chance) for name, schema in tool.parameters.get("properties", {}).items()}
    return f"<tool_call>{json.dumps({'name': tool.name, 'arguments': arguments})}</tool_call>"


def _value(schema: dict[str, Any], chance: random.Random) -> Any:
    values: dict[str, Any] = {
        "integer": chance.randint(-2, 9), "number": chance.random(), "boolean": chance.random() < 0.5,
        "object": {}, "array": [], "null": None,
    }  # fmt: skip
    return values.get(str(schema.get("type")), chance.choice(("1 + 1", "a word", "")))
