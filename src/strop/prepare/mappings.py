"""Ready mappings from the rows of well-known data sets to problems.

A mapping is a data set's name on the hub and a pure function from a row's columns to `Fields`. `MAPPINGS` holds them by
the name that a configuration uses. The same function reads a local copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from strop.base.types import Prompt
from strop.data.cells import plain
from strop.data.columns import Columns, Fields, as_prompt, pick
from strop.evaluation.benchmarks import CATALOGUE
from strop_verify.code.tests import standard_tests
from strop_verify.extract import boxed_answer

Row = Mapping[str, Any]


@dataclass(frozen=True)
class ReadyMapping:
    """A data set of the hub and how its rows are read; rows for which `keep` is false are skipped."""

    hub: str
    convert: Callable[[Row], Fields]
    subset: str | None = None
    split: str = "train"
    domain: str = "math"
    keep: Callable[[Row], bool] = field(default=lambda row: True)


DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'
SKYWORK_AFTER = " Let's think step by step and output the final answer within \\boxed{}."
PYTHON3 = 3  # the number of this language in CodeContests
MOST_SOLUTIONS = 5
KEPT = ("id", "solution")  # columns of a plain table that go into `extra`


def table(prompt: str, answer: str, *extra: str, identity: str | None = None) -> Callable[[Row], Fields]:
    """A mapping that takes columns as they are; missing `extra` columns are skipped."""

    def convert(row: Row) -> Fields:
        return Fields(
            as_prompt(pick(row, prompt)),
            answer_text(pick(row, answer)),
            {name: row[name] for name in extra if row.get(name) is not None},
            None if identity is None else str(pick(row, identity)),
        )

    return convert


def answer_text(value: Any) -> Any:
    """An answer as it is written: numbers as text, `27.0` as `27`, a list of one answer as that answer."""
    if isinstance(value, list | tuple) and len(value) == 1:
        return answer_text(value[0])
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else plain(value)


def _bare_prompt(value: Any) -> Prompt:
    """A prompt of one user turn as text, without the instruction at the end of Skywork's prompts."""
    prompt = as_prompt(value)
    return prompt.removesuffix(SKYWORK_AFTER) if isinstance(prompt, str) else prompt


def _verl(before: str = "", after: str = "", *extra: str) -> Callable[[Row], Fields]:
    """A mapping for verl's rows (chat messages, reward_model.ground_truth) that removes fixed instructions."""

    def convert(row: Row) -> Fields:
        prompt = _bare_prompt(pick(row, "prompt"))
        if isinstance(prompt, str):
            prompt = prompt.removeprefix(before).removesuffix(after)
        kept = {name: row[name] for name in extra if row.get(name) is not None}
        return Fields(prompt, _only_answer(pick(row, "reward_model.ground_truth")), kept)

    return convert


def _only_answer(value: Any) -> Any:
    """The answer in a JSON list of one answer, as Skywork writes it; other values as they are."""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        import json

        try:
            answers = json.loads(value)
        except ValueError:
            return value  # an interval such as [0, 1)] or a matrix, not a list of answers
        if isinstance(answers, list) and len(answers) == 1 and isinstance(answers[0], str):
            return answers[0]
    return value


def _math_train(row: Row) -> Fields:
    solution = pick(row, "solution")
    extra = {"solution": solution, "level": row.get("level"), "type": row.get("type")}
    return Fields(pick(row, "problem"), boxed_answer(solution), extra)


def _tulu3(row: Row) -> Fields:
    """The last `Question:` of the user's turn: the worked examples before it are the same in every row."""
    turns = [turn for turn in pick(row, "messages") if turn["role"] == "user"]
    if not turns:
        raise ValueError("messages has no turn of the user")
    _, _, question = str(turns[-1]["content"]).rpartition("Question:")
    return Fields(question.removesuffix("Answer:").strip(), answer_text(pick(row, "ground_truth")), {})


def _aime(row: Row) -> Fields:
    extra = {"year": int(pick(row, "Year"))}
    return Fields(pick(row, "Question"), answer_text(pick(row, "Answer")), extra, str(pick(row, "ID")))


def _skywork_code(row: Row) -> Fields:
    return Fields(_bare_prompt(pick(row, "prompt")), standard_tests(pick(row, "reward_model.ground_truth")), {})


def _program(row: Row, name: str, tests: dict[str, Any]) -> Fields:
    """A code problem: the statement in the column `name` with the starter code, and the solutions."""
    starter = str(row.get("starter_code") or "").strip()
    question = _text(row, name)
    return Fields(f"{question}\n\n{starter}" if starter else question, tests, {"solutions": _solutions(row)})


def _taco(row: Row) -> Fields:
    return _program(row, "question", standard_tests(pick(row, "input_output")))


def _deepcoder(row: Row) -> Fields:
    function = (row.get("metadata") or {}).get("func_name")
    return _program(row, "problem", standard_tests(pick(row, "tests"), function))


def _leetcode(row: Row) -> Fields:
    # The published prompt defines helpers of the tests (ListNode, is_same_list).
    tests = {"test_code": pick(row, "test"), "entry_point": pick(row, "entry_point")}
    tests["import_prefix"] = row.get("prompt") or ""
    solution = f"{row.get('prompt') or ''}\n{pick(row, 'completion')}"
    question = f"{_text(row, 'problem_description')}\n\n{row.get('starter_code') or ''}".strip()
    extra = {"solutions": [solution], "prelude": row.get("prompt") or "", "difficulty": row.get("difficulty")}
    return Fields(question, standard_tests(tests), extra, str(row["task_id"]) if row.get("task_id") else None)


