"""Conditions over columns: what they keep, what they refuse, and where they are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from strop.base.types import InputError, Problem
from strop.config.parse import edit
from strop.data.columns import NoColumn, condition, pick
from strop.data.files import JsonLines, ParquetFile
from strop.data.flat_files import CsvFile
from strop.data.problem_table import ProblemWriter
from strop.data.rows import Columns
from strop.prepare.sources import Source
from strop.recipes.resolve import resolve

ROW: dict[str, Any] = {
    "ability": "math",
    "level": 3,
    "share": 0.25,
    "easy": False,
    "note": None,
    "odd name": "it's",
    "extra_info": {"model_difficulty": {"DeepSeek-R1-Distill-Qwen-1.5B": 16, "DeepSeek-R1-Distill-Qwen-7B": 7}},
    "0": {"value": "q"},
}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("extra_info.model_difficulty.DeepSeek-R1-Distill-Qwen-7B in 1..15", True),
        ("extra_info.model_difficulty.DeepSeek-R1-Distill-Qwen-1.5B in 1..15", False),
        ("level in 3..3", True),
        ("level in -1..2", False),
        ("share in 0.25..1e0", True),
        ("level == 3", True),
        ("level = 3.0", True),
        ("level != 3", False),
        ("level < 3 or level > 3", False),
        ("level <= 3 and level >= 3", True),
        ("not level == 3", False),
        ("not (level == 4 or level == 5)", True),
        ("level == 4 and level == 3 or level == 3", True),  # and binds before or
        ("level == 3 or level == 4 and level == 5", True),
        ("ability == 'math'", True),
        ('ability in ["code", "math"]', True),
        ("ability in ['code']", False),
        ("ability < 'n'", True),
        ("easy == false", True),
        ("easy in [True, null]", False),
        ("note == null", True),
        ("note != none", False),
        ("level != null", True),
        ("note == 3", False),  # an empty cell is equal to nothing else
        ("note != 3", False),
        ("note in 1..3", False),
        ("note in [null, 1]", True),
        (r"`odd name` == 'it\'s'", True),
        ("0.value == 'q'", True),
        ("level in [1, 'x', 3]", True),
    ],
)
def test_what_a_condition_keeps(text: str, kept: bool) -> None:
    assert condition(text)(ROW) is kept


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a column at its end"),
        ("level", "expected in or one of"),
        ("level == ", "expected a number, a text in quotes"),
        ("level == math", "before 'math'"),
        ("level == 3 level == 4", "expected and, or, or the end before 'level == 4'"),
        ("level in 1", r"expected LOW\.\.HIGH"),
        ("level in 5..1", "the lower one first"),
        ("level in 'a'..'b'", "a range is of two numbers"),
        ("level in [1", "a comma or a closing bracket"),
        ("(level == 3", "a closing parenthesis"),
        ("level < null", "null has no order"),
        ("level == 3; import os", "cannot be read from '; import os' on"),
        ("__import__('os')", "expected in or one of"),
        ("level == 'a", "cannot be read"),
        ("(" * 60 + "level == 3" + ")" * 60, "more than 50"),
        ("level == 3 " + "or level == 3 " * 200, "at most 2000"),
    ],
)
def test_what_is_no_condition(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        condition(text)


def test_errors_name_the_column() -> None:
    with pytest.raises(NoColumn, match="no column 'extra_info.model_difficulty.DeepSeek-R1-Distill-Qwen-32B'; did you"):
        condition("extra_info.model_difficulty.DeepSeek-R1-Distill-Qwen-32B in 1..15")(ROW)
    with pytest.raises(NoColumn, match="no column 'lvl'"):
        condition("lvl == 1")(ROW)
    with pytest.raises(ValueError, match=r"column 'ability' holds a text \('math'\), which cannot be compared with 3"):
        condition("ability == 3")(ROW)
    with pytest.raises(ValueError, match='write "3"'):
        condition("ability in 3..4")(ROW)
    with pytest.raises(ValueError, match="column 'easy' holds true or false"):
        condition("easy == 0")(ROW)
    with pytest.raises(ValueError, match="column 'extra_info' holds nested"):
        condition("extra_info in [1]")(ROW)


def test_pick_reaches_into_nested_columns() -> None:
    assert pick(ROW, "0.value") == "q" and pick({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert pick({"a": {"b.c": 3}}, "a.b.c") == 3


@given(st.text(max_size=60))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        keeps = condition(text)
    except ValueError:
        return
    try:
        assert keeps(ROW) in (True, False)
    except ValueError as error:
        assert "column" in str(error)


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=3))


@given(low=st.integers(-9, 9), width=st.integers(0, 9), cell=st.integers(-20, 20))
def test_a_range_is_two_comparisons(low: int, width: int, cell: int) -> None:
    high = low + width
    assert condition(f"x in {low}..{high}")({"x": cell}) is condition(f"x >= {low} and x <= {high}")({"x": cell})
    assert condition(f"x in {low}..{high}")({"x": cell}) is (low <= cell <= high)


def lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return lines(
        tmp_path / "p.jsonl",
        [{"prompt": f"{n}+1", "answer": n + 1, "info": {"hard": n if n != 2 else None}} for n in range(6)],
    )


def test_a_source_keeps_the_rows_that_are_wanted_under_their_own_numbers(file: str) -> None:
    found = JsonLines(path=file, where="info.hard in 1..4").load()
    assert [problem.id for problem in found] == ["p-2", "p-4", "p-5"]  # the third row's cell is empty
    assert [problem.id for problem in JsonLines(path=file, where="info.hard >= 3").load(limit=1)] == ["p-4"]


def test_a_source_says_which_row_and_column_it_stumbled_over(file: str) -> None:
    with pytest.raises(InputError, match=r"p.jsonl:1: where='info.herd > 1': no column 'info.herd'; did you mean"):
        JsonLines(path=file, where="info.herd > 1").load()
    with pytest.raises(InputError, match=r"p.jsonl:2: .*column 'info.hard' holds a number \(1\)"):
        JsonLines(path=file, where="answer == 1 or info.hard == 'x'").load()
    with pytest.raises(InputError, match="where='answer > 99' holds of none of its 6 rows"):
        JsonLines(path=file, where="answer > 99").load()
    with pytest.raises(ValidationError, match="expected a column"):
        JsonLines(path=file, where="==")


def test_a_run_and_a_preparation_take_the_same_condition(file: str) -> None:
    config = edit(resolve("grpo"), [f"data.source={file}", "data.source.where=info.hard in 3..9"])
    assert [problem.reference for problem in config.data.source.load()] == [4, 5, 6]
    with pytest.raises(InputError, match=r"data.source.where.*expected in or one of"):
        edit(config, ["data.source.where=info.hard"])
    source = Source(path=file, where="info.hard in 3..9")
    assert [problem.id for problem in source.problems()] == ["p/4", "p/5", "p/6"]  # type: ignore[union-attr]
    table = Source.model_validate({"path": file, "where": {"answer": [4, 6], "prompt": "3+1"}})
    assert table.where == '`answer` in [4, 6] and `prompt` in ["3+1"]'
    assert [problem.id for problem in table.problems()] == ["p/4"]  # type: ignore[union-attr]
    with pytest.raises(ValidationError, match="for tables, not for a source that makes problems"):
        Source.model_validate({"source": "chain_sum", "where": "a == 1"})


def test_cells_of_a_csv_file_are_text(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("prompt,answer,level\n1+1,2,3\n2+2,4,5\n")
    assert len(CsvFile(path=str(tmp_path / "p.csv"), where='level == "3"').load()) == 1
    with pytest.raises(InputError, match=r"column 'level' holds a text \('3'\).*write \"3\""):
        CsvFile(path=str(tmp_path / "p.csv"), where="level == 3").load()


def test_a_prepared_file_is_asked_for_the_fields_of_its_problems(tmp_path: Path) -> None:
    path = tmp_path / "ready.parquet"
    with ProblemWriter(path) as writer:
        for n in range(4):
            writer.write(Problem(f"q{n}", f"{n}+1", str(n + 1), source="made", extra={"level": n}))
    wanted = "extra.level >= 2 and source == 'made'"
    assert [problem.id for problem in ParquetFile(path=str(path), where=wanted).load()] == ["q2", "q3"]
    assert [p.id for p in Source(path=str(path), where=wanted).problems()] == ["q2", "q3"]  # type: ignore[union-attr]


def test_what_columns_put_around_a_prompt() -> None:
    columns = Columns(without=" In a box.", instruction="Box it.", starter="code", function="meta.name")
    row = {"prompt": "1+1? In a box.", "answer": [1], "code": " def f(): ", "meta": {"name": "f"}}
    assert columns.asked(row) == "1+1?\n\n```python\ndef f():\n```\nBox it."
    assert columns.reference(row) == {"fn_name": "f", "tests": [1]}
    bare = {**row, "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "1+1?"}], "code": "",
            "meta": {"name": None}}  # fmt: skip
    assert columns.asked(bare)[1] == {"role": "user", "content": "1+1?\nBox it."} and columns.reference(bare) == [1]
