"""Filters that call a verifier: many calls at once, the same decisions in the same order; and code, in the sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.prepare.working import run, write_lines

from strop.base.types import InputError
from strop.verifiers.answer import Answer
from strop.verifiers.code_verifier import CodeVerifier
from strop_verify.sandbox import probe

TOWER = "9^{9^{9^{9^{9}}}}"
ROWS = [
    {"prompt": f"Find the share number {n}.", "answer": rf"\frac{{{n}}}{{{n + 1}}}", "solution": text}
    for n in range(2, 60)
    for text in [rf"It is $\boxed{{\tfrac{{{2 * n}}}{{{2 * n + 2}}}}}$" if n % 3 else rf"So \boxed{{{n}}}"]
]


def test_a_verifier_in_processes_decides_as_one_that_is_called(tmp_path: Path) -> None:
    """Equal fractions agree, whatever their form; the order stays; more problems than are asked about at once."""
    outcome = run(tmp_path, [ROWS * 6], ["Verifiable", "AnswersAgree"])
    kept = [row["prompt"] for row in ROWS if "tfrac" in row["solution"]]
    assert outcome.prompts == kept * 6
    assert outcome.reasons == {"answer and solution disagree": (len(ROWS) - len(kept)) * 6}


def test_a_plain_verifier_reads_less(tmp_path: Path) -> None:
    steps = [{"piece": "AnswersAgree", "verifier": {"piece": "Answer", "extract": "any"}}]
    with pytest.raises(InputError, match=f": {len(ROWS)}"):
        run(tmp_path, [ROWS], steps)
    assert Answer(extract="any").isolated() is None


def test_what_cannot_be_read_in_time_does_not_stop_the_others(tmp_path: Path) -> None:
    rows = [{"prompt": "How large is the tower?", "answer": TOWER}, {"prompt": "What is 1 + 1?", "answer": "2"}]
    outcome = run(tmp_path, [rows], ["Verifiable"])
    assert "What is 1 + 1?" in outcome.prompts


@pytest.mark.skipif(not probe().isolated, reason="no isolation on this machine")
def test_code_is_prepared_in_the_sandbox(tmp_path: Path) -> None:
    """Skywork-OR1's order: tests into one form, shown ones out, solutions run; a wrong solution drops its problem."""
    cases = [(f"{n}\n", f"{n * n}\n") for n in range(3, 10)]
    tests = {"inputs": [given for given, _ in cases], "outputs": [expected for _, expected in cases]}
    right, wrong = "n = int(input())\nprint(n * n)", "n = int(input())\nprint(n + n)"
    hangs = "while True: pass"
    rows = [
        {"prompt": f"Square the number, variant {place}.", "tests": tests, "solutions": solutions}
        for place, solutions in enumerate([[right], [wrong], [wrong, right], [hangs]])
    ]
    steps = [
        "StandardTests",
        "IllustrativeTests",
        {"piece": "ReferenceSolutions", "verifier": CodeVerifier(test_seconds=2.0).model_dump(mode="json")},
        "Verifiable",
        "AnswersAgree",
    ]
    columns = {"prompt": "prompt", "answer": "tests", "extra": ["solutions"]}
    source = {"path": str(write_lines(tmp_path / "code.jsonl", rows)), "columns": columns, "domain": "code"}
    outcome = run(tmp_path, [source], steps)
    assert outcome.prompts == [rows[0]["prompt"], rows[2]["prompt"]]
    assert outcome.reasons == {"the reference solution fails the tests": 2}
