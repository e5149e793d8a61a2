"""Files of cases for `strop verify`, one JSON object a line: answers with references, programs with tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pydantic import ValidationError

from strop.base.files import replacing
from strop.base.types import InputError, Problem, Verdict
from strop.base.view import View
from strop.data.rows import JsonLines
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.math_verifier import MathVerifier
from strop.verifiers.process_pool import VerifierPool, verdict_of
from strop_verify.code.runners import CodeResult, Outcome
from strop_verify.code.tests import Tests, read_tests
from strop_verify.code.verifier import FENCE, run_tests

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


def read_math_cases(path: Path, base: MathVerifier) -> list[MathCase]:
    """The cases of a file; fields that are not a case's are ignored.

    Raises:
        InputError: a line that is not a case, named by file and number.
    """
    cases = []
    for row in JsonLines(path=str(path)).rows():
        try:
            cases.append(_math_case(row.columns, row.number, base))
        except ValueError as error:
            raise InputError(f"{row.where}: {error}") from error
    if not cases:
        raise InputError(f"{path}: there is no case in it; a line reads {{\"gold\": \"1/2\", \"response\": \"0.5\"}}")
    return cases


def _math_case(columns: Mapping[str, Any], number: int, base: MathVerifier) -> MathCase:
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


def judge_cases(cases: Sequence[MathCase], pool: VerifierPool) -> Iterator[tuple[int, Judged]]:
    """The verdicts as they come, each with the place of its case; the workers have all cases from the start."""
    written: dict[MathVerifier, str] = {}
    numbers: list[int] = []
    for case in cases:
        if case.verifier not in written:
            written[case.verifier] = case.verifier.model_dump_json()
        numbers.append(pool.ask("judge", case.problem, case.response, False, written[case.verifier]))
    for place, reply in pool.completed(numbers):
        yield place, Judged(verdict_of(reply), reply.milliseconds)


KINDS = ("stdio", "call", "assert")
IN_A_FENCE = "a Markdown fence (```) is no Python: give only the program that stands inside it"


@dataclass(frozen=True)
class CodeCase:
    """A program and its tests; `id` is its own or its place in the file, from 0."""

    id: str | int
    program: str
    tests: Tests


def read_code_cases(path: str) -> list[CodeCase]:
    """The cases of a file: fields program, tests, and, where given, id, kind and mode; others are ignored.

    Raises:
        InputError: the file or a line cannot be used; names the line.
    """
    cases = [_code_case(place, row.columns, row.where) for place, row in enumerate(JsonLines(path=path).rows())]
    if not cases:
        raise InputError(f"{path}: no cases in it")
    return cases


def verify_cases(cases: Sequence[CodeCase], verifier: CodeVerifier, view: View) -> list[CodeResult]:
    """Test every program, in order; several at once.

    Raises:
        NoIsolation: this machine cannot isolate foreign programs.
    """
    results: dict[int, CodeResult] = {}
    sandbox = verifier.open_sandbox()
    threads = ThreadPoolExecutor(sandbox.workers)
    try:
        view.stage("verify", len(cases), "cases")
        futures = {
            threads.submit(run_tests, sandbox, case.program, case.tests, verifier.settings): place
            for place, case in enumerate(cases)
        }
        for done, future in enumerate(as_completed(futures), start=1):
            place = futures[future]
            results[place] = _with_reason(cases[place].program, future.result())
            view.advance(done, {})
    finally:
        for future in futures:
            future.cancel()
        sandbox.close()
        threads.shutdown()
    fenced = sum(IN_A_FENCE in result.detail for result in results.values())
    if fenced:
        view.note(f"{fenced} of {len(cases)} programs: {IN_A_FENCE}")
    return [results[place] for place in range(len(cases))]


def _with_reason(program: str, result: CodeResult) -> CodeResult:
    """The result, which says where a fence of Markdown is why a program is no Python."""
    if result.outcome is Outcome.SYNTAX_ERROR and any(line.lstrip().startswith(FENCE) for line in program.split("\n")):
        return replace(result, detail=f"{result.detail}; {IN_A_FENCE}".removeprefix("; "))
    return result


def write_results(path: Path, cases: Sequence[CodeCase], results: Sequence[CodeResult]) -> None:
    """One line a case, in order: id, verdict, milliseconds, detail, and how many tests were passed.

    Raises:
        StropError: the file cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_text("".join(f"{json.dumps(line)}\n" for line in _lines(cases, results)), encoding="utf-8")


def summary(results: Sequence[CodeResult]) -> dict[str, Any]:
    """How many cases, how many of each verdict, how long they took (milliseconds)."""
    times = [result.milliseconds for result in results]
    return {
        "cases": len(results),
        "verdicts": dict(Counter(result.outcome.value for result in results).most_common()),
        "milliseconds_p50": round(median(times), 1),
        "milliseconds_max": round(max(times), 1),
    }


def _lines(cases: Sequence[CodeCase], results: Sequence[CodeResult]) -> Iterator[dict[str, Any]]:
    for case, result in zip(cases, results, strict=True):
        yield {
            "id": case.id, "verdict": result.outcome.value, "milliseconds": round(result.milliseconds, 1),
            "detail": result.detail, "passed": result.passed, "tests": result.total,
        }  # fmt: skip


def _code_case(place: int, columns: Any, where: str) -> CodeCase:
    program, name = columns.get("program"), columns.get("id", place)
    if not isinstance(program, str):
        raise InputError(f"{where}: needs the field program, a text")
    if "tests" not in columns:
        raise InputError(f"{where}: needs the field tests")
    if not isinstance(name, str | int):
        raise InputError(f"{where}: id must be a text or a number, not {type(name).__name__}")
    try:
        tests = read_tests(columns["tests"])
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
    wanted = columns.get("mode", columns.get("kind", tests.kind))
    if wanted not in KINDS:
        raise InputError(f"{where}: mode, or else kind, must be one of {', '.join(KINDS)}, not {wanted!r}")
    if wanted != tests.kind:
        raise InputError(f"{where}: its tests are of the kind {tests.kind}, not {wanted}")
    return CodeCase(name, program, tests)
