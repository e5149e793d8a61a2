"""Problems from every kind of Python object come to the same, and what makes no problem is refused with its row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strop.base.types import InputError, Problem
from strop.data.columns import Columns
from strop.data.generators import ChainSum
from strop.data.rows import ParquetFile
from strop.python.problems import count_of, problems_of, source_of, stored

ROWS: list[dict[str, Any]] = [
    {"prompt": "1+1=", "answer": "2", "level": 1},
    {"prompt": "2+3=", "answer": "5", "level": 2},
]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1+1?"}]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROP_CACHE", str(tmp_path / "cache"))


def _dataset() -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(ROWS)


@pytest.mark.parametrize(
    "given",
    [
        lambda: ROWS,
        lambda: tuple(ROWS),
        lambda: (row for row in ROWS),
        _dataset,
        lambda: pa.Table.from_pylist(ROWS),
        lambda: pa.RecordBatch.from_pylist(ROWS),
        lambda: pd.DataFrame(ROWS),
        lambda: pd.DataFrame(ROWS, index=[7, 9]),
    ],
    ids=["list", "tuple", "generator", "datasets", "arrow", "batch", "pandas", "pandas with an index"],
)
def test_every_kind_of_table_comes_to_the_same(given: Any) -> None:
    found = source_of(given()).load()
    assert [(p.id, p.prompt, p.reference) for p in found] == [("row-1", "1+1=", "2"), ("row-2", "2+3=", "5")]
    assert [dict(p.extra) for p in found] == [{"answer": "2", "level": 1}, {"answer": "5", "level": 2}]


def test_problems_are_kept_whole() -> None:
    given = list(ChainSum(count=3, seed=4).load())
    source = source_of(given)
    assert list(source.load()) == given
    assert source_of(given) == source, "the same problems are the same file"
    assert source_of(given[:2]) != source
    assert count_of(source) == 3


def test_chat_messages_and_texts_are_prompts() -> None:
    chat, text = problems_of([{"messages": CHAT, "answer": 2}, "What is 1+2?"])
    assert chat.prompt == (CHAT[0], CHAT[1]) and chat.reference == 2
    assert text.prompt == "What is 1+2?" and text.reference is None
    assert [problem.reference for problem in source_of([chat, text]).load()] == [2, None]


def test_the_rows_of_verl_have_their_answers() -> None:
    (found,) = problems_of([{"prompt": CHAT, "reward_model": {"ground_truth": "2", "style": "rule"}}])
    assert found.reference == "2"


def test_a_question_that_stands_in_two_columns_is_refused_unless_named() -> None:
    row = {"question": "Which?", "choices": ["p", "q"], "answer": "B"}
    with pytest.raises(InputError, match="row 1: .*'choices'.*columns.prompt=question"):
        problems_of([row])
    (named,) = problems_of([row], {"prompt": "question", "answer": "answer"})
    (whole,) = problems_of([{**row, "prompt": "Which, p or q?"}])
    assert (named.prompt, whole.prompt) == ("Which?", "Which, p or q?")
    assert named.extra["choices"] == whole.extra["choices"] == ["p", "q"]


def test_columns_are_named_or_guessed() -> None:
    (guessed,) = problems_of([{"question": "q", "solution": "long", "answer": "short", "id": 5}])
    assert (guessed.id, guessed.prompt, guessed.reference) == ("5", "q", "short")
    for known in (None, {"prompt": "question", "answer": "answer"}):
        (marked,) = problems_of([{"question": "q", "answer": "so\n#### 1,250"}], known)
        assert marked.reference == "1250" and marked.extra == {"answer": "so\n#### 1,250"}
    for text, reference in ((r"so \boxed{2} m", "2"), ("surely 2", "surely 2")):
        (worked,) = problems_of([{"question": "q", "solution": text}])
        assert worked.reference == reference and worked.extra == {"solution": text}
    rows = [{"text": "q", "final": np.float64(0.5), "question": "other"}]
    for columns in ({"prompt": "text", "answer": "final"}, Columns(prompt="text", answer="final")):
        (named,) = problems_of(rows, columns)
        assert (named.prompt, named.reference) == ("q", 0.5)
        assert named.extra == {"final": 0.5, "question": "other"}


def test_a_source_its_name_and_a_file_stay_what_they_are(tmp_path: Path) -> None:
    assert source_of(ChainSum(count=3)) == ChainSum(count=3)
    assert source_of("chain_sum") == ChainSum()
    file = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist([{**row, "raw": b"x"} for row in ROWS]), file)
    # Its other columns are kept, as those of rows are; what JSON cannot hold is not.
    assert source_of(file) == ParquetFile(path=str(file), columns=Columns(extra=("answer", "level")))
    named = {"prompt": "answer", "answer": "level"}
    chosen = Columns(**named, extra=("prompt", "level"))
    assert source_of(str(file), named) == ParquetFile(path=str(file), columns=chosen)
    source = stored(problems_of(ROWS))
    assert source_of(source.path) == source, "a file of whole problems"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([], "problems"),
        ([{"answer": "2"}], "row 1: .*'prompt'"),
        ([{"prompt": "a"}, {"prompt": " "}], "row 2"),
        ([{"prompt": "a"}, 5], "row 2"),
        ([{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}], "row 2: .*'x'"),
        ([{"prompt": [{"role": "bot", "content": "a"}]}], "row 1: .*'bot'"),
        ([{"prompt": "a", "answer": float("nan")}], "row 1: .*nan"),
        ({"prompt": "a"}, "dict"),
        (Problem("p", "a", "b"), "Problem"),
        (5, "int"),
    ],
)
def test_what_makes_no_problem_is_refused(given: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        source_of(given)
