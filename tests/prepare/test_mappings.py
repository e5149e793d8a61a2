"""Ready mappings on small files of the same shape as the sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.prepare.working import write_lines

from strop.base.types import Problem
from strop.data.columns import BrokenRow
from strop.evaluation.benchmarks import CATALOGUE
from strop.prepare import Source
from strop.prepare.mappings import DAPO_AFTER, DAPO_BEFORE, MAPPINGS, SKYWORK_AFTER

USER = "user"
ROWS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "polaris-53k": ({"problem": "P", "answer": "3", "difficulty": "5/8"}, "P", "3"),
    "deepscaler": ({"problem": "P", "answer": "3", "solution": "S"}, "P", "3"),
    "dapo-17k": (
        {"data_source": "math_dapo", "prompt": [{"role": USER, "content": f"{DAPO_BEFORE}P{DAPO_AFTER}"}],
         "ability": "MATH", "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
         "extra_info": {"index": "9a9b6eb4"}}, "P", "34"),
    "numinamath-1.5": (
        {"problem": "P", "solution": "S", "answer": "3", "problem_type": "Algebra",
         "question_type": "math-word-problem",
         "problem_is_valid": "Yes", "solution_is_valid": "Yes", "source": "olympiads", "synthetic": False}, "P", "3"),
    "math-train": (
        {"problem": "P", "level": "Level 5", "type": "Algebra", "solution": r"so $\boxed{\frac{1}{2}}$."},
        "P", r"\frac{1}{2}"),
    "openr1-math-220k": (
        {"problem": "P", "solution": "S", "answer": "3", "problem_type": "Algebra", "question_type": "MCQ",
         "source": "olympiads", "uuid": "u-1", "generations": ["g"], "messages": []}, "P", "3"),
    "tulu3-math": (
        {"messages": [{"role": USER, "content": "Question: Q1\nAnswer: A1\n\nQuestion: P"}], "ground_truth": "8",
         "dataset": "MATH"}, "P", "8"),
    "aime-before-2024": (
        {"ID": "1983-1", "Year": 1983, "Problem Number": 1, "Question": "P", "Answer": "60", "Part": None}, "P", "60"),
    "orz-57k": (
        {"0": {"from": "human", "value": "P"}, "1": {"from": "assistant", "ground_truth": {"value": "3"}}}, "P", "3"),
    "skywork-or1-math": (
        {"data_source": "train-math-x", "prompt": [{"role": USER, "content": f"P{SKYWORK_AFTER}"}], "ability": "math",
         "reward_model": {"ground_truth": '["\\\\frac{1}{2}"]', "style": "rule"},
         "extra_info": {"index": 0, "model_difficulty": {"DeepSeek-R1-Distill-Qwen-7B": 9}}}, "P", r"\frac{1}{2}"),
    "skywork-or1-code": (
        {"data_source": "train-code-taco", "prompt": [{"role": USER, "content": "P"}],
         "reward_model": {"ground_truth": json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]}), "style": "rule"}},
        "P", {"inputs": ["1\n"], "outputs": ["2\n"]}),
    "omni-math": (
        {"domain": ["Mathematics -> Algebra"], "difficulty": 8.0, "problem": "P", "solution": "S", "answer": "3",
         "source": "imo"}, "P", "3"),
    "still-3": ({"question": "P", "answer": "3"}, "P", "3"),
    "taco": (
        {"question": "P", "solutions": json.dumps(["print(1)"]), "starter_code": "", "difficulty": "EASY",
         "input_output": json.dumps({"inputs": ["1"], "outputs": ["2"]})}, "P", {"inputs": ["1"], "outputs": ["2"]}),
    "leetcode": (
        {"task_id": "two-sum", "problem_description": "P", "starter_code": "class Solution:", "difficulty": "Easy",
         "prompt": "import re", "completion": "class Solution: ...", "entry_point": "Solution().f",
         "test": "def check(candidate):\n    assert candidate(x = 1) == 2\n"},
        "P\n\nclass Solution:", {"asserts": ["import re\nassert Solution().f(x=1) == 2"]}),
    "codecontests": (
        {"name": "1575_A", "description": "P", "public_tests": {"input": ["9"], "output": ["9"]},
         "private_tests": {"input": ["1"], "output": ["2"]}, "generated_tests": {"input": ["3"], "output": ["4"]},
         "solutions": {"language": [2, 3], "solution": ["int main", "print(1)"]}},
        "P", {"inputs": ["1", "3"], "outputs": ["2", "4"]}),
    "codeforces": (
        {"id": "852/A", "description": "P", "input_format": "one number", "output_format": "its half", "note": None,
         "examples": [{"input": "4", "output": "2"}], "rating": 1100,
         "official_tests": [{"input": "6", "output": "3"}]},
        "P\n\nInput\none number\n\nOutput\nits half", {"inputs": ["6"], "outputs": ["3"]}),
    "deepcoder": (
        {"problem": "P", "solutions": ["```python\nprint(1)\n```"],
         "tests": json.dumps([{"type": "function_call", "fn_name": "f", "input": [1], "output": 2}])},
        "P", {"fn_name": "f", "inputs": [[1]], "outputs": [2]}),
    "gsm8k": ({"question": "P", "answer": "1 + 2 = 3\n#### 1,003"}, "P", "1003"),
    "gsm8k-test": ({"question": "P", "answer": "#### 3"}, "P", "3"),
    "math500": ({"problem": "P", "solution": "S", "answer": "3", "subject": "Algebra", "level": 2}, "P", "3"),
    "aime24": ({"ID": "2024-I-1", "Problem": "P", "Solution": "S", "Answer": 204}, "P", "204"),
    "aime25": ({"problem": "P", "answer": "70", "id": "0"}, "P", "70"),
    "amc23": ({"id": 0, "problem": "P", "answer": 27.0, "url": "u"}, "P", "27"),
    "minerva": ({"problem": "P", "solution": r"\boxed{1.6}", "type": "Physics"}, "P", "1.6"),
    "olympiadbench": ({"question": "P", "final_answer": ["2"], "solution": ["S"]}, "P", "2"),
}  # fmt: skip


def read(source: Source) -> list[Problem | BrokenRow]:
    return list(source.problems())


def test_every_mapping_has_a_case() -> None:
    assert set(ROWS) == set(MAPPINGS)


def test_a_benchmark_is_the_same_set_for_preparation_and_evaluation() -> None:
    both = MAPPINGS.keys() & CATALOGUE.keys() - {"gsm8k"}  # of gsm8k one trains on the one split, the other measures
    assert len(both) >= 6
    for name in both:
        hub = CATALOGUE[name].hub
        assert hub is not None
        assert (MAPPINGS[name].hub, MAPPINGS[name].subset, MAPPINGS[name].split) == (hub.dataset, hub.subset, hub.split)


@pytest.mark.parametrize("name", ROWS)
def test_mapping(tmp_path: Path, name: str) -> None:
    row, prompt, reference = ROWS[name]
    path = write_lines(tmp_path / "rows.jsonl", [row])
    (found,) = read(Source(mapping=name, path=str(path)))
    assert isinstance(found, Problem)
    assert (found.prompt, found.reference, found.source) == (prompt, reference, name)
    assert found.domain == MAPPINGS[name].domain
    assert found.id.startswith(f"{name}/")


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_another_shape_is_broken_not_a_crash(tmp_path: Path, name: str) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"something": 1}, {key: None for key in ROWS[name][0]}])
    assert all(isinstance(found, BrokenRow) for found in read(Source(mapping=name, path=str(path))))


def test_the_same_rows_from_parquet_json_and_csv(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"problem": "first, with a comma", "answer": "3", "solution": 'a "quote"'}] * 2
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    (tmp_path / "x.json").write_text(json.dumps(rows))
    (tmp_path / "x.csv").write_text("problem,answer,solution\n" + '"first, with a comma",3,"a ""quote"""\n' * 2)
    write_lines(tmp_path / "x.jsonl", rows)
    found = [
        read(Source(mapping="deepscaler", path=str(tmp_path / f"x.{kind}")))
        for kind in ("parquet", "json", "csv", "jsonl")
    ]
    assert found[0] == found[1] == found[2] == found[3]
    assert len(found[0]) == 2


