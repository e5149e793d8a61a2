"""Conditions over columns: what they keep, what they refuse, and where they are used."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.prepare.working import run

from strop.base.types import InputError, Problem
from strop.config.parse import edit
from strop.data.columns import NoColumn, condition, pick
from strop.data.problem_table import ProblemWriter
from strop.data.rows import BrokenRow, Columns, CsvFile, JsonLines, ParquetFile
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
    for text in ("ability == 3", "ability != 3", "ability in [3, 4]"):
        with pytest.raises(ValueError, match='compared with 3; write "3"$'):
            condition(text)(ROW)
    for text, value in (("ability in 3..4", "3"), ("ability < 3", "3"), ("ability > '3'", "'3'")):
        said = f'compared with {value} as a number; leave such rows out before it, `ability` != "math" and …'
        with pytest.raises(ValueError, match=re.escape(said)):
            condition(text)(ROW)
    with pytest.raises(ValueError, match="column 'level' holds a number"):
        condition("level > '2'")(ROW)
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


CELLS = {"a": "1", "b": "2", "c": "10", "d": "", "e": "02", "f": "2.5", "g": " 3", "h": "1e1", "i": "-4"}


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("level >= 2", "bcefgh"),
        ("level >= '2'", "bcefgh"),  # by letters 10 comes before 2
        ("level < 2", "ai"),
        ("level > '-5' and level < '.5'", "i"),
        ("level in 2..20", "bcefgh"),
        ("level in 2..2", "be"),
        ("level == 2", "be"),
        ("level != 2", "acfghi"),
        ("not level == 2", "acdfghi"),
        ("level == '02'", "e"),  # a text as it stands
        ("level == '2'", "b"),
        ("level in ['2', '10']", "bc"),
        ("level in [2, '10']", "bce"),
        ("level in [2, 10]", "bceh"),
        ("level == null", "d"),
        ("level != null", "abcefghi"),
        ("level in [null, 1]", "ad"),
        ("level == ''", "d"),
        ("level in ['', 1]", "ad"),
        ("level != ''", "abcefghi"),
        ("level != '2'", "acefghi"),  # nor is an empty cell unequal to anything
        ("id < 'c'", "ab"),
        ("code == '007'", "a"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_cells_of_a_file_of_texts_are_numbers_where_numbers_are_asked_for(
    tmp_path: Path, where: str, kept: str, kind: str
) -> None:
    sign = "\t" if kind == "tsv" else ","
    rows = [("id", "prompt", "answer", "level", "code")]
    rows += [(name, f"{name}?", name, cell, "007" if name == "a" else "7") for name, cell in CELLS.items()]
    path = tmp_path / f"p.{kind}"
    path.write_text("".join(sign.join(row) + "\n" for row in rows))
    sets = [f"data.source={path}", f"data.source.where={where}", "data.source.columns.id=id"]
    problems = edit(resolve("grpo"), [*sets, 'data.source.columns.extra=["level", "code"]']).data.source.load()
    assert "".join(problem.id for problem in problems) == kept
    assert [problem.extra["level"] for problem in problems] == [CELLS[name] for name in kept]  # as they stand
    source = {"path": str(path), "where": where, "columns": {"id": "id", "extra": ["level"]}}
    prepared = run(tmp_path, [source], [])
    assert [(one.reference, one.extra["level"]) for one in prepared.kept] == [(name, CELLS[name]) for name in kept]
    nulls: list[dict[str, Any]] = [
        {"id": name, "level": cell or None, "code": "007" if name == "a" else "7"} for name, cell in CELLS.items()
    ]
    if "''" not in where:  # an empty cell is as null is
        assert "".join(row["id"] for row in nulls if condition(where)(row)) == kept


def test_a_cell_that_is_no_number_has_no_order_with_one(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("prompt,answer,level\n1+1,2,3\n2+2,4,n/a\n3+3,6,10\n")
    for value in ("2", '"2"'):
        said = r"p.csv:3: where=.* column 'level' holds a text \('n/a'\).*`level` != \"n/a\""
        with pytest.raises(InputError, match=said):
            CsvFile(path=str(path), where=f"level >= {value}").load()
        advised = CsvFile(path=str(path), where=f'`level` != "n/a" and level >= {value}').load()
        assert [problem.reference for problem in advised] == ["2", "6"]
    assert len(CsvFile(path=str(path), where='level == "n/a"').load()) == 1
    broken = [row for row in Source(path=str(path), where="level >= 2").problems() if isinstance(row, BrokenRow)]
    assert [row.where for row in broken] == [f"{path}:3"]


@given(st.lists(st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e9, 1e9)), min_size=2, max_size=2))
def test_texts_of_numbers_are_ordered_as_the_numbers(pair: list[float]) -> None:
    cell, value = pair
    for sign, holds in (("<", cell < value), (">=", cell >= value)):
        for written in (repr(value), f"'{value!r}'"):
            assert condition(f"x {sign} {written}")({"x": repr(cell)}) is holds


def test_an_empty_text_of_a_table_with_nulls_is_a_text() -> None:
    assert condition("x == ''")({"x": ""}) and not condition("x == null")({"x": ""})
    assert condition("x != 'a'")({"x": ""}) and not condition("x != 'a'", texts=True)({"x": ""})


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
