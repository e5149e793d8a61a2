"""`strop verify` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strop.base.types import Verdict
from strop.cli import main
from strop.cli.verify_commands import summarise
from strop.verifiers.cases import Judged, summary
from strop_verify.code.runners import CodeResult, Outcome
from strop_verify.verdict import Status

CASES = (
    '{"gold": "1/2", "response": "it is \\\\boxed{0.5}", "expected": true}\n'
    '{"gold": "$2$", "response": "The answer is 3", "form": "raw", "expected": true}\n'
    '{"gold": "3", "response": "", "contested": "no", "expected": true}\n'
)


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    file = tmp_path / "cases.jsonl"
    file.write_text(CASES)
    return file


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr("sys.argv", ["strop", *map(str, arguments)])
        main()
    captured = capsys.readouterr()
    code = ended.value.code
    return code if isinstance(code, int) else 0, captured.out, captured.err


def test_verdicts_in_order_and_a_summary(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = cases.with_name("out.jsonl")
    code, printed, _ = run(capsys, "verify", "math", cases, "--out", out, "--extract", "any", "--json")
    assert code == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["score"], line["status"]) for line in lines] == [(1.0, "correct"), (0.0, "wrong"), (0.0, "unparsed")]
    assert all(line["milliseconds"] >= 0 for line in lines)
    summary = json.loads(printed)
    assert (summary["cases"], summary["correct"], summary["expected"], summary["agreement"]) == (3, 1, 2, 0.5)


def test_the_middle_of_few_times_is_their_median() -> None:
    right = Verdict(1.0, Status.CORRECT)
    found = summarise([Judged(right, spent) for spent in (9.0, 1.0, 2.0, 4.0)], [None] * 4)
    assert (found["ms/p50"], found["ms/p99"]) == (3.0, 8.85)  # p99 stands at place 2.97 of 0 … 3
    programs = summary([CodeResult(Outcome.PASS, "", 1, 1, spent) for spent in (9.0, 1.0)])
    assert (programs["milliseconds_p50"], programs["milliseconds_max"]) == (5.0, 9.0)


def test_the_default_extraction_wants_a_box(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = cases.with_name("out.jsonl")
    code, printed, _ = run(capsys, "verify", "math", cases, "--out", out)
    assert code == 0
    assert [json.loads(line)["status"] for line in out.read_text().splitlines()] == ["correct", "unparsed", "unparsed"]
    assert "agreement" in printed


def test_a_bad_line_is_named(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases.write_text(CASES + '{"gold": "1"}\n')
    out = cases.with_name("out.jsonl")
    code, _, said = run(capsys, "verify", "math", cases, "--out", out)
    assert code == 2
    assert f"{cases}:4: no field 'response'" in said
    assert not out.exists()


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rollouts.jsonl"
    rows = [{"problem_id": "a", "reference": "1/2", "completion": text} for text in (r"\boxed{0.5}", r"\boxed{1/2}")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    both = ("verify", "compare", file, "--verifier", "Answer", "--verifier", "MathVerifier")
    code, printed, _ = run(capsys, *both, "--json")
    assert code == 0
    assert json.loads(printed)["histograms"] == {"Answer": [0, 1, 0], "MathVerifier": [0, 0, 1]}
    code, printed, _ = run(capsys, *both)
    assert code == 0
    assert "verdicts differ on 1" in printed
    code, _, said = run(capsys, "verify", "compare", file, "--verifier", "Answer")
    assert code == 2
    assert "two verifiers" in said
