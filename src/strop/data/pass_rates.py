"""The pass rates that runs have written: read, added up, and recalled for the problems of another run.

A run's file also has what earlier runs found, from which it started. A visit that several files have counts once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from strop.base.types import InputError, Problem
from strop.data.history import EARLIER, PASS_RATES, ProblemFilter, ProblemRate, Visit, rate_of
from strop.data.source import question_digest


class AskedQuestion(NamedTuple):
    """A visited problem: its id, which may be another problem's where seeds differ, and its question's digest."""

    id: str
    question: str


def read_pass_rates(path: Path) -> dict[AskedQuestion, list[Visit]]:
    """The visits of every problem, from a run's `pass_rates.jsonl` (a run folder is taken for that file).

    Raises:
        InputError: no such file, or a line that is not of this form.
    """
    file = _file(path)
    if not file.is_file():
        raise InputError(f"{file}: no such file; a run writes it at every checkpoint")
    found: dict[AskedQuestion, list[Visit]] = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            visits = [Visit(v["step"], v["stage"], v["samples"], v["passed"], str(v["run"])) for v in row["visits"]]
            found[AskedQuestion(row["id"], row["question"])] = visits
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise InputError(f"{file}, line {number}: not a problem's pass rates: {error}") from error
    return found


def together(files: Iterable[Sequence[Visit]]) -> list[Visit]:
    """The visits that several files have of one problem, each once, in the order of the files.

    Two visits of different files are the same where run, step and numbers are; two in one file are two.
    """
    kept: list[Visit] = []
    for visits in files:
        known = Counter(visit._replace(stage=EARLIER) for visit in kept)
        for visit in visits:
            same = visit._replace(stage=EARLIER)
            if known[same]:
                known[same] -= 1
            else:
                kept.append(visit)
    return kept


def add_up(paths: Sequence[str], wanted: ProblemFilter) -> list[ProblemRate]:
    """The visited problems of one or more runs that `wanted` keeps, the hardest first, then by id.

    Raises:
        InputError: see `read_pass_rates`.
    """
    files: dict[AskedQuestion, list[list[Visit]]] = {}
    for path in _each_once(paths):
        for name, visits in read_pass_rates(Path(path)).items():
            files.setdefault(name, []).append(visits)
    found = {name: together(visits) for name, visits in files.items()}
    rows = [rate_of(name.id, visits) for name, visits in found.items() if visits and wanted(visits, 0)]
    return sorted(rows, key=lambda row: (row.pass_rate, row.id))


def _file(path: Path) -> Path:
    return path / PASS_RATES if path.is_dir() else path


def _each_once(paths: Sequence[str]) -> list[str]:
    """The paths without those of a file that is already named."""
    return list({_file(Path(path)).resolve(): path for path in reversed(paths)}.values())[::-1]


def deciles(rows: Sequence[ProblemRate]) -> list[tuple[str, int]]:
    """How many problems were never passed, in each tenth between, and always."""
    inner = [row.pass_rate for row in rows if 0 < row.pass_rate < 1]
    counts = [0] * 10
    for rate in inner:
        counts[min(int(rate * 10), 9)] += 1
    tenths = [(f"{10 * number}-{10 * number + 10} %", counts[number]) for number in range(10)]
    never = sum(row.pass_rate <= 0 for row in rows)
    return [("never", never), *tenths, ("always", len(rows) - never - len(inner))]


def recalled(paths: Sequence[str], problems: Sequence[Problem]) -> dict[int, list[Visit]]:
    """The visits that the runs at `paths` made of `problems`, by the problem's place; unvisited ones are left out.

    Raises:
        InputError: see `read_pass_rates`; or a file that knows none of the problems.
    """
    place = {AskedQuestion(each.id, question_digest(each)): index for index, each in enumerate(problems)}
    files: dict[int, list[list[Visit]]] = {}
    for path in _each_once(paths):
        visits = read_pass_rates(Path(path))
        known = visits.keys() & place.keys()
        if not known:
            raise InputError(
                f"data.history={path}: none of its {len(visits)} problems is among the {len(problems)} of this run "
                "(they are matched by id and question); name a run on the same problems"
            )
        for name in known:
            files.setdefault(place[name], []).append(visits[name])
    return {index: together(found) for index, found in files.items()}
