"""How far verifiers agree on the same rollouts, by how often each problem counts as solved."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from strop.base import rollout_table
from strop.base.types import InputError, Problem
from strop.data.rows import JsonLines
from strop.verifiers.base import Verifier
from strop.verifiers.judges import judged


class Sampled(NamedTuple):
    """A rollout to judge again."""

    problem: Problem
    text: str
    truncated: bool


def compare_verifiers(verifiers: Sequence[Verifier], rollouts: Sequence[Sampled]) -> dict[str, Any]:
    """Judge every rollout with every verifier, and count.

    Returns:
        `problems` and `rollouts`: how many there are; `histograms`: for each verifier by its name, how many problems
        count as solved 0, 1, 2, … times (Skywork-OR1, Figure 27); `failures`: how many rollouts each could not judge
        (timeout, error); `disagreements`: rollouts that one verifier calls correct and another does not.

    Raises:
        InputError: fewer than two verifiers, or no rollout.
    """
    if len(verifiers) < 2:
        raise InputError("give two verifiers or more: --verifier Answer --verifier MathVerifier")
    if not rollouts:
        raise InputError("there is no rollout to judge")
    verdicts = dict(zip(_names(verifiers), [judged(verifier, rollouts) for verifier in verifiers], strict=True))
    groups: dict[str, list[int]] = defaultdict(list)
    for place, rollout in enumerate(rollouts):
        groups[rollout.problem.id].append(place)
    largest = max(map(len, groups.values()))
    histograms = {}
    for name, column in verdicts.items():
        solved = Counter(sum(column[place].passed for place in places) for places in groups.values())
        histograms[name] = [solved[times] for times in range(largest + 1)]
    return {
        "problems": len(groups),
        "rollouts": len(rollouts),
        "histograms": histograms,
        "failures": {name: sum(verdict.failed for verdict in column) for name, column in verdicts.items()},
        "disagreements": sum(len({one.passed for one in row}) > 1 for row in zip(*verdicts.values(), strict=True)),
    }


def _names(verifiers: Sequence[Verifier]) -> tuple[str, ...]:
    """The names of the pieces, numbered where one is given twice."""
    names = [verifier.piece_name() for verifier in verifiers]
    return tuple(
        name if names.count(name) == 1 else f"{name} {names[: place + 1].count(name)}"
        for place, name in enumerate(names)
    )


def named_verifier(text: str) -> Verifier:
    """A verifier by its name, or as JSON with its settings.

    Raises:
        InputError: there is no such verifier, or it cannot be set so.
    """
    family: TypeAdapter[Verifier] = TypeAdapter(Verifier)
    try:
        given: Any = json.loads(text) if text.lstrip().startswith("{") else {"piece": text}
        return family.validate_python(given)
    except json.JSONDecodeError as error:
        raise InputError(f"--verifier {text}: not valid JSON ({error.msg}, column {error.colno})") from error
    except ValidationError as error:
        raise InputError(f"--verifier {text}: {error.errors()[0]['msg']}") from error


def read_rollouts(path: Path) -> list[Sampled]:
    """The rollouts of a run folder, or of a file with one JSON object a line (problem_id, reference, completion).

    Raises:
        InputError: neither, or a line that lacks one of the three.
    """
    if path.is_dir():
        tables = sorted((path / "rollouts").glob("*.parquet"))
        read = ((str(table), rollout_table.read(table).to_pylist()) for table in tables)
        rows: list[tuple[str, Any]] = [(table, row) for table, found in read for row in found]
        if not rows:
            raise InputError(f"{path}: there are no rollouts in it")
    else:
        rows = [(row.where, row.columns) for row in JsonLines(path=str(path)).rows()]
    return [sampled(where, row) for where, row in rows]


def sampled(where: str, row: Any) -> Sampled:
    """The rollout of a row; raises `InputError` where it lacks a field."""
    for name in ("problem_id", "reference", "completion"):
        if row.get(name) is None:
            raise InputError(f"{where}: no field {name!r}")
    problem = Problem(
        str(row["problem_id"]), row.get("prompt") or "", row["reference"], row.get("domain") or "math"
    )  # fmt: skip
    last_turn = str(row["completion"])[row.get("last_turn_at") or 0 :]
    return Sampled(problem, last_turn, row.get("finish_reason") == "length")
