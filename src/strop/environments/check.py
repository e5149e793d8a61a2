"""Checks an environment by playing each seed twice with scripted replies (`strop env check`)."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from strop.base.imports import allow_module, found_by_name
from strop.base.pieces import complaint
from strop.base.types import InputError, Problem, Verdict, first_line
from strop.environments.base import Environment, Outcome, Reply, Tool, Unjudged
from strop.environments.outside import OutsideClass
from strop.environments.sessions import SessionHost, Turn
from strop_verify.verdict import Status

SLOW_SECONDS = 1.0
_ENDS = {True: "for the verifier to judge", False: "not at all"}
_TALK = ("", "I do not know.", "7", "\\boxed{7}", "up", "<tool_call>", '{"name": "none", "parameters": {}}')


class Checked(NamedTuple):
    """The result: complaints, one line each, and counts of the played sessions."""

    complaints: tuple[str, ...]
    sessions: int
    turns: int
    slowest: float
    ends: dict[str, int]


def written(name: str) -> dict[str, Any]:
    """The configuration of an environment given by its name, as `module:Class` (a piece, or a class in TRL's shape; the
    module or its file is imported), or as JSON.

    Raises:
        InputError: the JSON is malformed, or the module cannot be imported.
    """
    given = _object(name) if name.lstrip().startswith("{") else {"piece": name}
    module, colon, kind = str(given.get("piece", "")).partition(":")
    if not colon:
        return given
    try:
        allow_module(module)
        own = f"{Path(module).stem if module.endswith('.py') else module}:{kind}"
        found = found_by_name(own, "class")
    except (InputError, ValueError) as error:
        raise InputError(f"{name}: {str(error).removeprefix(f'--import {module}: ')}") from error
    if inspect.isclass(found) and issubclass(found, Environment):
        return {**given, "piece": own}
    return {**given, "piece": OutsideClass.piece_name(), "cls": own}


def _object(text: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text)  # it begins with a brace
    except (ValueError, RecursionError) as error:
        raise InputError(f"{text}: this is no JSON: {first_line(error)}") from error
    return found


def environment_of(given: dict[str, Any]) -> Environment:
    """The environment of a configuration.

    Raises:
        InputError: there is no such environment, or a setting is invalid; the message names the setting.
    """
    family: TypeAdapter[Environment] = TypeAdapter(Environment)
    try:
        return family.validate_python(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, ("environment", *first["loc"])))
        name = given.get("cls", given.get("piece", "an environment"))
        if first["type"] == "missing":
            raise InputError(f"{name}: {key} is missing; give it with --set {key}=…") from error
        says_it = not first["loc"] or first["input"] == name or isinstance(first["input"], dict)
        where = "" if says_it else f"{key}={first['input']!r}: "
        raise InputError(f"{name}: {where}{complaint(first)}") from error


def check(environment: Environment, problem: Problem, seeds: int = 4) -> Checked:
    """Play `seeds` sessions twice each, in this process."""
    complaints: list[str] = []
    ends: dict[str, int] = {}
    turns, slowest = 0, 0.0
    for seed in range(seeds):
        played = [asyncio.run(_played(environment, problem, seed, ("first", "again")[which])) for which in range(2)]
        if [outcome for outcome, _ in played[0]] != [outcome for outcome, _ in played[1]]:
            complaints.append(f"seed {seed}: equal replies were answered differently the second time")
        for outcome, seconds in played[0]:
            turns, slowest = turns + 1, max(slowest, seconds)
            if isinstance(outcome, Verdict):
                complaints += _of_verdict(outcome, seed)
        last = played[0][-1][0]
        end = last.status.value if isinstance(last, Verdict) else _ENDS[isinstance(last, Unjudged)]
        ends[end] = ends.get(end, 0) + 1
    if slowest > SLOW_SECONDS:
        complaints.append(f"a step took {slowest:.1f} s, and a batch has thousands of steps")
    return Checked(tuple(dict.fromkeys(complaints)), seeds, turns, slowest, ends)


def _of_verdict(verdict: Verdict, seed: int) -> list[str]:
    if verdict.status is Status.ERROR:
        return [f"seed {seed}: {verdict.detail}"]
    if not (math.isfinite(verdict.score) and 0.0 <= verdict.score <= 1.0):
        return [f"seed {seed}: a score of {verdict.score}; it lies in [0, 1]"]
    return []


async def _played(environment: Environment, problem: Problem, seed: int, name: str) -> list[tuple[Outcome, float]]:
    host, chance = SessionHost(environment), random.Random(seed)
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
    """Plain text, or a call whose arguments fit the schema."""
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