def _code_contests(row: Row) -> Fields:
    """The private and generated tests; the public ones are the statement's examples."""
    inputs: list[Any] = []
    outputs: list[Any] = []
    for name in ("private_tests", "generated_tests"):
        tests = row.get(name) or {"input": [], "output": []}
        inputs += tests["input"]
        outputs += tests["output"]
    solutions = row.get("solutions") or {"language": [], "solution": []}
    pairs = list(zip(solutions["language"], solutions["solution"], strict=True))
    python = [code for language, code in pairs if language in (PYTHON3, "PYTHON3")][:MOST_SOLUTIONS]
    extra = {"solutions": python, "examples": row.get("public_tests") or {}}
    return Fields(
        pick(row, "description"), standard_tests({"inputs": inputs, "outputs": outputs}), extra, row.get("name")
    )


def _codeforces(row: Row) -> Fields:
    parts = [
        _text(row, "description"),
        *(f"{title}\n{row[name]}" for name, title in
          (("input_format", "Input"), ("output_format", "Output"), ("note", "Note")) if row.get(name)),
    ]  # fmt: skip
    extra = {"examples": list(row.get("examples") or []), "rating": row.get("rating")}
    if row.get("generated_checker"):
        extra["checker"] = row["generated_checker"]
    return Fields("\n\n".join(parts), standard_tests(list(row.get("official_tests") or [])), extra, row.get("id"))


def _text(row: Row, name: str) -> str:
    value = pick(row, name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the column {name!r} holds no text")
    return value.strip()


def _solutions(row: Row) -> list[str]:
    """The first few solutions of a row, which may be written as JSON."""
    import json

    value = row.get("solutions")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = [value]
    found = [str(code) for code in value or [] if code]
    return [_fenced(code) for code in found[:MOST_SOLUTIONS]]


def _fenced(code: str) -> str:
    """Code without the Markdown fence around it."""
    _, fence, rest = code.partition("```python\n")
    return rest.partition("```")[0] if fence else code


def plain_table(row: Row, domain: str = "math") -> Fields:
    """The fields of a row with usual column names; its columns id and solution are kept in `extra`.

    Raises:
        ValueError: there is no such column, or the one for prompts holds only a part of the question.
    """
    found = Columns().fields(row, domain)
    kept = {name: row[name] for name in KEPT if isinstance(row.get(name), str | int)}
    return found._replace(extra={**found.extra, **kept})


def _benchmark(name: str) -> ReadyMapping:
    """The mapping of a benchmark of `strop eval`."""
    hub = CATALOGUE[name].hub
    assert hub is not None
    return ReadyMapping(hub.dataset, plain_table, hub.subset, hub.split)


MAPPINGS: dict[str, ReadyMapping] = {
    "polaris-53k": ReadyMapping("POLARIS-Project/Polaris-Dataset-53K", table("problem", "answer", "difficulty")),
    "deepscaler": ReadyMapping("agentica-org/DeepScaleR-Preview-Dataset", table("problem", "answer", "solution")),
    "dapo-17k": ReadyMapping("BytedTsinghua-SIA/DAPO-Math-17k", _verl(DAPO_BEFORE, DAPO_AFTER)),
    "numinamath-1.5": ReadyMapping(
        "AI-MO/NuminaMath-1.5",
        table("problem", "answer", "solution", "problem_type", "question_type", "source", "synthetic"),
    ),
    "math-train": ReadyMapping("DigitalLearningGmbH/MATH-lighteval", _math_train),
    "openr1-math-220k": ReadyMapping(
        "open-r1/OpenR1-Math-220k",
        table("problem", "answer", "solution", "problem_type", "question_type", "source", identity="uuid"),
    ),
    "tulu3-math": ReadyMapping("allenai/RLVR-MATH", _tulu3),
    "aime-before-2024": ReadyMapping("gneubig/aime-1983-2024", _aime, keep=lambda row: int(pick(row, "Year")) < 2024),
    "orz-57k": ReadyMapping("Open-Reasoner-Zero/orz_math_57k_collection", table("0.value", "1.ground_truth.value")),
    "skywork-or1-math": ReadyMapping(
        "Skywork/Skywork-OR1-RL-Data", _verl("", SKYWORK_AFTER, "extra_info"), split="math"
    ),
    "skywork-or1-code": ReadyMapping("Skywork/Skywork-OR1-RL-Data", _skywork_code, split="code", domain="code"),
    "omni-math": ReadyMapping(
        "KbsdJames/Omni-MATH", table("problem", "answer", "solution", "difficulty", "domain", "source"), split="test"
    ),
    "still-3": ReadyMapping("RUC-AIBOX/STILL-3-Preview-RL-Data", table("question", "answer")),
    "taco": ReadyMapping("BAAI/TACO", _taco, domain="code"),
    "leetcode": ReadyMapping("newfacade/LeetCodeDataset", _leetcode, domain="code"),
    "codecontests": ReadyMapping("deepmind/code_contests", _code_contests, domain="code"),
    "codeforces": ReadyMapping("open-r1/codeforces", _codeforces, domain="code"),
    "deepcoder": ReadyMapping("agentica-org/DeepCoder-Preview-Dataset", _deepcoder, "primeintellect", domain="code"),
    "gsm8k": ReadyMapping("openai/gsm8k", table("question", "answer"), "main"),
    "gsm8k-test": ReadyMapping("openai/gsm8k", table("question", "answer"), "main", split="test"),
    **{name: _benchmark(name) for name in ("math500", "aime24", "aime25", "amc23", "minerva", "olympiadbench")},
}
