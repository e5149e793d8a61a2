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
    assert main(["math", "--file", str(rows), "--gold", "answer", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": 4, "correct": 2, "wrong": 2}
    assert [json.loads(line)["score"] for line in out.read_text().splitlines()] == [1.0, 1.0, 0.0, 0.0]


def test_what_is_wrong_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"gold": 1, "response": "x"}\n{"gold": 1}\n')
    assert main(["math", "--file", str(rows)]) == 2
    assert "line 2: no key 'response'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["math", "1"])
    assert main(["math", "--file", str(tmp_path / "none.jsonl")]) == 2


@needs_walls
def test_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tests, response = tmp_path / "tests.json", tmp_path / "response.md"
    tests.write_text('{"asserts": ["assert f(1) == 2"]}')
    response.write_text("```python\ndef f(x):\n    return x + 1\n```")
    assert main(["code", f"@{tests}", f"@{response}"]) == 0
    assert capsys.readouterr().out == "correct: pass\n"
