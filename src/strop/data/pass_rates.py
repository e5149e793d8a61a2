"""The pass rates that runs have written: read, added up, and recalled for the problems of another run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from strop.base.types import InputError, Problem
from strop.data.history import PASS_RATES, ProblemFilter, ProblemRate, Visit, rate_of
from strop.data.source import question_digest


class Asked(NamedTuple):
    """A visited problem: its id, which may be another problem's where seeds differ, and its question, if known."""

    id: str
    question: str | None


def read_pass_rates(path: Path) -> dict[Asked, list[Visit]]:
    """The visits of every problem, from a run's `pass_rates.jsonl` (a run folder is taken for that file).

    Raises:
        InputError: no such file, or a line that is not of this form.
    """
    file = path / PASS_RATES if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file}: no such file; a run writes it at every checkpoint")
    found: dict[Asked, list[Visit]] = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            visits = [Visit(v["step"], v["stage"], v["samples"], v["passed"]) for v in row["visits"]]
            found[Asked(row["id"], row.get("question"))] = visits
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise InputError(f"{file}, line {number}: not a problem's pass rates: {error}") from error
    return found


def add_up(paths: Sequence[str], wanted: ProblemFilter) -> list[ProblemRate]:
    """The visited problems of one or more runs that `wanted` keeps, the hardest first, then by id.

    Raises:
        InputError: see `read_pass_rates`.
    """
    visits: dict[Asked, list[Visit]] = {}
    for path in paths:
        for name, found in read_pass_rates(Path(path)).items():
            visits.setdefault(name, []).extend(found)
    rows = [rate_of(name.id, found) for name, found in visits.items() if found and wanted(found, 0)]
    return sorted(rows, key=lambda row: (row.pass_rate, row.id))


def deciles(rows: Sequence[ProblemRate]) -> list[tuple[str, int]]:
    """How many problems were never passed, in each tenth between, and always."""
    inner = [row.pass_rate for row in rows if 0 < row.pass_rate < 1]
    counts = [0] * 10
    for rate in inner:
        counts[min(int(rate * 10), 9)] += 1
    tenths = [(f"{10 * number}-{10 * number + 10} %", counts[number]) for number in range(10)]
    never = sum(row.pass_rate <= 0 for row in rows)
    return [("never", never), *tenths, ("always", len(rows) - never - len(inner))]


class Recalled(NamedTuple):
    """What earlier runs found of the problems of another run.

    Attributes:
        visits: by the problem's place; unvisited ones are left out.
        by_id: the files that name no questions, so that their problems were told by their ids alone.
    """

    visits: dict[int, list[Visit]]
    by_id: tuple[str, ...]


def recalled(paths: Sequence[str], problems: Sequence[Problem]) -> Recalled:
    """What the runs at `paths` found of `problems`.

    Raises:
        InputError: see `read_pass_rates`; or a file that knows none of the problems.
    """
    asked = [Asked(problem.id, question_digest(problem)) for problem in problems]
    place = {key: index for index, key in enumerate(asked)} | {Asked(key.id, None): i for i, key in enumerate(asked)}
    found: dict[int, list[Visit]] = {}
    by_id = []
    for path in paths:
        visits = read_pass_rates(Path(path))
        known = visits.keys() & place.keys()
        if not known:
            raise InputError(
                f"data.history={path}: none of its {len(visits)} problems is among the {len(problems)} of this run "
                "(they are matched by id and question); name a run on the same problems"
            )
        for name in known:
            found.setdefault(place[name], []).extend(visits[name])
        if any(name.question is None for name in known):
            by_id.append(path)
    return Recalled(found, tuple(by_id))
