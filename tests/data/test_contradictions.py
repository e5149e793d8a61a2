"""The same question with different answers is found and told, with a count and an example."""

from __future__ import annotations

from strop.base.types import Problem
from strop.data.dataset import contradiction_warning, contradictions


def problem(number: int, prompt: str, reference: object) -> Problem:
    return Problem(f"p-{number}", prompt, reference)


def test_questions_with_different_answers() -> None:
    problems = [
        problem(0, "What is 6*7?", "42"),
        problem(1, "What  is 6*7?\n", " 42 "),  # the same answer
        problem(2, "What is 6*7?", "43"),
        problem(3, "What is 6*7?", "44"),  # told once a question
        problem(4, "And 2+2?", 4),
        problem(5, "And 2+2?", 5),
        problem(6, "Alone?", {"b": 1, "a": 2}),
        problem(7, "Alone?", {"a": 2, "b": 1}),
    ]
    assert [(one.id, other.id) for one, other in contradictions(problems)] == [("p-0", "p-2"), ("p-4", "p-5")]
    told = contradiction_warning("mine.jsonl", problems)
    assert told is not None and told.startswith("mine.jsonl: 2 questions") and "\n" not in told
    assert "42 (p-0)" in told and "43 (p-2)" in told
    assert contradiction_warning("mine.jsonl", problems[:2]) is None
