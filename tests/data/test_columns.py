"""Conditions over columns: what they keep, what they refuse, and where they are used."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from strop.base.types import InputError, Problem
from strop.config.parse import edit
from strop.data.columns import Columns, pick
from strop.data.problem_table import ProblemWriter
from strop.data.rows import CsvFile, JsonLines, ParquetFile
from strop.data.source import parse_source
from strop.data.where import Condition, named_columns
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


def keeps(condition: str, row: dict[str, Any]) -> bool | str:
    (verdict,) = Condition(condition)([row])
    return verdict


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('extra_info.model_difficulty."DeepSeek-R1-Distill-Qwen-7B" BETWEEN 1 AND 15', True),
        ('extra_info.model_difficulty."DeepSeek-R1-Distill-Qwen-1.5B" BETWEEN 1 AND 15', False),
        ("share >= 0.25 AND share < 1e0", True),
        ("level = 3.0 and not level in (4, 5)", True),
        ("level <> 3", False),
        ("ability IN ('code', 'math') -- a comment", True),
        ("ability LIKE 'm%'", True),
        ("easy = false", True),
        ("note IS NULL", True),
        ("note = 'x' OR note > 3", False),  # no comparison holds of an empty cell
        ("\"odd name\" = 'it''s'", True),
        ("\"0\".value = 'q'", True),
        ("len(ability) = 4", True),
    ],
)
def test_what_a_condition_keeps(text: str, kept: bool) -> None:
    assert keeps(text, ROW) is kept


@pytest.mark.parametrize(
    "text",
    [
        "", "level =", "level = 3 level = 4", "level = 3; SELECT 1", "level = 'a", "1 = 1", "level), (share",
        "level) FROM (SELECT 1", "level > (SELECT 1)", "row_number() OVER () > level",
        "level > (SELECT count(*) FROM read_csv('/etc/passwd'))",
    ],
)  # fmt: skip
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(ValueError, match="condition|column"):
        named_columns(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('extra_info.model_difficulty."Qwen-32B" = 1', "extra_info.model_difficulty.Qwen-32B"),
        ("lvl = 1", "lvl"),
        ("ability > 3", "VARCHAR"),
        ("extra_info > 1", "STRUCT"),
        ("level", "not true or false"),
        ("count(level) > 0 AND level > 1", "level"),
    ],
)
def test_a_row_of_which_a_condition_cannot_be_decided_gives_the_reason(text: str, named: str) -> None:
    assert named in str(keeps(text, ROW))


def test_a_row_of_another_type_has_no_effect_on_the_others() -> None:
    rows: list[dict[str, Any]] = [{"x": 3}, {"x": "a"}, {"x": None}, {}, {"x": 2.5}, {"x": [1, "a"]}, {"x": {"y": 1}}]
    kept = Condition("x > 2")(rows)
    assert [kept[place] for place in (0, 2, 4)] == [True, False, True]
    assert all(isinstance(kept[place], str) for place in (1, 3, 5, 6))
    nested: list[dict[str, Any]] = [{"a": {"b": 1, "c": "x"}}, {"a": {"c": 1}}, {"a": {"b": 3}}]
    kept = Condition("a.b > 2")(nested)
    assert kept[::2] == [False, True] and "a.b" in str(kept[1])


def test_pick_reaches_into_nested_columns() -> None:
    assert pick(ROW, "0.value") == "q" and pick({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert pick({"a": {"b.c": 3}}, "a.b.c") == 3


@given(low=st.integers(-9, 9), width=st.integers(0, 9), cells=st.lists(st.integers(-20, 20), min_size=1))
@settings(max_examples=20, deadline=None)
def test_a_range_has_both_ends(low: int, width: int, cells: list[int]) -> None:
    kept = Condition(f"x BETWEEN {low} AND {low + width}")([{"x": cell} for cell in cells])
    assert kept == [low <= cell <= low + width for cell in cells]


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
    found = JsonLines(path=file, where="info.hard BETWEEN 1 AND 4").load()
    assert [problem.id for problem in found] == ["p-2", "p-4", "p-5"]  # the third row's cell is empty
    assert [problem.id for problem in JsonLines(path=file, where="info.hard >= 3").load(limit=1)] == ["p-4"]


def test_a_source_says_which_row_and_column_it_stumbled_over(file: str) -> None:
    with pytest.raises(InputError, match=r"p.jsonl:1: .*info\.herd"):
        JsonLines(path=file, where="info.herd > 1").load()
    with pytest.raises(InputError, match=r"p.jsonl:1: .*prompt"):
        JsonLines(path=file, where="prompt > 1").load()
    with pytest.raises(InputError, match="answer > 99"):
        JsonLines(path=file, where="answer > 99").load()
    with pytest.raises(ValidationError, match="where"):
        JsonLines(path=file, where="==")


def test_a_run_and_a_preparation_take_the_same_condition(file: str) -> None:
    config = edit(resolve("grpo"), [f"data.source={file}", "data.source.where=info.hard BETWEEN 3 AND 9"])
    assert [problem.reference for problem in config.data.source.load()] == [4, 5, 6]
    with pytest.raises(InputError, match=r"data\.source\.where"):
        edit(config, ["data.source.where=info.hard ="])
    source = Source(path=file, where="info.hard BETWEEN 3 AND 9")
    assert [problem.id for problem in source.problems()] == ["p/4", "p/5", "p/6"]  # type: ignore[union-attr]
    with pytest.raises(ValidationError, match="where"):
        Source.model_validate({"source": "chain_sum", "where": "a = 1"})


@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz"])
def test_cells_of_a_file_of_texts_are_texts(tmp_path: Path, kind: str) -> None:
    sign = "\t" if kind == "tsv" else ","
    cells = {"a": "1", "b": "2", "c": "10", "d": "", "e": "2.5", "f": "007", "g": "n/a"}
    rows = [("id", "prompt", "answer", "level")] + [(name, f"{name}?", name, cell) for name, cell in cells.items()]
    path = tmp_path / f"p.{kind}"
    text = "".join(sign.join(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    columns = Columns(id="id", extra=("level",))
    for where, kept in (("level = '007'", "f"), ("TRY_CAST(level AS DOUBLE) >= 2", "bcef"), ("level = ''", "d")):
        problems = CsvFile(path=str(path), where=where, columns=columns).load()
        assert "".join(problem.id for problem in problems) == kept
        assert [problem.extra["level"] for problem in problems] == [cells[name] for name in kept]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("prompt,answer,answer\n1+1,2,3\n")
    with pytest.raises(InputError, match=r"p\.csv: .*'answer'"):
        CsvFile(path=str(path)).load()
    columns = [pa.array([text]) for text in ("1+1", "2", "3")]
    pq.write_table(pa.Table.from_arrays(columns, names=["prompt", "answer", "answer"]), tmp_path / "p.parquet")
    (tmp_path / "p.jsonl").write_text('{"prompt": "1+1", "answer": "2", "answer": "3"}')
    (tmp_path / "p.json").write_text('[{"prompt": "1+1", "answer": "2", "answer": "3"}]')
    for name in ("p.parquet", "p.jsonl", "p.json"):
        with pytest.raises(InputError, match=rf"{name}.*'answer'"):
            parse_source(str(tmp_path / name)).load()


def test_a_prepared_file_is_asked_for_the_fields_of_its_problems(tmp_path: Path) -> None:
    path = tmp_path / "ready.parquet"
    with ProblemWriter(path) as writer:
        for n in range(4):
            writer.write(Problem(f"q{n}", f"{n}+1", str(n + 1), source="made", extra={"level": n}))
    wanted = "extra.level >= 2 and source = 'made'"
    assert [problem.id for problem in ParquetFile(path=str(path), where=wanted).load()] == ["q2", "q3"]
    assert [p.id for p in Source(path=str(path), where=wanted).problems()] == ["q2", "q3"]  # type: ignore[union-attr]


def test_what_columns_put_around_a_prompt() -> None:
    columns = Columns(without=" In a box.", instruction="Box it.", starter="code", function="meta.name")
    row = {"prompt": "1+1? In a box.", "answer": [1], "code": " def f(): ", "meta": {"name": "f"}}
    assert columns.question(row) == "1+1?\n\n```python\ndef f():\n```\nBox it."
    assert columns.reference(row) == {"fn_name": "f", "tests": [1]}
    bare = {**row, "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "1+1?"}], "code": "",
            "meta": {"name": None}}  # fmt: skip
    assert columns.question(bare)[1] == {"role": "user", "content": "1+1?\nBox it."} and columns.reference(bare) == [1]