def test_orz_as_it_is_published_a_list_of_lists(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "P"}, {"from": "assistant", "ground_truth": {"value": "3"}}]
    (tmp_path / "orz.json").write_text(json.dumps([turns, "torn"]))
    first, second = read(Source(mapping="orz-57k", path=str(tmp_path / "orz.json")))
    assert isinstance(first, Problem) and first.reference == "3"
    assert isinstance(second, BrokenRow) and second.where.endswith("orz.json: entry 2")


def test_a_table_of_no_set_keeps_whole_chats_and_refuses_parts_of_questions(tmp_path: Path) -> None:
    """A system message in ShareGPT's form was lost, and a question was kept without its options."""
    turns = [{"from": "system", "value": "S"}, {"from": "human", "value": "P"}, {"from": "gpt", "value": "A"}]
    rows: list[dict[str, Any]] = [
        {"conversations": turns, "prompt": turns, "answer": "3"}, {"prompt": turns[1:], "answer": "3"},
        {"prompt": "Which?", "choices": ["p", "q"], "answer": "B"},
    ]  # fmt: skip
    whole, alone, part = read(Source(path=str(write_lines(tmp_path / "a.jsonl", rows))))
    assert isinstance(whole, Problem) and whole.prompt == (
        {"role": "system", "content": "S"}, {"role": "user", "content": "P"},
    )  # fmt: skip
    assert isinstance(alone, Problem) and alone.prompt == "P"
    assert isinstance(part, BrokenRow) and "'choices'" in part.reason
    assert "columns.prompt=prompt" in part.reason


