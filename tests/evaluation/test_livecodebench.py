"""LiveCodeBench: windows of contest dates, packed tests, and the shapes that the code verifier takes."""

import base64
import json
import os
import pickle
import zlib
from typing import Any

import pytest

from strop.base.types import InputError
from strop.evaluation import benchmarks
from strop.evaluation.benchmarks import WINDOWS, parse_window

STDIN = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
MORE = [{"input": "4 5\n", "output": "9\n", "testtype": "stdin"}]
CALLS = [{"input": '[1, 2]\n"ab"', "output": "true", "testtype": "functional"}]


def packed(value: object) -> str:
    """As LiveCodeBench packs private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def row(public: list[dict[str, str]], private: str, **changes: Any) -> dict[str, Any]:
    return {
        "question_content": "Add two numbers.",
        "starter_code": "",
        "public_test_cases": json.dumps(public),
        "private_test_cases": private,
        "metadata": "{}",
        **changes,
    }


def test_windows_of_the_papers() -> None:
    assert (WINDOWS["v5"].start, WINDOWS["v5"].end) == ("2024-08-01", "2025-02-01")
    assert (WINDOWS["v6"].start, WINDOWS["v6"].end) == ("2025-02-01", "2025-05-01")
    assert parse_window("v5") == WINDOWS["v5"] == parse_window("2024-08..2025-02")


@pytest.mark.parametrize(
    ("date", "inside"),
    [
        ("2024-07-31T23:59:59", False),
        ("2024-08-01T00:00:00", True),
        ("2025-02-01", True),
        ("2025-02-01T06:30:00", False),
        ("2025-01-04T00:00:00+00:00", True),
    ],
)
def test_both_midnights_are_inside(date: str, inside: bool) -> None:
    assert WINDOWS["v5"].holds(date) is inside


@pytest.mark.parametrize("text", ["v7", "2025-13..2026-01", "2025-02-01..2024-08-01", "2024", "..", ""])
def test_no_window(text: str) -> None:
    with pytest.raises(InputError, match="livecodebench:"):
        parse_window(text)


def test_public_and_private_tests_are_put_together() -> None:
    expected = {"inputs": ["1 2\n", "4 5\n"], "outputs": ["3\n", "9\n"]}
    assert benchmarks.tests(row(STDIN, packed(json.dumps(MORE)))) == expected
    assert benchmarks.tests(row(STDIN, json.dumps(MORE))) == expected


def test_method_calls_have_arguments_and_values() -> None:
    found = benchmarks.tests(row(CALLS, packed("[]"), metadata='{"func_name": "solve"}'))
    assert found == {"fn_name": "solve", "inputs": [[[1, 2], "ab"]], "outputs": [True]}


def test_the_question_says_what_form_the_program_has() -> None:
    assert "standard input" in benchmarks.question(row(STDIN, "[]"))
    starter = "class Solution:\n    def solve(self, a: int) -> int:\n        "
    text = benchmarks.question(row(CALLS, "[]", starter_code=starter))
    assert starter.rstrip() in text and "standard input" not in text


class Evil:
    """Unpickled by an ordinary unpickler it would run a command."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("true",)


@pytest.mark.parametrize("private", [packed(Evil()), packed(7), "not base64!", packed("not json"), packed('["x"]')])
def test_tests_that_cannot_be_unpacked_are_refused(private: str) -> None:
    with pytest.raises(ValueError):
        benchmarks.tests(row(STDIN, private))


def test_mixed_and_absent_tests_are_refused() -> None:
    with pytest.raises(ValueError):
        benchmarks.tests(row(STDIN, json.dumps(CALLS)))
    with pytest.raises(ValueError):
        benchmarks.tests(row([], "[]"))
