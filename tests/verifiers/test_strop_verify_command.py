"""The command `strop-verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strop_verify.__main__ import main
from strop_verify.sandbox import probe

needs_walls = pytest.mark.skipif(not probe().isolated, reason="no isolation on this machine")


def test_one_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["math", r"\frac{1}{2}", r"\boxed{0.5}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"score": 1.0, "status": "correct", "detail": "0.5"}
    assert main(["math", "2", "it is 3", "--extract", "any"]) == 1
    assert capsys.readouterr().out.startswith("wrong: ")


def test_a_file_of_rows_in_their_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "verdicts.jsonl"
    rows.write_text("".join(json.dumps({"answer": n, "response": rf"\boxed{{{n % 2}}}"}) + "\n" for n in range(4)))
    assert main(["math", str(rows), "--gold", "answer", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": 4, "correct": 2, "wrong": 2}
    assert [json.loads(line)["score"] for line in out.read_text().splitlines()] == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "line", ["{", "[1]", '{"gold": 1}', '{"gold": "1", "response": "1", "form": "cooked"}', '{"response": "1"}']
)
def test_a_bad_line_is_named(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f'{{"gold": 1, "response": "x"}}\n{line}\n')
    assert main(["math", str(rows)]) == 2
    assert f"{rows}:2: " in capsys.readouterr().err


def test_the_arguments_are_a_file_or_a_pair(tmp_path: Path) -> None:
    assert main(["math", str(tmp_path / "none.jsonl")]) == 2
    with pytest.raises(SystemExit):
        main(["math", "1", "2", "3"])


def test_rows_have_settings_of_their_own_and_expectations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "verdicts.jsonl"
    lines = [
        {"gold": "so $x = 2$", "response": r"\boxed{2}", "form": "raw", "expected": True},
        {"gold": "0.3333", "response": r"\boxed{1/3}", "precision": 4, "expected": True},
        {"gold": "0.3333", "response": r"\boxed{1/3}", "expected": True},
        {"gold": "3", "response": r"\boxed{4}", "expected": True, "contested": "why"},
    ]
    rows.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert main(["math", str(rows), "--out", str(out), "--json"]) == 0
    assert [json.loads(line)["score"] for line in out.read_text().splitlines()] == [1.0, 1.0, 0.0, 0.0]
    assert json.loads(capsys.readouterr().out) == {"rows": 4, "correct": 2, "wrong": 2, "expected": 3, "as expected": 2}


@needs_walls
def test_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tests, response = tmp_path / "tests.json", tmp_path / "response.md"
    tests.write_text('{"asserts": ["assert f(1) == 2"]}')
    response.write_text("```python\ndef f(x):\n    return x + 1\n```")
    assert main(["code", f"@{tests}", f"@{response}"]) == 0
    assert capsys.readouterr().out == "correct: pass\n"
    rows = tmp_path / "rows.jsonl"
    programs = ("def f(x): return x + 1", "def f(x): return x", "print(")
    rows.write_text("".join(json.dumps({"program": each, "tests": ["assert f(1) == 2"]}) + "\n" for each in programs))
    assert main(["code", str(rows)]) == 0
    details = [json.loads(line)["detail"].partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert details == ["pass", "wrong", "syntax_error"]
