"""`strop verify` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strop.cli import main

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