def test_aime_before_2024_leaves_2024_out(tmp_path: Path) -> None:
    rows = [{"ID": f"{year}-1", "Year": year, "Question": f"P{year}", "Answer": "1"} for year in (2023, 2024)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    found = read(Source(mapping="aime-before-2024", path=str(path)))
    assert [problem.prompt for problem in found if isinstance(problem, Problem)] == ["P2023"]


def test_a_subset_filter_columns_and_a_limit(tmp_path: Path) -> None:
    rows = [{"q": f"P{n}", "a": {"value": n}, "source": "olympiads" if n % 2 else "orca_math"} for n in range(6)]
    path = write_lines(tmp_path / "n.jsonl", rows)
    given = {"path": str(path), "columns": {"prompt": "q", "answer": "a.value", "extra": ["source"]},
             "where": "source IN ('olympiads')", "name": "mine"}  # fmt: skip
    found = read(Source.model_validate(given))
    assert [(p.id, p.prompt, p.reference) for p in found if isinstance(p, Problem)] == [
        ("mine/2", "P1", "1"), ("mine/4", "P3", "3"), ("mine/6", "P5", "5"),
    ]  # fmt: skip
    assert len(read(Source.model_validate({**given, "limit": 4}))) == 2


@pytest.mark.parametrize("columns", [None, {"prompt": "question", "answer": "answer"}], ids=["usual", "named"])
def test_the_result_of_a_worked_solution_is_the_reference(tmp_path: Path, columns: dict[str, str] | None) -> None:
    """Of GSM8K's rows, whether the columns are named or not; what programs are judged by stays whole."""
    rows = [{"question": "P", "answer": "1 + 71 = 72\n#### 72"}, {"question": "Q", "answer": "# Notes\n#### Part 2"}]
    given = {"path": str(write_lines(tmp_path / "g.jsonl", rows)), "columns": columns}
    solved, text = read(Source.model_validate(given))
    assert isinstance(solved, Problem) and isinstance(text, Problem)
    assert (solved.reference, solved.extra) == ("72", {"solution": rows[0]["answer"]})
    assert (text.reference, text.extra) == (rows[1]["answer"], {})
    (code, _) = read(Source.model_validate({**given, "domain": "code"}))
    assert isinstance(code, Problem) and code.reference == rows[0]["answer"]


def test_generators_and_folders_of_the_package_datasets(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason='needs the extra gym: pip install "strop[gym]"')
    found = read(Source.model_validate({"source": {"piece": "ReasoningGym", "task": "chain_sum", "size": 3}}))
    assert len(found) == 3
    pytest.importorskip("datasets", reason='needs the extra hub: pip install "strop[hub]"')
    (tmp_path / "set").mkdir()
    write_lines(tmp_path / "set" / "train.jsonl", [{"problem": "P", "answer": "3", "solution": "S"}])
    (hub,) = read(Source.model_validate({"mapping": "deepscaler", "source": str(tmp_path / "set")}))
    assert isinstance(hub, Problem) and hub.prompt == "P"


def test_csv_rows_with_missing_cells_are_broken(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("prompt,answer\nP,3\nonly one\n")
    first, second = read(Source(path=str(tmp_path / "x.csv")))
    assert isinstance(first, Problem)
    assert isinstance(second, BrokenRow) and second.where.endswith("x.csv:3")
