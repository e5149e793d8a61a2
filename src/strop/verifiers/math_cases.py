"""Files of cases for the math verifier: a reference, a response and how to compare them, one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from strop.base.types import InputError, Problem, Verdict
from strop.data.rows import JsonLines
from strop.verifiers.math_verifier import MathVerifier
from strop.verifiers.process_pool import ProcessPool

# The field of a case, and the setting of the verifier that it is.
_SETTINGS = {
    "form": "gold_form",
    "match_types": "match_types",
    "precision": "precision",
    "strict": "strict",
    "allow_set_relation_comp": "allow_set_relation_comp",
}


class MathCase(NamedTuple):
    """A case: who judges what; `expected` where the file says it, `contested` where its label depends on a setting."""

    verifier: MathVerifier
    problem: Problem
    response: str
    expected: bool | None = None
    contested: bool = False


class Judged(NamedTuple):
    """A case's verdict and how long it took in the worker."""

    verdict: Verdict
    milliseconds: float


def read_cases(path: Path, base: MathVerifier) -> list[MathCase]:
    """The cases of a file; fields that are not a case's are ignored.

    Raises:
        InputError: a line that is not a case, named by file and number.
    """
    cases = []
    for row in JsonLines(path=str(path)).rows():
        try:
            cases.append(_case(row.columns, row.number, base))
        except ValueError as error:
            raise InputError(f"{row.where}: {error}") from error
    if not cases:
        raise InputError(f"{path}: there is no case in it; a line reads {{\"gold\": \"1/2\", \"response\": \"0.5\"}}")
    return cases


def _case(columns: Mapping[str, Any], number: int, base: MathVerifier) -> MathCase:
    for name in ("gold", "response"):
        if name not in columns:
            raise ValueError(f"no field {name!r}; a case has gold and response")
    gold, response = columns["gold"], columns["response"]
    if not isinstance(response, str):
        raise ValueError(f"response must be text, not {type(response).__name__}")
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        raise ValueError(f"gold must be text or a number, not {type(gold).__name__}")
    changed = {setting: columns[name] for name, setting in _SETTINGS.items() if columns.get(name) is not None}
    try:
        verifier = MathVerifier.model_validate({**base.model_dump(exclude={"piece"}), **changed}) if changed else base
    except ValidationError as error:
        first = error.errors()[0]
        names = {setting: name for name, setting in _SETTINGS.items()}
        where = names.get(str(first["loc"][0]), str(first["loc"][0])) if first["loc"] else "settings"
        raise ValueError(f"{where}={first['input']!r}: {first['msg']}") from error
    expected = columns.get("expected")
    if expected is not None and not isinstance(expected, bool):
        raise ValueError(f"expected must be true or false, not {expected!r}")
    return MathCase(verifier, Problem(str(number), "", gold), response, expected, "contested" in columns)


def judge_cases(cases: Sequence[MathCase], pool: ProcessPool) -> Iterator[tuple[int, Judged]]:
    """The verdicts as they come, each with the place of its case; the workers have all cases from the start."""
    written: dict[MathVerifier, str] = {}
    numbers: list[int] = []
    for case in cases:
        if case.verifier not in written:
            written[case.verifier] = case.verifier.model_dump_json()
        numbers.append(pool.submit("judge", case.problem, case.response, False, written[case.verifier]))
    for place, result in pool.completed(numbers):
        yield place, Judged(result.verdict, result.milliseconds)
