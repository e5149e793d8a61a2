"""The pass rates that runs have written: read, added up, and recalled for the problems of another run.

A run's file also has what earlier runs found, from which it started. A visit that several files have counts once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from strop.base.types import InputError, Problem
from strop.data.history import EARLIER, PASS_RATES, ProblemFilter, ProblemRate, Visit, rate_of
from strop.data.source import question_digest


class AskedQuestion(NamedTuple):
    """A visited problem: its id, which may be another problem's where seeds differ, and its question, if known."""

    id: str
    question: str | None


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
            visits = [
                Visit(v["step"], v["stage"], v["samples"], v["passed"], str(v.get("run", ""))) for v in row["visits"]
            ]
            found[AskedQuestion(row["id"], row.get("question"))] = visits
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise InputError(f"{file}, line {number}: not a problem's pass rates: {error}") from error
    return found


class CombinedPassRates(NamedTuple):
    """The visits that several files have of one problem, each once, in the order of the files.

    Attributes:
        visits: those of the first file, and of each other one those that the files before it lack.
        guessed: the files with a visit that is taken for one of another file although one of them names no run.
    """

    visits: list[Visit]
    guessed: frozenset[str]


def together(files: Mapping[str, Sequence[Visit]]) -> CombinedPassRates:
    """What the files, by their paths, have of one problem.

    Visits are the same where run, step and numbers are; two in one file are two, whatever they have in common. Earlier
    visits in files of an older strop name no run, and are taken for those of another file at the same step with the
    same numbers. A file's own visits are of a run of their own, named or not.
    """
    kept: list[Visit] = []
    guessed = set()
    for file, visits in files.items():
        own = [v if v.run or v.stage == EARLIER else v._replace(run=file) for v in visits]
        left = list(range(len(kept)))  # places in `kept` of visits that are not yet found in this file
        new = []
        for place in sorted(range(len(own)), key=lambda place: not own[place].run):  # what is certain comes first
            same = [i for i in left if _may_be_one(kept[i], own[place])]
            if not same:
                new.append(place)
                continue
            one = min(same, key=lambda i: kept[i].run != own[place].run)
            left.remove(one)
            if not (kept[one].run and own[place].run):
                guessed.add(file)
                kept[one] = kept[one]._replace(run=kept[one].run or own[place].run)
        kept += [own[place] for place in sorted(new)]
    return CombinedPassRates([v._replace(run="") if v.run in files else v for v in kept], frozenset(guessed))


def _may_be_one(first: Visit, second: Visit) -> bool:
    equal = (first.step, first.samples, first.passed) == (second.step, second.samples, second.passed)
    return equal and (first.run == second.run or not (first.run and second.run))


def guess_said(files: Sequence[str]) -> str:
    """The line for the user about files whose visits `together` had to guess."""
    return (
        f"{','.join(files)}: an older strop wrote down earlier visits without the run that made them; those with the "
        "step and the numbers of a visit in another file are counted as that one"
    )


class Sum(NamedTuple):
    """The attempts of several runs added up.

    Attributes:
        rows: the problems, the hardest first, then by id.
        guessed: see `Together`.
    """

    rows: list[ProblemRate]
    guessed: tuple[str, ...]


def add_up(paths: Sequence[str], wanted: ProblemFilter) -> Sum:
    """The visited problems of one or more runs that `wanted` keeps.

    Raises:
        InputError: see `read_pass_rates`.
    """
    files: dict[AskedQuestion, dict[str, list[Visit]]] = {}
    for path in _each_once(paths):
        for name, visits in read_pass_rates(Path(path)).items():
            files.setdefault(name, {})[path] = visits
    found = {name: together(visits) for name, visits in files.items()}
    rows = [rate_of(name.id, each.visits) for name, each in found.items() if each.visits and wanted(each.visits, 0)]
    return Sum(sorted(rows, key=lambda row: (row.pass_rate, row.id)), _guessed(found.values()))


def _guessed(found: Iterable[CombinedPassRates]) -> tuple[str, ...]:
    return tuple(sorted({file for each in found for file in each.guessed}))


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


class Recalled(NamedTuple):
    """What earlier runs found of the problems of another run.

    Attributes:
        visits: by the problem's place; unvisited ones are left out.
        by_id: the files that name no questions, so that their problems were told by their ids alone.
        guessed: see `Together`.
    """

    visits: dict[int, list[Visit]]
    by_id: tuple[str, ...]
    guessed: tuple[str, ...] = ()


def recalled(paths: Sequence[str], problems: Sequence[Problem]) -> Recalled:
    """What the runs at `paths` found of `problems`.

    Raises:
        InputError: see `read_pass_rates`; or a file that knows none of the problems.
    """
    asked = [AskedQuestion(problem.id, question_digest(problem)) for problem in problems]
    place = {key: index for index, key in enumerate(asked)} | {
        AskedQuestion(key.id, None): i for i, key in enumerate(asked)
    }
    files: dict[int, dict[str, list[Visit]]] = {}
    by_id = []
    for path in _each_once(paths):
        visits = read_pass_rates(Path(path))
        known = visits.keys() & place.keys()
        if not known:
            raise InputError(
                f"data.history={path}: none of its {len(visits)} problems is among the {len(problems)} of this run "
                "(they are matched by id and question); name a run on the same problems"
            )
        for name in known:
            files.setdefault(place[name], {})[path] = visits[name]
        if any(name.question is None for name in known):
            by_id.append(path)
    found = {index: together(each) for index, each in files.items()}
    return Recalled({i: each.visits for i, each in found.items()}, tuple(by_id), _guessed(found.values()))
