"""The data sets of the recipes, on rows of the shape that the published sets have: prompts, references, verdicts.

The sets themselves are too large to stand here. Each row below has the columns of its set (dataset cards; the authors'
own preparation scripts); what is read from it is what a run would ask and judge by.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strop.base.types import Problem
from strop.data.generators import Mixture
from strop.data.rows import HubDataset, JsonLines
from strop.data.source import ProblemSource
from strop.data.templates import ChatTemplate, OpenReasonerZero
from strop.recipes.resolve import resolve
from strop.verifiers.code_verifier import CodeVerifier
from strop_verify.code.tests import read_tests
from strop_verify.sandbox import probe
from strop_verify.verdict import Status

INSTRUCTION = " Let's think step by step and output the final answer within \\boxed{}."


def skywork(question: str, answers: str, ability: str, place: int, solved: dict[str, int | None]) -> dict[str, Any]:
    """A row of Skywork/Skywork-OR1-RL-Data; `solved` is how often a distilled model of each size was right, of 16."""
    attempts = {"1.5B": 0, "7B": 0, "32B": 0} | solved
    return {
        "data_source": f"train-{ability}-numinamath1.5_olympiads",
        "prompt": [{"content": question, "role": "user"}],
        "ability": ability,
        "reward_model": {"ground_truth": answers, "style": "rule"},
        "extra_info": {
            "index": place,
            "model_difficulty": {f"DeepSeek-R1-Distill-Qwen-{size}": count for size, count in attempts.items()},
        },
    }


SKYWORK_MATH = [
    skywork(f"What is 1 + 1?{INSTRUCTION}", '["2"]', "math", 0, {"7B": 16, "1.5B": 15}),
    skywork(f"What is 1/2 + 1/2?{INSTRUCTION}", '["\\\\frac{2}{2}"]', "math", 1, {"7B": 15}),
    skywork(f"What is 2 + 3?{INSTRUCTION}", '["5"]', "math", 2, {"7B": 1, "32B": 15, "1.5B": 1}),
    skywork(f"What is 2 + 4?{INSTRUCTION}", '["6"]', "math", 3, {"7B": None, "32B": 16}),
]
SUM = "Write a program that reads two integers from stdin and prints their sum."
SKYWORK_CODE = [
    skywork(SUM, json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}), "code", 0,
            {"7B": 7, "32B": 3}),
    skywork("Write add(a, b).", json.dumps({"assert_case": ["assert add(1, 2) == 3", "assert add(3, 4) == 7"]}),
            "code", 1, {"7B": 8, "32B": 5}),
    skywork("class Solution: def add(self, a, b)", json.dumps({
        "import_prefix": "import math\n", "entry_point": "Solution().add",
        "test_code": "def check(candidate):\n    assert candidate(a = 1, b = 2) == 3\n"
        "    assert candidate(3, 4) == 7\n",
    }), "code", 2, {"7B": 2, "32B": 2}),
    skywork("too easy", json.dumps({"inputs": ["1\n"], "outputs": ["1\n"]}), "code", 3, {"7B": 16, "32B": 16}),
]  # fmt: skip
ORZ = [
    {"0": {"from": "human", "value": "What is $1 + 1$?"},
     "1": {"from": "assistant", "ground_truth": {"value": "2", "pass_at_n": 0.9}}},
]  # fmt: skip
ARCHER_CODE = [
    {
        "data_source": "code", "prompt": [{"role": "user", "content": SUM}], "ability": "code",
        "reward_model": {
            "style": "rule", "ground_truth": json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3", "7"]}),
        },
        "extra_info": {"index": 0, "split": "train"},
    },
    {
        "data_source": "code", "prompt": [{"role": "user", "content": "class Solution: def add(self, a, b)"}],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": json.dumps({
            "functional": "def check(candidate):\n    assert candidate(a = 1, b = 2) == 3\n"
            "    assert candidate(a = 3, b = 4) == 7\n\n\ncheck(Solution().add)",
        })},
        "extra_info": {"index": 1, "split": "train"},
    },
]  # fmt: skip
DEEPSCALER = [{"problem": "What is $1 + 1$?", "answer": "2", "solution": "Two."}]
DAPO = [{"prompt": "What is $2 + 2$?", "solution": "4", "data_source": "math_dapo", "source_prompt": [],
         "ability": "MATH", "reward_model": {"ground_truth": "4", "style": "rule"},
         "extra_info": {"index": "x"}}]  # fmt: skip
POLARIS = [{"difficulty": "1/8", "problem": "What is $1 + 1$?", "answer": "2"}]
PRIMEINTELLECT = [
    {"problem": SUM, "solutions": ["```python\n…\n```"], "tests": json.dumps([
        {"type": "stdin_stdout", "input": "1 2\n", "output": "3\n", "fn_name": None},
        {"type": "stdin_stdout", "input": "3 4\n", "output": "7\n", "fn_name": None},
    ])},
]  # fmt: skip
TACO = [{"problem": SUM, "tests": json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]})}]
LCB = [
    {"problem": "Add two numbers.",
     "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
     "tests": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"},
                          {"input": "3\n4", "output": "7", "testtype": "functional"}]),
     "metadata": {"func_name": "add"}},
    {"problem": SUM, "starter_code": "", "metadata": {"func_name": None},
     "tests": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
                          {"input": "3 4\n", "output": "7\n", "testtype": "stdin"}])},
]  # fmt: skip
ROWS = {
    "Skywork-OR1-RL-Data math": SKYWORK_MATH,
    "Skywork-OR1-RL-Data code": SKYWORK_CODE,
    "orz_math_57k_collection train": ORZ,
    "orz_math_13k_collection_hard train": ORZ,
    "ArcherCodeR-Dataset train": ARCHER_CODE,
    "DeepScaleR-Preview-Dataset train": DEEPSCALER,
    "DAPO-Math-17k-Processed/all train": DAPO,
    "Polaris-Dataset-53K train": POLARIS,
    "DeepCoder-Preview-Dataset/primeintellect train": PRIMEINTELLECT,
    "DeepCoder-Preview-Dataset/taco train": TACO,
    "DeepCoder-Preview-Dataset/lcbv5 train": LCB,
}


def on_rows(source: ProblemSource, folder: Path) -> ProblemSource:
    """The same source, reading the rows above in place of the hub: columns, conditions and mixture as they are."""
    if isinstance(source, Mixture):
        return source.model_copy(update={"sources": tuple(on_rows(part, folder) for part in source.sources)})
    assert isinstance(source, HubDataset)
    file = folder / f"{source.name.replace('/', '-')}-{source.split}.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS[f"{source.name} {source.split}"]))
    return JsonLines(path=str(file), columns=source.columns, domain=source.domain, where=source.where)


def problems(name: str, folder: Path) -> list[Problem]:
    return list(on_rows(resolve(name).data.source, folder).load())


@pytest.mark.parametrize(
    ("name", "references"),
    [("skywork_or1.math_7b", ["\\frac{2}{2}", "5"]), ("archer.math", ["2", "2", "5", "4"])],
)
def test_which_mathematics_is_kept(name: str, references: list[str], tmp_path: Path) -> None:
    assert [problem.reference for problem in problems(name, tmp_path)] == references


@pytest.mark.parametrize(("name", "math", "code"), [("skywork_or1.7b", 2, 3), ("skywork_or1.32b", 1, 3)])
def test_programs_come_twice(name: str, math: int, code: int, tmp_path: Path) -> None:
    found = problems(name, tmp_path)
    assert [problem.domain for problem in found] == ["math"] * math + ["code"] * 2 * code
    programs = found[math:]
    assert [p.question for p in programs[:code]] == [p.question for p in programs[code:]]
    assert len({problem.id for problem in found}) == len(found) and programs[-1].id.endswith("#2")


def test_every_question_is_asked_once_and_in_one_way(tmp_path: Path) -> None:
    for name in ("archer.math", "skywork_or1.math_7b", "archer.code", "scalerl.math_code", "opefo.grpo", "scalerl"):
        template = resolve(name).data.template
        assert isinstance(template, ChatTemplate)
        for problem in problems(name, tmp_path):
            asked = template.messages(problem)[-1]["content"]
            assert asked.count("\\boxed{}") == (0 if problem.domain == "code" or name == "opefo.grpo" else 1), asked
            assert ("```python" in asked) is (name == "scalerl.math_code" and problem.domain == "code")
    template = resolve("open_reasoner_zero.7b").data.template
    assert isinstance(template, OpenReasonerZero)


def test_a_starter_is_shown_and_its_function_is_what_the_tests_call(tmp_path: Path) -> None:
    found = {problem.id.rpartition("-")[2]: problem for problem in problems("scalerl.math_code", tmp_path)}
    with_starter = next(p for p in found.values() if "Add two numbers" in p.question)
    assert "```python\nclass Solution:\n    def add(self, a: int, b: int) -> int:\n```" in with_starter.question
    assert read_tests(with_starter.reference).function == "add"


MATHEMATICS = ("skywork_or1.math_7b", "archer.math", "open_reasoner_zero.7b", "open_reasoner_zero.r1_distill_14b",
               "opefo.qwen3_4b", "dapo", "just_rl", "scalerl")  # fmt: skip


@pytest.mark.parametrize("name", MATHEMATICS)
def test_answers_are_judged_by_the_recipes_verifier(name: str, tmp_path: Path) -> None:
    verifier = resolve(name).verifier
    tagged = name.startswith("open_reasoner_zero")
    for problem in problems(name, tmp_path):
        assert verifier.refuses(problem) is None
        for answer, status in ((problem.reference, Status.CORRECT), ("12345", Status.WRONG)):
            boxed = f"\\boxed{{{answer}}}"
            text = f"<think>…</think> {f'<answer> {boxed} </answer>' if tagged else f'It is {boxed}.'}"
            assert verifier.judge(problem, text, truncated=False).status is status, (problem, answer)


PROGRAMS = {
    "stdio": "a, b = map(int, input().split())\nprint(a + b)",
    "call": "class Solution:\n    def add(self, a, b):\n        return a + b",
    "assert": "class Solution:\n    def add(self, a, b):\n        return a + b\n\ndef add(a, b):\n    return a + b",
}


@pytest.mark.parametrize("name", ["skywork_or1.7b", "archer.code", "scalerl.math_code"])
def test_programs_are_judged_by_their_tests(name: str, tmp_path: Path) -> None:
    if not probe().isolated:
        pytest.skip(f"no isolation on this machine: {probe().missing}")
    verifier = CodeVerifier(workers=1)
    code = [problem for problem in problems(name, tmp_path) if problem.domain == "code"]
    kinds = set()
    with verifier.open_sandbox() as sandbox:
        for problem in code:
            tests = read_tests(problem.reference)
            kinds.add(tests.kind)
            assert len(tests) == 2
            program = PROGRAMS[tests.kind]
            for text, status in ((program, Status.CORRECT), (program.replace("a + b", "a - b"), Status.WRONG)):
                verdict = verifier.judge_in(sandbox, problem, f"</think>\n```python\n{text}\n```")
                assert verdict.status is status, (problem, verdict)
    assert kinds >= ({"stdio", "assert"} if name != "scalerl.math_code" else {"stdio", "call"})
