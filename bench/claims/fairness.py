"""What the arms of a claim differ in, and whether they are measured alike: read from their configurations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from bench.claims.arms import ARMS

from strop.config.schema import RunConfig, evaluation_sampling

# What carries out a run and says when it is measured: no part of what is tried.
TECHNICAL = ("recipe", "engine.slots", "evaluation.every")


@cache
def config(arm: str) -> RunConfig:
    """What an arm runs with seed 0."""
    return ARMS[arm].config(0)


def differences(arms: Sequence[str]) -> tuple[str, ...]:
    """The settings that are not alike in all of the arms; a piece of another kind is one setting."""
    trees = [config(arm).model_dump(mode="json") for arm in arms]
    found = {key for tree in trees[1:] for key in _differing(trees[0], tree, "")}
    return tuple(sorted(key for key in found if key not in TECHNICAL))


def _differing(one: Any, other: Any, path: str) -> list[str]:
    if one == other:
        return []
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        one, other = ({str(place): value for place, value in enumerate(values)} for values in (one, other))
    sections = isinstance(one, dict) and isinstance(other, dict) and one.get("piece") == other.get("piece")
    if not sections:
        return [path]
    return [
        key
        for name in one.keys() | other.keys()
        for key in _differing(one.get(name), other.get(name), f"{path}.{name}" if path else name)
    ]


def measured_alike(arms: Sequence[str]) -> bool:
    """Whether the arms are evaluated on the same problems, as often each, and their samples drawn alike."""
    return len({_measurement(config(arm)) for arm in arms}) == 1


def _measurement(run: RunConfig) -> str:
    drawn = run.evaluation.samples_per_problem, evaluation_sampling(run)
    return repr((run.data.held_out, run.data.template, run.verifier, *drawn))
