"""What cells become, whatever type a file gives them, and what is refused or found instead of dropped."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.kit.bring import tokenizer
from tests.runs import small_config

from strop.base.types import InputError, Problem
from strop.config.parse import edit
from strop.data.cells import plain
from strop.data.columns import Columns
from strop.data.demonstrations import Demonstrations
from strop.data.loading import load_data
from strop.data.rows import JsonLines
from strop.data.source import damage, parse_source
from strop.prepare.sources import Source
from strop.python.problems import problems_of
from strop.run.checks import damaged, findings
from strop.verifiers.base import reference_text
from strop.verifiers.math_verifier import MathVerifier

NONE = ("data.held_out=none", "evaluation.every=none")


def written(path: Path, *rows: object) -> str:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("kind", "value", "reference"),
    [
        (pa.decimal128(5, 2), decimal.Decimal("1.50"), "1.50"),
        (pa.date32(), datetime.date(2020, 1, 2), "2020-01-02"),
        (pa.timestamp("us"), datetime.datetime(2020, 1, 2, 3), "2020-01-02T03:00:00"),
        (pa.time64("us"), datetime.time(1, 2), "01:02:00"),
        (pa.float32(), 0.1, 0.1),
        (pa.list_(pa.float32()), [0.1, None], [0.1, None]),
        (pa.struct([("x", pa.float16())]), {"x": np.float16(0.1)}, {"x": 0.1}),
    ],
)
def test_cells_of_parquet(kind: Any, value: object, reference: object, tmp_path: Path) -> None:
    cells = pa.array([value], kind)
    parquet.write_table(pa.table({"prompt": ["q"], "answer": cells, "when": cells}), tmp_path / "rows.parquet")
    source: Any = parse_source(str(tmp_path / "rows.parquet"))
    (problem,) = source.model_copy(update={"columns": source.columns.model_copy(update={"extra": ("when",)})}).load()
    assert problem.reference == problem.extra["when"] == reference and json.dumps(problem.extra)


@pytest.mark.parametrize(("kind", "value"), [(pa.binary(), b"ab"), (pa.duration("s"), datetime.timedelta(seconds=3))])
def test_cells_that_json_cannot_hold_are_refused(kind: Any, value: object, tmp_path: Path) -> None:
    parquet.write_table(pa.table({"prompt": ["q"], "answer": pa.array([value], kind)}), tmp_path / "rows.parquet")
    with pytest.raises(InputError, match="row 1: a cell of type .*write it as text"):
        parse_source(str(tmp_path / "rows.parquet")).load()


def test_numbers_of_numpy_and_of_tables_in_python() -> None:
    assert plain({"a": (np.float32(0.1), np.int64(3)), 1: np.array([0.5, 0.1], np.float32)}) == {
        "a": [0.1, 3], "1": [0.5, 0.1],
    }  # fmt: skip
    rows: list[Any] = [{"prompt": "q", "answer": np.float32(0.1)}]
    table = pa.table({"prompt": ["q"], "answer": pa.array([0.1], pa.float32())})
    assert problems_of(rows)[0].reference == problems_of(table)[0].reference == 0.1


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (0.1 + 0.2, "0.3"), ("0.30000000000000004", "0.3"), (1.1 * 1.1, "1.21"), (100 * 1.1, "110"),
        ("2.2000000000000002", "2.2"),
        (3.141592653589793, "3.141592653589793"), ("3.14159265358979323846", "3.14159265358979323846"),
        (0.1234567890123456, "0.1234567890123456"), (4.0, "4.0"),
        (2.0**60, "1152921504606847000"), (1e22, "1" + 22 * "0"), (2.0**-14, "0.00006103515625"),
        (0.10000000149011612, "0.1"), ("0.10000000149011612", "0.1"), (1 / 3, "0.3333333333333333"),
        ("$-0.30000000000000004$ m", "$-0.3$ m"), ("(0.1, 3.3000000000000003)", "(0.1, 3.3)"),
    ],
)  # fmt: skip
def test_noise_of_binary_arithmetic_is_no_part_of_a_reference(reference: float | str, text: str) -> None:
    assert reference_text(Problem("p", "q", reference)) == text


def test_an_answer_computed_in_binary_is_met_by_its_decimal() -> None:
    assert MathVerifier()(Problem("p", "q", 0.1 + 0.2), r"\boxed{0.3}").score == 1.0


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "q"}], "system_prompt": "Be brief."},
        {"prompt": "q", "tools": [{"type": "function"}]}, {"prompt": "q", "system_prompt": "You are terse"},
        {"prompt": "q", "context": "x = 3"}, {"prompt": "q", "video": "a.mp4"},
        {"question": "Which is it?", "0": "London", "1": "Paris"},
        {"prompt": [{"role": "user", "content": "q", "images": ["a.png"]}]},
        {"prompt": "q", "chat_template_kwargs": {"enable_thinking": False}},
        {"prompt": "q", "material": [{"name": "table", "rows": ["x", "3"]}]},
        {"question": "q", "sources": "It was Ada."},
        {"question": "q", "before": "Consider the plane with the points A and B and the line through both of them"},
        {"question": "Add", "problem": "1+1"},
        {"question": "q", "options": "['1', '2']"},
        {"question": "Wer?", "info": {"text": {"de": "Es war Ada."}}},
        {"prompt": "q", "images": ["a.png"]},
        {"prompt": "q", "documents": [{"title": "t", "text": "x is 3"}]},
        {"prompt": "q", "history": [["Hello", "Hi"]]},
        {"prompt": "Finish it.", "starter_code": "def f(x):"},
        {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "q"}]}]},
        {"prompt": [{"role": "assistant", "content": "", "tool_calls": [1]}, {"role": "user", "content": "q"}]},
    ],
)
def test_what_belongs_to_a_question_is_never_dropped(row: dict[str, Any], tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", {**row, "answer": "1", "completion": "1"})
    for load in (parse_source(file).load, Demonstrations(JsonLines(path=file)).load):
        with pytest.raises(InputError, match="part of the question|no text|cannot be asked"):
            load()


@pytest.mark.parametrize(
    "row",
    [
        {"subject": "Intermediate Algebra", "level": 5, "unique_id": "algebra/1.json", "tags": [], "context": None},
        {"problem": "What is 3?", "messages": [{"role": "user", "content": "What is 3?"}], "text": "Q: What is 3?\nA."},
        {"solution": "It is one.", "generations": ["So \\boxed{1}.", "Yes, I think."], "difficulty": 0.5},
        {"source": "orca_math", "domain": ["Mathematics -> Algebra -> Prealgebra"], "solve_rate": 0.5},
        {"extra_info": {"index": 0, "split": "train", "question": "What is 3?", "answer": "It is one.\n#### 1"}},
        {"data_source": "openai/gsm8k", "ability": "math", "time": "2024-01-01 10:00", "topic": "A -> B -> C"},
    ],
)
def test_metadata_answers_and_the_question_again_are_no_parts_of_it(row: dict[str, Any], tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", {"question": "What is 3?", "answer": "1", **row})
    assert parse_source(file).load()[0].prompt == "What is 3?"


def test_bytes_of_a_picture_are_a_part_of_the_question(tmp_path: Path) -> None:
    picture = pa.array([{"bytes": b"x", "path": "a.png"}], pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    parquet.write_table(pa.table({"prompt": ["q"], "answer": ["1"], "shown": picture}), tmp_path / "rows.parquet")
    with pytest.raises(InputError, match="row 1: .*'shown' may be part of the question"):
        parse_source(str(tmp_path / "rows.parquet")).load()


def test_columns_that_nobody_reads_are_named_once(tmp_path: Path) -> None:
    row = {"question": "q", "answer": "1", "unit": "m", "level": 5, "kwargs": {"thinking": False}, "id": "x"}
    file = written(tmp_path / "rows.jsonl", row)
    config = edit(small_config(), [f"data.source={file}", "data.source.where=level > 1", *NONE])
    data = load_data(config.data, tokenizer("qwen3"))
    (found,) = [one for one in findings(config, data) if one.code == "unread-columns"]
    assert found.found == f"{file}: nobody reads kwargs ({{'thinking': False}}), id ('x')"
    assert "nobody reads level (5), kwargs" in Source(path=file).unread()
    named = JsonLines(path=file, columns=Columns(prompt="question", id="id", extra=("level", "kwargs")))
    assert named.unread() == "" == Source(mapping="still-3", path=file).unread()


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "completion": "1"},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "1"}]},
        {"instruction": "Add.", "input": "1+2", "output": "3"},
    ],
)
def test_columns_that_no_demonstration_is_made_of_are_named(row: dict[str, Any], tmp_path: Path) -> None:
    def unread(**more: object) -> str:
        return Demonstrations(JsonLines(path=written(tmp_path / "a.jsonl", {**row, **more}))).unread()

    assert unread() == "" and unread(persona="pirate").endswith("a.jsonl: nobody reads persona ('pirate')")


def test_a_chat_that_is_a_demonstration_is_held_to_the_same(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "1"}]
    empty = {"messages": turns, "tools": [], "system_prompt": "", "chat_template_kwargs": {}}
    assert Demonstrations(JsonLines(path=written(tmp_path / "a.jsonl", empty))).load()[0].reference == "1"
    with pytest.raises(InputError, match="'tools' may be part"):
        Demonstrations(JsonLines(path=written(tmp_path / "b.jsonl", {**empty, "tools": [{"name": "f"}]}))).load()


def test_parts_of_text_are_one_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "1 + "}, {"type": "text", "text": "2"}]
    row = {"prompt": [{"role": "user", "content": parts}], "answer": "3"}
    said = {"prompt": "q", "completion": [{"role": "assistant", "content": parts}]}
    assert parse_source(written(tmp_path / "a.jsonl", row)).load()[0].prompt == "1 + 2"
    assert Demonstrations(JsonLines(path=written(tmp_path / "b.jsonl", said))).load()[0].reference == "1 + 2"
    others = [{"text": "1 "}, {"type": "input_text", "text": "+ "}, "2"]
    turns = [{"from": "human", "value": others}]
    assert parse_source(written(tmp_path / "c.jsonl", {"messages": turns, "answer": "3"})).load()[0].prompt == "1 + 2"


def test_json_lines_may_be_called_json(tmp_path: Path) -> None:
    rows = [{"prompt": f"{number}?", "answer": "1"} for number in range(3)]
    found = parse_source(written(tmp_path / "rows.json", *rows)).load()
    assert [problem.prompt for problem in found] == ["0?", "1?", "2?"]
    assert parse_source(written(tmp_path / "one.json", rows[0])).load()[0].prompt == "0?"
    with pytest.raises(InputError, match="not dict; keep only its list 'train' or 'test'"):
        parse_source(written(tmp_path / "two.json", {"train": rows, "test": rows})).load()


@pytest.mark.parametrize("answer", [r"\frac{1}{2}", r"\boxed{2}", r"\rho", r"1 + \rho"])
def test_an_answer_that_lost_its_backslash_is_refused(answer: str, tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", f'{{"prompt": "a?", "answer": "{answer}"}}')
    with pytest.raises(InputError, match=r"rows.jsonl:1: the answer holds the control .* not doubled in JSON\?"):
        parse_source(file).load()


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [("q", "\nu"), ("q", "2\tau"), ("Is $\frac{1}{2}$?", "1"), ("Is $\theta = 1$?", "1"), ("Is $a \neq b$?", "1"),
     ("In $\triangle ABC$", "1"), ("$a \nmid b$", "1"), ("Find $\tan x$.", "1"), ("Is $\nu>0$?", "1"),
     ("As $x \to 0$", "1")],
)
def test_what_lost_its_backslash_is_found(prompt: str, answer: str) -> None:
    (finding,) = damaged("rows.jsonl", [Problem("x", "q", "1"), Problem("p", prompt, answer)])
    assert "1 problem of 2, the first 'p'" in finding.found and "backslash was not doubled" in finding.found


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [("a\nu b\n\n\tan item\nnot this\r\nreal", "no\nyes"), ("a\tb", "x\ty"), ("e\nellipse", "α\n1"),
     ("A\nis\nmid\nless", "1"), ("It costs $5\nis it\tan apple", "1")],
)
def test_line_breaks_and_tabs_of_texts_are_none(prompt: str, answer: str) -> None:
    assert damage(Problem("p", prompt, answer)) is None
