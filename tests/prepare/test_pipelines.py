"""The papers' pipelines on sets of a few rows: each source by its mapping, each step with the paper's settings.

Models, judges and benchmarks are stand-ins: a tiny model whose answers are judged by a word of the question
(`ByWord`), an endpoint on this machine, a benchmark of one question.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.prepare import test_difficulty
from tests.prepare.test_judges import judging, serving
from tests.prepare.working import Outcome, write_lines
from tests.tiny import byte_tokenizer, tiny_qwen3
from typer.testing import CliRunner

from strop.base.types import InputError
from strop.base.view import SilentView
from strop.cli import app
from strop.model.files import export
from strop.prepare import load_config, parse_config, prepare
from strop.prepare.config import PIPELINES
from strop_verify.sandbox import probe

Rows = list[dict[str, Any]]
BY_WORD = {"piece": f"{test_difficulty.__name__}:ByWord"}
TEN = [f"{n}\n" for n in range(3, 13)]
DOUBLED = [f"{2 * n}\n" for n in range(3, 13)]
NONE: dict[str, list[str]] = {"input": [], "output": []}
RIGHT, WRONG = "print(2 * int(input()))", "print(3 * int(input()))"


def numina(problem: str, answer: str = "5", boxed: str = "5", source: str = "olympiads", kind: str = "mcq") -> Any:
    return {"problem": problem, "answer": answer, "solution": rf"It is \boxed{{{boxed}}}.", "problem_type": "Algebra",
            "question_type": kind, "source": source, "synthetic": False}  # fmt: skip


def taco(question: str, program: str = RIGHT, tests: int = 10) -> dict[str, Any]:
    cases = {"inputs": TEN[:tests], "outputs": DOUBLED[:tests]}
    return {"question": question, "solutions": json.dumps([program]), "starter_code": "", "difficulty": "EASY",
            "input_output": json.dumps(cases)}  # fmt: skip


def deepcoder(problem: str, tests: int = 10) -> dict[str, Any]:
    pairs = zip(TEN[:tests], DOUBLED[:tests], strict=True)
    cases = [{"type": "stdin_stdout", "input": given, "output": expected} for given, expected in pairs]
    return {"problem": problem, "solutions": [f"```python\n{RIGHT}\n```"], "tests": json.dumps(cases)}


def verl(prompt: str, answer: str = "5") -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": prompt}], "reward_model": {"ground_truth": answer}}


LEETCODE = {
    "task_id": "next", "problem_description": "Return the number after 41, sometimes.", "difficulty": "Easy",
    "starter_code": "class Solution:", "prompt": "import re",
    "completion": "class Solution:\n    def f(self, x):\n        return x + 1",
    "entry_point": "Solution().f", "test": "def check(candidate):\n    assert candidate(x = 1) == 2\n",
}  # fmt: skip
MATH: list[Rows] = [
    [
        numina("Sometimes 11 apples weigh as much as how many pears?"),
        numina("SOMETIMES 11 apples weigh as much as how many pears"),
        numina("Find 12 more.", source="orca_math"),
        numina("Prove that 13 is prime.", kind="proof"),
        numina("What is the sum of 14 and 1, sometimes?", answer="15", boxed="16"),
        numina("What does https://example.org say of 15?"),
    ],
    [{"problem": "Sometimes 11 apples weigh as much as how many pears?", "answer": "5", "solution": ""},
     {"problem": "What is always 16?", "answer": "16", "solution": ""}],
    [{"question": "A contest asks how many of 2024 doors stay open at the end of the day", "answer": "44"}],
    [{"problem": "What is never 17?", "answer": "17", "solution": r"\boxed{17}", "difficulty": 8.0, "domain": [],
      "source": "imo"}],
    [{"ID": "1983-1", "Year": 1983, "Question": "A bad one, sometimes of 18", "Answer": "60"},
     {"ID": "2024-1", "Year": 2024, "Question": "A later one, sometimes of 19", "Answer": "61"}],
]  # fmt: skip
CODE: list[Rows] = [
    [LEETCODE],
    [
        taco("Read one of 21 numbers and print its double, sometimes."),
        taco("read one of 21 numbers and print its double, sometimes"),
        taco("Double a number of 22 digits, sometimes.", WRONG),
        taco("Double a number of 23 digits, sometimes.", tests=0),
        taco("A number of 24 digits is never doubled."),
        taco("Read one of 21 number, and prints its doubles, some times sometimes."),
    ],
]
ZERO: list[Rows] = [
    [{"ID": "1983-1", "Year": 1983, "Question": "Sometimes 31 of the apples are red", "Answer": "60"}],
    [{"problem": "What is always 32 of the total?", "level": "Level 5", "type": "Algebra", "solution": r"\boxed{2}"}],
    [numina("Prove that 33 is odd.", kind="proof"), numina("求 34 的平方根是多少")],
    [{"messages": [{"role": "user", "content": "Question: Q\nAnswer: A\n\nQuestion: What is never 35?"}],
      "ground_truth": "8"}],
    [{"problem": "sometimes 31 of the apples are red!", "solution": "S", "answer": "60", "problem_type": "Algebra",
      "question_type": "MCQ", "source": "olympiads", "uuid": "u-1"}],
]  # fmt: skip
ARCHER: list[Rows] = [
    [{"problem": "Sometimes 41 of the apples are red", "answer": "5", "solution": ""},
     {"problem": "What is never 42?", "answer": "5", "solution": ""}],
    [verl("sometimes 41 of the apples are red"), verl("What is always 43?")],
    [verl("A contest, sometimes, asks how many of 2024 doors stay open at the end of the day", "44")],
]  # fmt: skip
ARCHER_CODE: list[Rows] = [
    [{"name": "51_A", "description": "Double one of 51 numbers, sometimes.", "public_tests": NONE,
      "private_tests": {"input": TEN, "output": DOUBLED}, "generated_tests": NONE,
      "solutions": {"language": [3], "solution": [RIGHT]}}],
    [{"id": "52/A", "description": "One of 52 numbers is never doubled.", "input_format": None, "output_format": None,
      "note": None, "examples": [], "rating": 1100,
      "official_tests": [{"input": a, "output": b} for a, b in zip(TEN, DOUBLED, strict=True)]}],
    [deepcoder("double one of 51 numbers, sometimes"), deepcoder("Double one of 53 numbers, sometimes.", 4)],
    [deepcoder("One of 54 numbers is always doubled.")],
    [deepcoder("A contest, sometimes, asks how many of 2024 doors stay open at the end of the day")],
]  # fmt: skip
POLARIS: list[Rows] = [
    [{"problem": f"What is {n} and 1?", "answer": str(n + 1), "difficulty": "5/8"} for n in range(1003)]
]
CONTEST = "A contest asks how many of 2024 doors stay open at the end of the day"
BENCHMARKS: dict[str, dict[str, Any]] = {
    "aime24": {"ID": "2024-I-1", "Problem": CONTEST, "Solution": "S", "Answer": 44},
    "aime25": {"problem": "Another one of 2025", "answer": "70", "id": "0"},
    "livecodebench": {"question_content": CONTEST, "public_test_cases": "[]", "contest_date": "2024-09-01T00:00:00"},
}
# What comes out of each step, and why what does not was dropped.
EXPECTED: dict[str, tuple[list[Rows], list[tuple[int, dict[str, int]]]]] = {
    "skywork_or1_math": (MATH, [
        (10, {}),
        (9, {"asks for a proof": 1}),
        (8, {"answer and solution disagree": 1}),
        (7, {"has a link": 1}),
        (5, {"exact duplicate within the set": 1, "exact duplicate of another set": 1}),
        (4, {"contaminated by aime24": 1}),
        (2, {"too hard for deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 1,
             "too easy for deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 1}),
        (1, {"information is missing": 1}),
    ]),
    "skywork_or1_code": (CODE, [
        (7, {}), (7, {}), (6, {"code without tests": 1}), (5, {"exact duplicate within the set": 1}),
        (4, {"the reference solution fails the tests": 1}), (3, {"embedding duplicate within the set": 1}),
        (2, {"too hard for deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 1}),
    ]),
    "open_reasoner_zero": (ZERO, [
        (6, {}), (5, {"asks for a proof": 1}), (4, {"not in English": 1}), (3, {"exact duplicate of another set": 1}),
        (1, {"too easy for Qwen/Qwen2.5-7B-Instruct": 1, "too hard for Qwen/Qwen2.5-7B-Instruct": 1}),
    ]),
    "archer_math": (ARCHER, [
        (5, {}), (4, {"exact duplicate of another set": 1}), (3, {"too hard for Qwen/Qwen3-30B-A3B": 1}),
        (2, {"too easy for deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1}), (1, {"contaminated by aime24": 1}),
    ]),
    "archer_code": (ARCHER_CODE, [
        (6, {}), (6, {}), (6, {}), (5, {"fewer than 5 tests": 1}), (4, {"too hard for Qwen/Qwen3-30B-A3B": 1}),
        (3, {"exact duplicate of another set": 1}), (2, {"contaminated by livecodebench": 1}),
        (1, {"too easy for deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1}),
    ]),
    "scalerl": (POLARIS, [(1003, {}), (3, {})]),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    export(tiny_qwen3().model, byte_tokenizer(), folder)
    return str(folder)


def stood_in(name: str, folder: Path, rows: Sequence[Rows], model: str, judge: str) -> Outcome:
    """What comes of a pipeline with stand-ins in the places of data sets, models and endpoints."""
    given = tomllib.loads(PIPELINES[name].read_text())
    for number, (source, lines) in enumerate(zip(given["sources"], rows, strict=True)):
        source.pop("source", None)
        source["path"] = str(write_lines(folder / f"{number}.jsonl", lines))
    for step in given["steps"]:
        if step["piece"] == "Difficulty":
            step |= {"name": step["model"]["path"], "model": {"path": model}, "verifier": BY_WORD, "device": "cpu",
                     "sampling": {"max_new_tokens": 6}}  # fmt: skip
            step.pop("template", None)
        for place, benchmark in enumerate(step.get("against", ())):
            source = {"mapping": benchmark} if isinstance(benchmark, str) else dict(benchmark)
            source.pop("source", None)
            label = source.get("name") or source["mapping"]
            source["path"] = str(write_lines(folder / f"{label}.jsonl", [BENCHMARKS[label]]))
            step["against"][place] = source
        if step["piece"] == "DeduplicateByEmbedding":
            step["model"] = model
        for endpoint in step.get("judges", ()):
            endpoint |= {"url": judge, "backoff": 0.01}
    config = parse_config(given | {"out": str(folder / "out")}, name)
    return Outcome(folder / "out", prepare(config, SilentView()))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_pipeline_accounts_for_every_row(name: str, tmp_path: Path, model: str) -> None:
    if name == "skywork_or1_code" and not probe().isolated:
        pytest.skip("no isolation on this machine")
    rows, expected = EXPECTED[name]
    with serving(judging) as server:
        outcome = stood_in(name, tmp_path, rows, model, server.url)
    assert [(step["out"], step["reasons"]) for step in outcome.report["steps"]] == expected
    assert outcome.report["validation"] == (1000 if name == "scalerl" else 0)


def test_every_pipeline_has_a_case_and_reads_as_it_is_shipped() -> None:
    assert EXPECTED.keys() == PIPELINES.keys()
    for name in PIPELINES:
        assert load_config(name).out == f"prepared/{name}"
    difficulty = next(step for step in load_config("skywork_or1_math").steps if step.title() == "difficulty")
    assert (difficulty.samples, difficulty.min_correct, difficulty.highest) == (16, 1, 15)  # type: ignore[attr-defined]
    judges = load_config("skywork_or1_math").steps[-1]
    assert (judges.total_votes, judges.threshold) == (32, 9)  # type: ignore[attr-defined]


def test_a_pipeline_is_printed_and_named_where_there_is_no_file() -> None:
    said = CliRunner().invoke(app, ["data", "prepare", "scalerl", "--example"])
    assert said.stdout == PIPELINES["scalerl"].read_text()
    with pytest.raises(InputError, match="archer_code, archer_math"):
        load_config("archer")
